"""Message groups for many consumers: in order, and one message of a group at a time, while the daemon is killed and
started again.

The clocks are real: two processes have no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mq.client import AsyncClient, Outgoing, Retry
from tests.e2e.daemon import Daemon

PATIENT = Retry(patience=60, first=0.02, longest=0.2)
GROUPS = 1000
CONSUMERS = 64
KILLS = 2
LEASE_SECONDS = 30.0
"""Longer than a start takes on a busy machine: a message whose fetch was lost with the daemon comes again after it."""


@pytest.fixture
def daemon(tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "log", "--port", str(free_port)) as daemon:
        yield daemon


class Work:
    """What consumers have in hand, and what they have done.

    Args:
        client: of all of them.
        each: messages of a group.
    """

    def __init__(self, client: AsyncClient, each: int) -> None:
        self.done: defaultdict[str, list[int]] = defaultdict(list)
        self.broken: list[str] = []
        self.total = 0
        self._client = client
        self._all = GROUPS * each
        self._out: dict[str, int] = {}

    @property
    def is_over(self) -> bool:
        """Whether all messages are done."""
        return self.total >= self._all

    async def consume(self) -> None:
        """Do messages until there is nothing left to do."""
        while not self.is_over:
            message = await self._client.fetch("q", wait=0.5, visibility=LEASE_SECONDS)
            if message is None:
                continue
            group, number = message.body.decode().split()
            if group in self._out:
                self.broken.append(f"{group}: {number} while {self._out[group]} is out")
            self._out[group] = int(number)
            await trio.sleep(0.01)
            self._out.pop(group, None)  # before it is asked for: its answer may come after the next message
            await self._client.remove(message)
            self.done[group].append(int(number))
            self.total += 1


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("each", [5])
def test_a_thousand_groups_keep_their_order_for_64_consumers(daemon: Daemon, each: int) -> None:
    async def kill(work: Work) -> None:
        for number in range(1, KILLS + 1):
            while work.total < number * GROUPS * each // (KILLS + 1):
                await trio.sleep(0.02)
            await trio.to_thread.run_sync(daemon.kill)
            await trio.to_thread.run_sync(daemon.start)

    async def main() -> Work:
        async with AsyncClient(f"http://127.0.0.1:{daemon.port}", retry=PATIENT) as client:
            await client.create_queue("q")
            await client.configure("q", groups=True)
            for group in range(GROUPS):  # a group's messages in a row: out at once, if nothing held them back
                await client.publish_many("q", [Outgoing(f"g{group} {n}", group=f"g{group}") for n in range(each)])
            work = Work(client, each)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill, work)
                for _ in range(CONSUMERS):
                    nursery.start_soon(work.consume)
            assert (await client.queue("q")).leased == 0
            return work

    work = trio.run(main)
    assert not work.broken
    assert dict(work.done) == {f"g{group}": list(range(each)) for group in range(GROUPS)}
    assert daemon.starts == 1 + KILLS
