"""A broker inside a program: durable publish with many publishers, fetch and remove with many consumers.

Each round is a turn of mq and a turn of the bare loop with the very groups that mq made last, on fresh folders of the
same file system. The order changes with every round, and neither finds dirty pages of the other: the second one
would pay for them, and on a disk whose rate is rationed for more than that. The ratio is that of the medians.
"""

from __future__ import annotations

import math
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
        groups: what it did to the store in that time.
    """

    seconds: float
    groups: list[Group]


class Turn(NamedTuple):
    """What mq did in one turn.

    Attributes:
        between: what was still done to the store when that had ended.
    """

    published: Phase
    between: list[Group]
    consumed: Phase


def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """Ratios to the bare loop; none on a file system on which mq keeps no log.

    Args:
        folder: where roots are made, one after another.
        rounds: how many to count; one more warms up.
    """
    return trio.run(_measure, folder, rounds, messages)


async def _measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    async with open_recorded(f"{folder}/probe") as storage:
        if not storage.logs:
            return [
                Figure(what, math.nan, note="needs a root with a log: ext4 with a journal, or xfs") for what in WANTED
            ]
    turn = await _take_turn(folder, messages)
    _take_bare_turn(folder, turn)
    mq: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            bare.append(_take_bare_turn(folder, turn))
        turn = await _take_turn(folder, messages)
        mq.append((turn.published.seconds, turn.consumed.seconds))
        if not number % 2:
            bare.append(_take_bare_turn(folder, turn))
    rates = [[[messages / seconds for seconds in phase] for phase in zip(*turns, strict=True)] for turns in (mq, bare)]
    return [
        _figure("durable publish", f"{CLIENTS} publishers", rates[0][0], rates[1][0], turn.published),
        _figure("fetch and remove", f"{CLIENTS} consumers", rates[0][1], rates[1][1], turn.consumed),
    ]


def _figure(what: str, who: str, mq: list[float], bare: list[float], last: Phase) -> Figure:
    rates = f"{spread(mq, 'a second')} against {spread(bare, 'a second')}"
    note = f"{rates}; {mean_group(last.groups):.0f} operations share a barrier"
    return at_least(f"{what}, {who}, against the bare loop", median_ratio(mq, bare), WANTED[what], note)


async def _take_turn(folder: str, messages: int) -> Turn:
    root = f"{folder}/mq"
    async with open_recorded(root) as storage, open_broker(storage) as broker:
        await broker.create_queue("q")
        storage.take_groups()
        write_back(root)
        published = await phase(storage, messages, CLIENTS, lambda: publish_one(broker))
        between = await settled(storage, published.groups, messages)
        write_back(root)
        consumed = await phase(storage, messages, CLIENTS, lambda: consume_one(broker))
    shutil.rmtree(root)
    return Turn(published, between, consumed)


def _take_bare_turn(folder: str, turn: Turn) -> tuple[float, float]:
    """Seconds for publishing and for consuming."""
    root = f"{folder}/bare"
    loop = BareLoop(root, BODY)
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
