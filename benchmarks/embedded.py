"""A broker inside a program: durable publish with many publishers, fetch and remove with many consumers.

Each round is mq first and then the bare loop with the very groups that mq made, on fresh folders of the same file
system; the ratio is that of the medians over all rounds.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from benchmarks.bare import BareLoop
from benchmarks.figures import Figure, at_least, median_ratio, spread
from benchmarks.recorded import Group, RecordedStorage, mean_group, open_recorded
from mq.broker import Broker, open_broker
from mq.lifecycle import State

CLIENTS: Final = 64
BODY: Final = os.urandom(1024)
WANTED: Final = 0.5
SETTLE_SECONDS: Final = 60.0


class Phase(NamedTuple):
    """One half of a round.

    Attributes:
        seconds: how long mq took.
        groups: what it did to the store in that time.
    """

    seconds: float
    groups: list[Group]


class Rates(NamedTuple):
    """Messages per second of one round, mq's and the bare loop's."""

    publish: float
    bare_publish: float
    consume: float
    bare_consume: float
    publish_group: float
    consume_group: float


async def measure(folder: str, rounds: int, messages: int, clients: int = CLIENTS) -> list[Figure]:
    """Ratios to the bare loop.

    Args:
        folder: where roots are made, one after another.
        rounds: how many to count; one more warms up.
        messages: in each round.
        clients: concurrent publishers, and later consumers.
    """
    rates = [await _round(f"{folder}/round", messages, clients) for _ in range(rounds + 1)][1:]
    publish, bare_publish, consume, bare_consume, publish_group, consume_group = zip(*rates, strict=True)
    return [
        at_least(
            f"durable publish, {clients} publishers, against the bare loop",
            median_ratio(publish, bare_publish),
            WANTED,
            f"{spread(publish, 'a second')} against {spread(bare_publish, 'a second')}; "
            f"{sum(publish_group) / rounds:.0f} operations a barrier",
        ),
        at_least(
            f"fetch and remove, {clients} consumers, against the bare loop",
            median_ratio(consume, bare_consume),
            WANTED,
            f"{spread(consume, 'a second')} against {spread(bare_consume, 'a second')}; "
            f"{sum(consume_group) / rounds:.0f} operations a barrier",
        ),
    ]


async def _round(folder: str, messages: int, clients: int) -> Rates:
    shutil.rmtree(folder, ignore_errors=True)
    async with open_recorded(f"{folder}/mq") as storage, open_broker(storage) as broker:
        renames = broker.description.journaled
        await broker.create_queue("q")
        storage.take_groups()
        published = await phase(storage, messages, clients, lambda: publish_one(broker))
        between = await settled(storage, published.groups, messages)
        consumed = await phase(storage, messages, clients, lambda: consume_one(broker))
    bare = BareLoop(f"{folder}/bare", BODY, renames=renames)
    try:
        bare_publish = bare.run(published.groups)
        bare.run(between)
        bare_consume = bare.run(consumed.groups)
    finally:
        bare.close()
        shutil.rmtree(folder)
    return Rates(
        messages / published.seconds,
        messages / bare_publish,
        messages / consumed.seconds,
        messages / bare_consume,
        mean_group(published.groups),
        mean_group(consumed.groups),
    )


async def phase(storage: RecordedStorage, messages: int, clients: int, act: Callable[[], Awaitable[None]]) -> Phase:
    """Do `act` so many times, by so many tasks."""
    left = messages

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await act()

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(client)
    return Phase(time.perf_counter() - started, storage.take_groups())


async def settled(storage: RecordedStorage, before: list[Group], messages: int) -> list[Group]:
    """What is still done after the last answer, until so many messages are where they end: delivered, or gone."""
    after: list[Group] = []
    with trio.fail_after(SETTLE_SECONDS):
        while ended(before + after) < messages:
            await trio.sleep(0.01)
            after += storage.take_groups()
    return after


def ended(groups: list[Group]) -> int:
    """How many messages were delivered or unlinked."""
    delivered = sum(number for group in groups for (_, target), number in group.moves if target is State.READY)
    return delivered + sum(group.unlinks for group in groups)


async def publish_one(broker: Broker) -> None:
    """Publish one message."""
    await broker.publish("q", BODY)


async def consume_one(broker: Broker) -> None:
    """Fetch one message, read it and remove it."""
    message = await broker.fetch("q")
    assert message is not None, "the backlog was counted"
    assert await message.body.read() == BODY
    await message.body.aclose()
    await broker.remove("q", message.id)
