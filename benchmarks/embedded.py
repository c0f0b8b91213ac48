"""A broker inside a program: durable publish with many publishers, fetch and remove with many consumers.

Each round is a turn of mq and a turn of the bare loop with the very groups that mq made last, on fresh folders of the
same file system. The order changes with every round, and neither finds dirty pages of the other: the second one
would pay for them, and on a disk whose rate is rationed for more than that. The ratio is that of the medians.
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
from benchmarks.machine import write_back
from benchmarks.recorded import Group, RecordedStorage, mean_group, open_recorded
from mq.broker import Broker, open_broker
from mq.lifecycle import State

CLIENTS: Final = 64
BODY: Final = os.urandom(1024)
WANTED: Final = {"durable publish": 0.6, "fetch and remove": 0.5}
SETTLE_SECONDS: Final = 60.0


class Phase(NamedTuple):
    """One half of a turn.

    Attributes:
        seconds: how long mq took.
        groups: what it did to the store in that time.
    """

    seconds: float
    groups: list[Group]


class Turn(NamedTuple):
    """What mq did in one turn.

    Attributes:
        renames: whether it moved messages by renames.
        logs: whether it had a log.
        published: the publishing.
        between: what was still done to the store when that had ended.
        consumed: fetching and removing it all.
    """

    renames: bool
    logs: bool
    published: Phase
    between: list[Group]
    consumed: Phase


async def measure(folder: str, rounds: int, messages: int, clients: int = CLIENTS) -> list[Figure]:
    """Ratios to the bare loop.

    Args:
        folder: where roots are made, one after another.
        rounds: how many to count; one more warms up.
        messages: in each turn.
        clients: concurrent publishers, and later consumers.
    """
    mq, bare = _Rates([], []), _Rates([], [])
    turn = await _take_turn(folder, messages, clients)
    _take_bare_turn(folder, turn)
    for number in range(rounds):
        if number % 2:
            _note(bare, messages, *_take_bare_turn(folder, turn))
        turn = await _take_turn(folder, messages, clients)
        _note(mq, messages, turn.published.seconds, turn.consumed.seconds)
        if not number % 2:
            _note(bare, messages, *_take_bare_turn(folder, turn))
    return [
        _figure("durable publish", f"{clients} publishers", mq.publish, bare.publish, turn.published),
        _figure("fetch and remove", f"{clients} consumers", mq.consume, bare.consume, turn.consumed),
    ]


class _Rates(NamedTuple):
    publish: list[float]
    consume: list[float]


def _note(rates: _Rates, messages: int, publish_seconds: float, consume_seconds: float) -> None:
    rates.publish.append(messages / publish_seconds)
    rates.consume.append(messages / consume_seconds)


def _figure(what: str, who: str, mq: list[float], bare: list[float], last: Phase) -> Figure:
    rates = f"{spread(mq, 'a second')} against {spread(bare, 'a second')}"
    note = f"{rates}; {mean_group(last.groups):.0f} operations share a barrier"
    return at_least(f"{what}, {who}, against the bare loop", median_ratio(mq, bare), WANTED[what], note)


async def _take_turn(folder: str, messages: int, clients: int) -> Turn:
    root = f"{folder}/mq"
    async with open_recorded(root) as storage, open_broker(storage) as broker:
        await broker.create_queue("q")
        storage.take_groups()
        write_back(root)
        published = await phase(storage, messages, clients, lambda: publish_one(broker))
        between = await settled(storage, published.groups, messages)
        write_back(root)
        consumed = await phase(storage, messages, clients, lambda: consume_one(broker))
        renames, logs = broker.description.journaled, storage.logs
    shutil.rmtree(root)
    return Turn(renames, logs, published, between, consumed)


def _take_bare_turn(folder: str, turn: Turn) -> tuple[float, float]:
    """Seconds for publishing and for consuming."""
    root = f"{folder}/bare"
    loop = BareLoop(root, BODY, renames=turn.renames, logs=turn.logs)
    try:
        write_back(root)
        publish_seconds = loop.run(turn.published.groups)
        loop.run(turn.between)
        write_back(root)
        return publish_seconds, loop.run(turn.consumed.groups)
    finally:
        loop.close()
        shutil.rmtree(root)


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
    """How many messages were written where they rest, delivered or unlinked."""
    placed = sum(number for group in groups for _, number in group.placed)
    delivered = sum(number for group in groups for (_, target), number in group.moves if target == State.READY.value)
    removed = sum(number for group in groups for _, number in group.removals)
    return placed + delivered + removed + sum(group.unlinks for group in groups)


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
