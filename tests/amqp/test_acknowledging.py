"""Acknowledgements that the store has not carried out: how many there are bounds what comes again after kill -9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Final, cast

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.amqp.server.settling import LEAST_ACKNOWLEDGING, MOST_ACKNOWLEDGING, ClientConnection, Removals
from mq.broker import UnackedMessage
from mq.storage.interface import Move, Operation, Outcome, Unlink
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import Client, open_house

MESSAGES: Final = 3000


class SlowToRemove(MemoryStorage):
    """A store that takes a while for each removal."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.removed = 0
        self._seconds = seconds

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        removals = sum(isinstance(each, Move | Unlink) for each in operations)
        if removals:
            await trio.sleep(self._seconds * removals)
        outcomes = await super().commit(operations)
        self.removed += removals
        return outcomes


async def most_in_doubt(client: Client, store: SlowToRemove, prefetch: int) -> int:
    """Acknowledge each message as it comes, and return the most that were acknowledged and not removed at a time."""
    await client.call(commands.Basic.Qos(prefetch_count=prefetch))
    await client.consume()
    most = 0
    for number in range(MESSAGES):
        method, _, _ = await client.delivery()
        await client.say(commands.Basic.Ack(method.delivery_tag))
        most = max(most, number + 1 - store.removed)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [1, 10, 100, 500])
@pytest.mark.parametrize(("seconds", "few"), [(0.003, True), (0.000_01, False)])
async def test_acknowledgements_in_doubt_are_bounded(
    autojump_clock: MockClock, prefetch: int, seconds: float, few: bool
) -> None:
    """Twice the prefetch, for those that mq has not read and those of its last read; and those that are being removed
    while it reads on."""
    store = SlowToRemove(seconds)
    async with open_house(store) as house:
        client = await house.connect()
        await client.declare("q", durable=True)
        await client.publish("q", *[b"x"] * MESSAGES, delivery_mode=2)
        assert await client.count() == MESSAGES
        most = await most_in_doubt(client, store, prefetch)
    assert 0 < most <= 2 * prefetch + (2 * LEAST_ACKNOWLEDGING if few else MOST_ACKNOWLEDGING)


class Removing:
    """A client's connection to a broker that removes what it is told to."""

    def __init__(self) -> None:
        self.removed: list[Callable[[None], None]] = []
        self.connection = SimpleNamespace(is_over=False)
        self.state = SimpleNamespace(broker=self)
        self.progress = SimpleNamespace(shielded=nullcontext)
        self.now = trio.current_time

    def acknowledge_now(self, held: Sequence[object], removed: Callable[[None], None]) -> bool:
        self.removed.append(removed)
        return True

    def complete(self, completion: Callable[..., None], *values: object) -> None:
        completion(*values)


@pytest.mark.parametrize("attempt", range(10))  # Trio chooses which task goes on first
async def test_who_waits_for_all_goes_on_after_one_who_waits_for_some(autojump_clock: MockClock, attempt: int) -> None:
    connection = Removing()
    removals = Removals(cast(ClientConnection, connection))
    for _ in range(3):
        removals.begin([cast(UnackedMessage, None)] * LEAST_ACKNOWLEDGING)
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            for for_all in (False, True):
                nursery.start_soon(partial(removals.wait, for_all=for_all))
            for removed in connection.removed:
                await wait_all_tasks_blocked()
                removed(None)
    assert removals.count == 0
    assert not removals.is_awaited
