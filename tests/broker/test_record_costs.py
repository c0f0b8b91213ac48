"""Making or deleting a queue, an exchange, a binding or a schedule costs the same, however many there are."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from mq.broker import Broker, BrokerConfig, open_broker
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.format import RootUse, note_use
from mq.storage.files.inventory import keep_inventory
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.files.records import Records
from mq.storage.interface import QUEUE
from mq.storage.options import StorageOptions
from simulation.calls import RecordingCalls

LOGGED: Final = Mount("ext4", persistent=True, atomic_rename=True, ordered=True, syncfs=True, logged=True)
KINDS: Final = ("amqp-exchange", "amqp-binding", "schedule")
VALUE: Final[Mapping[str, Any]] = {"vhost": "/", "name": "x"}
FEW: Final = 100
MANY: Final = 20_000
ROUNDS: Final = 200
MOST_TIMES: Final = 1.3


def fill(root: Path, count: int) -> None:
    """Lay a root with so many queues, exchanges, bindings and schedules, as after a clean stop."""
    layout, calls = Layout.under(str(root)), LinuxCalls()
    for folder in layout.all():
        Path(folder).mkdir(parents=True)
    records = Records(calls, layout.records)
    records.keep_names()
    unsynced = records.unsynced()
    for number in range(count):
        for kind in KINDS:
            unsynced.put(kind, f"there-{number}", VALUE)
        unsynced.put(QUEUE, f"there-{number}", {"created": 1, "incarnation": 1})
        (root / "queues" / f"there-{number}").mkdir()
    keep_inventory(records)
    note_use(calls, layout, RootUse.CLEAN)


@asynccontextmanager
async def serving(root: Path, calls: RecordingCalls | None = None) -> AsyncIterator[Broker]:
    storage = FolderStorage(
        "test:", str(root), calls or LinuxCalls(), StorageOptions(log=True), mount=lambda _: LOGGED, syncfs=True
    )
    await storage.open()
    try:
        async with open_broker(storage, BrokerConfig(workers=1)) as broker:
            yield broker
    finally:
        await storage.aclose()


def verbs(broker: Broker) -> dict[str, tuple[Callable[[int], Awaitable[object]], Callable[[int], Awaitable[object]]]]:
    """For each kind of record, what makes one and what deletes it."""
    declarations = broker.declarations
    found: dict[str, Any] = {
        kind: (
            lambda number, kind=kind: declarations.put(kind, f"new-{number}", VALUE),
            lambda number, kind=kind: declarations.drop(kind, f"new-{number}"),
        )
        for kind in KINDS
    }
    found[QUEUE] = (
        lambda number: broker.create_queue(f"new-{number}"),
        lambda number: broker.delete_queue(f"new-{number}"),
    )
    return found


async def test_calls_to_change_a_record_do_not_grow_with_the_records(tmp_path: Path) -> None:
    counts: dict[int, dict[str, list[int]]] = {}
    for count in (3, 120):
        root = tmp_path / str(count)
        fill(root, count)
        calls = RecordingCalls(LinuxCalls(), str(root))
        async with serving(root, calls) as broker:
            counts[count] = {}
            for kind, changes in verbs(broker).items():
                for number in range(2):  # the first one of a kind may make its folder
                    counts[count][kind] = []
                    for change in changes:
                        before = len(calls.log)
                        await change(number)
                        counts[count][kind].append(len(calls.log) - before)
    assert counts[3] == counts[120]


async def test_many_records_are_dropped_with_few_flushes(tmp_path: Path) -> None:
    fill(tmp_path / "root", 1)
    calls = RecordingCalls(LinuxCalls(), str(tmp_path / "root"))
    async with serving(tmp_path / "root", calls) as broker:
        keys = [("amqp-binding", f"new-{number}") for number in range(400)]
        for kind, key in keys:
            await broker.declarations.put(kind, key, VALUE)
        before = len(calls.said("fdatasync"))
        await broker.declarations.drop_many([*keys, ("amqp-binding", "never there")])
        assert (await broker.declarations.records("amqp-binding")).keys() == {"there-0"}
        assert len(calls.said("fdatasync")) - before < 20


@pytest.mark.proof
@pytest.mark.timeout(900)
async def test_processor_time_to_change_a_record_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """Real time of the processor: it is what the figure is about."""
    took: dict[int, dict[str, float]] = {}
    for count in (FEW, MANY):
        fill(tmp_path / str(count), count)
        async with serving(tmp_path / str(count)) as broker:
            took[count] = {}
            for kind, changes in verbs(broker).items():
                for change, name in zip(changes, ("make", "delete"), strict=True):
                    began = time.process_time()
                    for number in range(ROUNDS):
                        await change(number)
                    took[count][f"{name} {kind}"] = (time.process_time() - began) / ROUNDS
    ratios = {name: round(took[MANY][name] / took[FEW][name], 2) for name in took[FEW]}
    assert max(ratios.values()) <= MOST_TIMES, f"{ratios}, seconds each: {took}"


@pytest.mark.proof
async def test_two_thousand_bindings_are_dropped_in_a_fifth_of_a_second(tmp_path: Path) -> None:
    """Real time: it is what the figure is about."""
    fill(tmp_path / "root", 1)
    async with serving(tmp_path / "root") as broker:
        keys = [("amqp-binding", f"new-{number}") for number in range(2000)]
        for kind, key in keys:
            await broker.declarations.put(kind, key, VALUE)
        began = time.perf_counter()
        await broker.declarations.drop_many(keys)
        assert time.perf_counter() - began <= 0.2
