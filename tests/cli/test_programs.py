"""What a service manager hears: of a daemon that is ready, lives and stops."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mq.cli.programs import READY, supervised

PATIENCE_SECONDS = 60


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    """All that came until now."""
    messages = []
    while True:
        try:
            messages.append(manager.recv(1000).decode())
        except BlockingIOError:
            return messages


def environment_for(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


async def test_signs_of_life_come_three_times_as_often_as_the_watchdog_looks(
    manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    async with supervised(environment_for(manager, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid()))) as tell:
        await trio.sleep(95)
        tell(READY)
    assert heard(manager) == ["WATCHDOG=1"] * 10 + ["READY=1"]


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}])
async def test_without_a_watchdog_there_are_none(
    manager: socket.socket, autojump_clock: trio.testing.MockClock, more: dict[str, str]
) -> None:
    async with supervised(environment_for(manager, **more)) as tell:
        await trio.sleep(95)
        tell(READY)
    assert heard(manager) == ["READY=1"]


async def test_without_a_manager_nothing_is_told() -> None:
    async with supervised({"WATCHDOG_USEC": "1000000"}) as tell:
        tell(READY)


async def test_a_manager_that_is_gone_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with supervised({"NOTIFY_SOCKET": str(tmp_path / "gone")}) as tell:
        tell(READY)
    assert "(message: READY=1): No such file or directory" in caplog.text


async def test_an_abstract_name() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel chooses one
        listening.setblocking(False)
        name = listening.getsockname().decode()
        async with supervised({"NOTIFY_SOCKET": "@" + name[1:]}) as tell:
            tell(READY)
        assert heard(listening) == ["READY=1"]


@pytest.mark.slow
def test_the_daemon_tells_that_it_is_ready_lives_and_stops(manager: socket.socket, temp_root: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    watched = environment_for(manager, WATCHDOG_USEC="3600000000")
    command = [sys.executable, "-m", "mq", "--port=0", "--amqp-port=0", "--root", str(temp_root)]
    manager.settimeout(PATIENCE_SECONDS)
    with subprocess.Popen(command, env=kept | watched) as process:
        try:
            assert manager.recv(1000) == b"WATCHDOG=1"  # while it opens its store
            assert manager.recv(1000) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(1000) == b"STOPPING=1"
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
