"""``python -m benchmarks.groups``: what a fetch costs in a queue with message groups, against one without.

Both queues have the same messages, in memory, and turns alternate between them in one run: in each turn 64 consumers
fetch and remove some messages one by one. The run checks the queue with groups: each group comes in order, no two
messages of a group are out at once, and no consumer goes away empty while a free group has messages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from typing import Final

import trio

from mq.broker import Broker, BrokerConfig, Draft, open_broker
from mq.storage.memory import MemoryStorage

CONSUMERS: Final = 64
TURNS: Final = 20
BATCH: Final = 1000
PLAIN, GROUPED = "plain", "grouped"


class Checker:
    """What consumers of the queue with groups have seen.

    Attributes:
        empty: how often one went away empty.
    """

    def __init__(self) -> None:
        self.empty = 0
        self._next: defaultdict[str, int] = defaultdict(int)
        self._out: set[str] = set()

    def handed_out(self, group: str, number: int) -> None:
        """A message was fetched."""
        assert group not in self._out, f"two of {group} are out"
        assert number == self._next[group], f"{group} gave {number}, and not {self._next[group]}"
        self._out.add(group)
        self._next[group] += 1

    def removing(self, group: str) -> None:
        """It is about to be removed: the next one may come before the answer does."""
        self._out.discard(group)


async def fill(broker: Broker, queue: str, groups: int, each: int, *, is_grouped: bool) -> float:
    """Publish to all groups in turn. Processor time for each message, in microseconds."""
    began = time.process_time()
    drafts: list[Draft] = []
    for number in range(each):
        for group in range(groups):
            drafts.append(Draft(b"%d %d" % (group, number), group=f"g{group}" if is_grouped else None))
            if len(drafts) == BATCH:
                await broker.publish_many(queue, drafts)
                drafts.clear()
    if drafts:
        await broker.publish_many(queue, drafts)
    return (time.process_time() - began) / (groups * each) * 1e6


async def consume(broker: Broker, queue: str, count: int, checker: Checker | None) -> float:
    """Fetch and remove so many messages. Processor time for each, in microseconds."""
    left = count
    began = time.process_time()

    async def consumer() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            message = await broker.fetch(queue)
            if message is None:
                assert checker is not None, "the messages are used up"
                checker.empty += 1
                continue
            group, number = (await message.body.read()).decode().split()
            if checker is not None:
                checker.handed_out(group, int(number))
            await trio.lowlevel.checkpoint()
            if checker is not None:
                checker.removing(group)
            await broker.remove(queue, message.id, receipt=message.receipt)

    async with trio.open_nursery() as nursery:
        for _ in range(CONSUMERS):
            nursery.start_soon(consumer)
    return (time.process_time() - began) / count * 1e6


async def main(groups: int, each: int) -> None:
    """Measure, and print."""
    store = MemoryStorage()
    await store.open()
    async with open_broker(store, BrokerConfig()) as broker:
        await broker.create_queue(PLAIN)
        await broker.create_queue(GROUPED)
        await broker.change_settings(GROUPED, {"groups": True})
        filled = {
            queue: await fill(broker, queue, groups, each, is_grouped=queue == GROUPED) for queue in (PLAIN, GROUPED)
        }
        checker = Checker()
        costs: dict[str, list[float]] = {PLAIN: [], GROUPED: []}
        for _ in range(TURNS):
            for queue in (PLAIN, GROUPED):
                costs[queue].append(
                    await consume(broker, queue, groups * each // TURNS, checker if queue == GROUPED else None)
                )
        middle = {queue: statistics.median(found) for queue, found in costs.items()}
        print(f"{groups} groups of {each} messages, {CONSUMERS} consumers")
        print(
            f"publish: {filled[PLAIN]:.0f} µs, with groups {filled[GROUPED]:.0f}: {filled[GROUPED] / filled[PLAIN]:.2f}"
        )
        ratio = middle[GROUPED] / middle[PLAIN]
        print(
            f"fetch and remove: {middle[PLAIN]:.0f} µs, with groups {middle[GROUPED]:.0f}: {ratio:.2f} (at most 1.50)"
        )
        print(f"in order in each group; went away empty: {checker.empty}")
    await store.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--each", type=int, default=100)
    given = parser.parse_args()
    trio.run(main, given.groups, given.each)
