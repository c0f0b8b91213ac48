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
        (["queue", "craete"], "no such command 'craete': did you mean", "mq queue"),
        (["queue", "list"], "no such command 'list': there are create, delete, set, show.", "mq queue"),
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
    verbs = (["send", "w", "-m", "x"], ["receive", "w"], ["queue", "show", "w"], ["peek", "w"], ["purge", "w", "--yes"])
    for verb in verbs:
        done = mq(*verb)
        assert done.status == 1
        assert done.error.endswith("mq queue create w creates it\n"), verb
        assert "PUT" not in done.error
    assert mq("move", "q", "w").error.endswith("mq queue create w creates it\n")
