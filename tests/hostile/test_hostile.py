"""The real daemon under attack: honest clients are served all the while, its memory stays bounded, and it stops well.

What each refusal looks like is a matter of tests/web.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
import trio

from tests.cases import proof
from tests.e2e.daemon import Daemon
from tests.hostile.attacks import ATTACKS, IDLE_CONNECTIONS, SMUGGLED, SMUGGLING, Attack, held, say

MOST_MEGABYTES: Final = 256
"""The most memory that the daemon may ever have had, with a few hundred connections."""
KILOBYTES_A_CONNECTION: Final = 64
"""What an idle connection may cost on top."""
ROUNDS: Final = 3
HONEST_SECONDS: Final = 30
_OTHER_FILES: Final = 500
"""What a process has open besides connections, with room."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[int]:
    """As many open files as this process may have; what it starts inherits that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module", params=[(), ("MQ_NO_FAST_PATH=1",)], ids=["fast lane", "no fast lane"])
def lane(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """More for the daemon's command line."""
    return request.param


ON_ONE_PATH: Final = pytest.mark.parametrize("lane", [(), proof(("MQ_NO_FAST_PATH=1",))], indirect=True)


@pytest.fixture(scope="module")
def shared(files: int, lane: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all attacks in turn. It has to end well after the last one."""
    folder = tmp_path_factory.mktemp("hostile")
    with Daemon(folder / "root", folder / "log", "--hosts", "mq", *lane) as daemon:
        yield daemon
        daemon.stop()


@pytest.fixture
def daemon(temp_root: Path, tmp_path: Path, lane: tuple[str, ...]) -> Iterator[Daemon]:
    with Daemon(temp_root, tmp_path / "log", "--hosts", "mq", *lane) as daemon:
        yield daemon


async def be_honest(port: int, rounds: int = ROUNDS) -> float:
    """Publish, fetch and remove, again and again. Returns the longest time that an answer took."""
    slowest = 0.0

    async def ask(method: str, path: str, body: bytes | None = None) -> httpx.Response:
        nonlocal slowest
        since = time.monotonic()
        response = await client.request(method, path, content=body)
        slowest = max(slowest, time.monotonic() - since)
        return response

    with trio.fail_after(HONEST_SECONDS):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HONEST_SECONDS) as client:
            assert (await ask("PUT", "/honest")).status_code in (200, 201)
            for number in range(rounds):
                body = b"message %d" % number
                posted = await ask("POST", "/honest/messages", body)
                assert posted.status_code == 201
                while (fetched := await ask("GET", "/honest/messages")).status_code == 204:
                    pass  # not delivered yet
                assert (fetched.status_code, fetched.content) == (200, body)
                id = posted.headers["x-message-id"]
                assert (await ask("DELETE", f"/honest/messages/{id}")).status_code == 202
    return slowest


def megabytes(daemon: Daemon, what: str) -> int:
    """VmRSS is the memory now, VmHWM the most that it ever was."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{daemon.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) // 1024


async def withstand(daemon: Daemon, attack: Attack, most_megabytes: int = MOST_MEGABYTES) -> None:
    """The attack at its height, an honest client, and a look at the daemon."""
    async with trio.open_nursery() as nursery:

        async def attack_it(*, task_status: trio.TaskStatus[int]) -> None:
            await attack(daemon.port, task_status)

        since = time.monotonic()
        clients = await nursery.start(attack_it)
        opened = time.monotonic()
        slowest = await be_honest(daemon.port)
        now, most = megabytes(daemon, "VmRSS"), megabytes(daemon, "VmHWM")
        nursery.cancel_scope.cancel()
    sys.stdout.write(
        f"\n{clients} hostile clients after {opened - since:.1f} s: {now} MB, never over {most} of {most_megabytes} MB;"
        f" the slowest honest answer took {slowest:.2f} s\n"
    )
    assert most <= most_megabytes
    await be_honest(daemon.port, 1)
    assert daemon.is_running()


@pytest.mark.in_turn(2)
@ON_ONE_PATH
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_honest_clients_are_served_during(shared: Daemon, attack: Attack) -> None:
    await withstand(shared, attack)


async def test_no_form_of_smuggling_gets_a_hidden_request_through(shared: Daemon) -> None:
    for number, form in enumerate(SMUGGLING):
        with trio.fail_after(10):
            await say(shared.port, number, form)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{shared.port}") as client:
        assert (await client.get(f"/{SMUGGLED}")).status_code == 404


@ON_ONE_PATH
async def test_ten_thousand_idle_connections(daemon: Daemon, files: int) -> None:
    count = min(IDLE_CONNECTIONS, files - _OTHER_FILES)
    before = megabytes(daemon, "VmRSS")
    await withstand(daemon, held(count, b""), before + count * KILOBYTES_A_CONNECTION // 1024)
    daemon.stop()


@pytest.mark.parametrize("first_words", [b"", b"GET /honest HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_a_stop_waits_for_none_of_them(daemon: Daemon, first_words: bytes) -> None:
    async with trio.open_nursery() as nursery:

        async def hold(*, task_status: trio.TaskStatus[int]) -> None:
            await held(100, first_words)(daemon.port, task_status)

        await nursery.start(hold)
        await be_honest(daemon.port, 1)
        daemon.stop()
        nursery.cancel_scope.cancel()
