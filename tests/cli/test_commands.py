"""A command line that makes no sense, and an abort: one line, and the status that the page says."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from mq.cli import mover, pipeline, reaper
from mq.cli.commands import PlainCommand, PlainGroup
from mq.client import Client
from tests.cli.conftest import Mq


@pytest.mark.parametrize(
    ("args", "begins", "helps"),
    [
        (["send"], "missing argument 'QUEUE'.", "mq send"),
        (["send", "q", "--lnies"], "no such option '--lnies': did you mean --lines?", "mq send"),
        (["queue", "craete"], "unknown command 'craete': did you mean create?", "mq queue"),
        (["queue", "list"], "unknown command 'list': did you mean mq queues?", "mq queue"),
        (["cluster", "xyz"], "unknown command 'xyz'. Known commands: check, drain, replace, status.", "mq cluster"),
        (["queue", "show", "q", "r"], "unexpected argument: r.", "mq queue show"),
        (
            ["peek", "q", "-n", "0"],
            "invalid value for '-n' / '--max': \"0\" is not a whole number of at least 1.",
            "mq peek",
        ),
        (
            ["send", "q", "--priority", "high"],
            "invalid value for '--priority': \"high\" is not a whole number from 0 to 255.",
            "mq send",
        ),
        (["--prot", "1"], "no such option '--prot': did you mean --port?", "mq"),
        (["send", "q", "--message", "x", "--lines"], "--message cannot be combined with files or --lines.", "mq send"),
        (["bench", "--duration", "x"], "invalid value for '--duration':", "mq bench"),
    ],
)
def test_a_usage_error_is_one_line(mq: Mq, args: list[str], begins: str, helps: str) -> None:
    done = mq(*args)
    assert (done.status, done.out, len(done.error.splitlines())) == (2, "", 1)
    assert done.error.startswith(f"mq: {begins}")
    assert done.error.endswith(f" See {helps} --help\n")


@pytest.mark.parametrize("main", [mover.main, reaper.main, pipeline.main])
def test_the_other_programs_do_the_same(main: click.Command) -> None:
    done = CliRunner().invoke(main, ["--nonsense"], prog_name="anything")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"{main.name}: no such option")


def test_a_group_without_a_verb_shows_its_help(mq: Mq) -> None:
    done = mq("queue")
    assert done.status == 2
    assert "Usage: mq queue" in done.error
    assert "create" in done.error


def ended(command: click.Command, *args: str, typed: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(command, args, input=typed)
    return done.exit_code, done.stderr.strip()


def asking(question: str = "Really?") -> PlainCommand:
    return PlainCommand("asks", callback=lambda: click.confirm(question, abort=True, err=True))


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_no_is_1() -> None:
    status, error = ended(asking(), typed="n\n")
    assert status == 1
    assert error.endswith("asks: aborted")
    assert ended(asking(), typed="y\n")[0] == 0


def test_an_input_that_ends_is_1() -> None:
    assert ended(asking(), typed="")[0] == 1


def test_control_c_is_130_at_work_and_at_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(PlainCommand("works", callback=interrupted)) == (130, "works: interrupted")
    group = PlainGroup("group", commands=[click.Command("works", callback=interrupted)])
    assert ended(group, "works") == (130, "group: interrupted")
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: interrupted())
    command = PlainCommand("asks", callback=lambda: click.prompt("Name"))
    with pytest.raises(SystemExit) as left:  # not by the runner, which has a prompt of its own
        command.main([])
    assert left.value.code == 130


def test_a_missing_queue_is_told_with_the_command_that_makes_it(client: Client, mq: Mq) -> None:
    verbs = (["send", "w", "-m", "x"], ["receive", "w"], ["queue", "show", "w"], ["peek", "w"], ["move", "q", "w"])
    for verb in verbs:
        done = mq(*verb)
        assert done.status == 1
        assert done.error == 'mq: queue "w" does not exist. Create it with mq queue create w\n', verb


def test_a_missing_queue_is_not_to_be_created_before_a_removal(
    client: Client, mq: Mq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    for verb in (["queue", "delete", "w"], ["purge", "w"]):
        for confirmed in ([], ["--yes"]):
            done = mq(*verb, *confirmed)
            assert (done.status, done.error) == (1, 'mq: queue "w" does not exist\n'), verb


def test_a_missing_queue_is_answered_with_the_one_that_was_meant(client: Client, mq: Mq) -> None:
    client.create_queue("orders")
    for verb in (["send", "order", "-m", "x"], ["receive", "ordres"], ["purge", "oders", "--yes"], ["pause", "orderz"]):
        done = mq(*verb)
        assert done.status == 1
        assert done.error.endswith(" does not exist: did you mean orders?\n"), verb
