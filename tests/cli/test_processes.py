"""A shell command's processes, without a daemon."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mq.cli import processes
from mq.cli.processes import Command, GroupGuard, OrphanReaper, Stops


class Commands:
    """Starts commands, each with the variable MARK."""

    def __init__(self, stack: ExitStack) -> None:
        self._orphans = stack.enter_context(OrphanReaper())
        self._guard = stack.enter_context(GroupGuard(0, self._orphans))

    def start(self, text: str) -> Command:
        """Start a shell command."""
        return Command(text, os.environ | {"MARK": "x"}, "MARK", self._orphans, self._guard)


@pytest.fixture
def commands() -> Iterator[Commands]:
    with ExitStack() as stack:
        yield Commands(stack)


def test_a_command_does_not_take_a_part_of_a_body_for_all_of_it(commands: Commands, tmp_path: Path) -> None:
    looks = iter([True, False])
    command = commands.start(f"cat > {tmp_path}/body; touch {tmp_path}/whole")
    assert not command.feed([b"a", b"b"], lambda: next(looks))
    later = iter([True] * 4 + [False])
    assert command.wait(lambda: next(later)) is None, "it waits for the rest"
    assert command.end(0, lambda: True) is None
    assert not (tmp_path / "whole").exists()


def test_a_shell_does_not_go_on_when_its_program_is_ended_before_itself(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = commands.start(f"cat > {tmp_path}/body; touch {tmp_path}/whole")
    while not (tmp_path / "body").exists():
        time.sleep(0.01)
    running, kill = command._running, os.kill

    def kill_slowly(pid: int, number: int) -> None:
        kill(pid, number)
        time.sleep(0.05)  # the shell would have time for its next program

    monkeypatch.setattr(command, "_running", lambda: sorted(running(), reverse=True))  # the shell comes last
    monkeypatch.setattr(os, "kill", kill_slowly)
    command.end(60, lambda: False)
    assert not (tmp_path / "whole").exists()


def test_feed_ends_with_the_body(commands: Commands, tmp_path: Path) -> None:
    command = commands.start(f"cat > {tmp_path}/body")
    assert command.feed([b"a", b"b"], lambda: True)
    assert command.wait(lambda: True) == 0
    assert (tmp_path / "body").read_bytes() == b"ab"


def test_feed_ends_when_the_command_does_not_read(commands: Commands) -> None:
    command = commands.start("exit 3")
    assert command.feed([bytes(1_000_000)], lambda: True)
    assert command.wait(lambda: True) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_end_closes_the_input_of_a_command_that_got_nothing(commands: Commands) -> None:
    command = commands.start("sleep 60")
    command.end(0, lambda: True)
    del command
    gc.collect()  # a pipe that is open warns here


def test_end_waits_for_a_shell_that_ends_between_two_looks(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    command = commands.start("exec sleep 60")
    look = processes._processes

    def ended_first() -> dict[int, processes._Process]:
        os.kill(command.pid, signal.SIGKILL)
        os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.undo()
        return look()

    monkeypatch.setattr(processes, "_processes", ended_first)
    monkeypatch.setattr(command, "send", lambda _: None)
    command.end(0, lambda: True)
    with pytest.raises(ChildProcessError):
        os.waitpid(command.pid, os.WNOHANG)


def test_stops_holds_a_second_signal_after_one_that_was_held() -> None:
    """The first one ends the block; the second must not end what has to be done at its end."""
    done = []

    def work(stops: Stops) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            with stops.released():
                done.append("work")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("end")

    with Stops() as stops, pytest.raises(SystemExit), stops.held():
        work(stops)
    assert done == ["end"]
    assert stops.hurries
