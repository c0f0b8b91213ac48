"""What a message costs in numbers that do not wander: system calls, syncs, device writes and flushes."""

from __future__ import annotations

import functools
import shutil
from collections import Counter

from benchmarks.embedded import consume_one, phase, publish_one, settled
from benchmarks.figures import Figure
from benchmarks.machine import DeviceCounts, device_counts, write_back
from benchmarks.recorded import CountingCalls, open_recorded
from mq.broker import open_broker


async def measure(folder: str, messages: int, clients: int) -> list[Figure]:
    """Per message, with so many clients at a time."""
    calls = CountingCalls()
    root = f"{folder}/counted"
    try:
        async with open_recorded(root, calls) as storage, open_broker(storage) as broker:
            await broker.create_queue("q")
            figures = []
            storage.take_groups()
            for what, act in (("publish", publish_one), ("fetch and remove", consume_one)):
                before, disk = Counter(calls.counts), _synced_counts(root)
                done = await phase(storage, messages, clients, functools.partial(act, broker))
                await settled(storage, done.groups, messages)  # what is done after the answer counts, too
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
    write_back(root)
    return device_counts(root)
