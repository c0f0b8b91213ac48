"""What it costs the daemon that ten thousand clients wait for messages."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.e2e.daemon import Daemon
from tests.hostile.attacks import open_many
from tests.web.talking import http1, parse, read_all

WAITERS: Final = 10_000
KIBIBYTES_A_WAITER: Final = 40
WATCHED_SECONDS: Final = 5.0
PART_OF_A_CORE: Final = 0.01
_OTHER_FILES: Final = 500
_ASK: Final = http1("GET", "/q/messages?wait=3600")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def files() -> Iterator[int]:
    """As many open files as this process may have; what it starts inherits that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.in_turn(2)
async def test_ten_thousand_waiters(temp_root: Path, tmp_path: Path, files: int) -> None:
    count = min(WAITERS, files - _OTHER_FILES)
    with Daemon(temp_root, tmp_path / "log") as daemon:
        assert (await ask(daemon, "PUT", "/q"))[0] == 201
        before = kibibytes(daemon.pid)
        streams = await open_many(daemon.port, count, _ASK)
        await until_quiet(daemon.pid)
        each = (kibibytes(daemon.pid) - before) / count
        busy = processor_seconds(daemon.pid)
        await trio.sleep(WATCHED_SECONDS)  # how little it does meanwhile is what is measured
        core = (processor_seconds(daemon.pid) - busy) / WATCHED_SECONDS
        sys.stdout.write(f"\n{count} waiters: {each:.1f} KiB each, {core:.2%} of a core\n")
        assert each < KIBIBYTES_A_WAITER
        assert core < PART_OF_A_CORE
        assert (await ask(daemon, "POST", "/q/messages", b"hello"))[0] == 201
        with trio.fail_after(30):
            while not json.loads((await ask(daemon, "GET", "/q"))[1])["leased"]:
                await trio.sleep(0.01)  # one of them gets it in a moment
        for stream in streams:
            stream.socket.close()
        await until_quiet(daemon.pid)
        daemon.stop()


async def ask(daemon: Daemon, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    with trio.fail_after(30):
        async with await trio.open_tcp_stream("127.0.0.1", daemon.port) as stream:
            await stream.send_all(http1(method, path, body, "Connection: close"))
            status, _, body = parse(await read_all(stream))
            return status, body


async def until_quiet(pid: int) -> None:
    """All of them wait: it has nothing more to do."""
    last = -1.0
    with trio.fail_after(60):
        while last != (last := processor_seconds(pid)):
            await trio.sleep(1)


def kibibytes(pid: int) -> int:
    """Its memory now."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def processor_seconds(pid: int) -> float:
    """What it has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
