"""Acknowledgements that the store has not carried out: how many there are bounds what comes again after kill -9."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.amqp.server.settling import LEAST_ACKNOWLEDGING, MOST_ACKNOWLEDGING
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
