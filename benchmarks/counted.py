"""What a message costs in numbers that do not wander: system calls, syncs, device writes and flushes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import Final

import trio

from benchmarks.embedded import BODY
from benchmarks.figures import Figure
from benchmarks.machine import DeviceCounts, device_counts
from benchmarks.recorded import CountingCalls, open_recorded
from mq.broker import Broker, open_broker

_SETTLE_SECONDS: Final = 0.5


async def measure(folder: str, messages: int, clients: int) -> list[Figure]:
    """Per message, with so many clients at a time."""
    calls = CountingCalls()
    root = f"{folder}/counted"
    try:
        async with open_recorded(root, calls) as storage, open_broker(storage) as broker:
            await broker.create_queue("q")
            figures = []
            for what, act in (("publish", _publish), ("fetch and remove", _consume)):
                before, disk = Counter(calls.counts), _synced_counts(root)
                async with trio.open_nursery() as nursery:
                    for number in range(clients):
                        share = messages // clients + (number < messages % clients)
                        nursery.start_soon(act, broker, share)
                await trio.sleep(_SETTLE_SECONDS)  # what is done after the answer belongs to the message, too
                used = calls.counts - before
                name = f"{what}, {clients} client{'s' if clients > 1 else ''}"
                figures += _figures(name, used, disk, _synced_counts(root), messages)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return figures


def _figures(
    name: str, used: Counter[str], before: DeviceCounts | None, after: DeviceCounts | None, messages: int
) -> list[Figure]:
    each = ", ".join(f"{verb} {number / messages:.2f}" for verb, number in used.most_common())
    syncs = used["fsync"] + used["syncfs"]
    figures = [
        Figure(f"{name}: system calls", used.total() / messages, "a message", note=each),
        Figure(f"{name}: syncs", syncs / messages, "a message", note=f"fsync {used['fsync']}, syncfs {used['syncfs']}"),
    ]
    if before is not None and after is not None:
        done = after.since(before)
        kib = done.written_bytes / 1024 / messages
        figures += [
            Figure(f"{name}: device flushes", done.flushes / messages, "a message"),
            Figure(f"{name}: device writes", done.writes / messages, "a message", note=f"{kib:.1f} KiB"),
        ]
    return figures


def _synced_counts(root: str) -> DeviceCounts | None:
    os.sync()
    return device_counts(root)


async def _publish(broker: Broker, messages: int) -> None:
    for _ in range(messages):
        await broker.publish("q", BODY)


async def _consume(broker: Broker, messages: int) -> None:
    for _ in range(messages):
        message = await broker.fetch("q")
        assert message is not None, "as many were published"
        await message.body.aclose()
        await broker.remove("q", message.id)
