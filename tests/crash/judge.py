"""Opens a root after a crash as a daemon does, and holds what is there against what clients were told.

The clock stands still at the instant of the cut: a lease that ran then still runs, however long judging takes. Or it
was set by years while nobody ran, as on a machine that has none of its own; in the life after that it is right again.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio
from trio.testing import MockClock

from mq.broker import Broker, BrokerConfig, Draft, Published, open_broker
from mq.errors import CorruptMessage, MQError
from mq.lifecycle import State
from mq.message import Body, MessageId, Properties
from mq.storage import groups
from mq.storage.interface import QUEUE, Entry, Storage
from mq.storage.registry import open_storage
from tests.crash.ledger import Claim, Ledger, digest
from tests.crash.workload import LOG_BYTES

LONGEST_SECONDS: Final = 60.0
_AT_ONCE: Final = 16
_LEASE_SECONDS: Final = 3600.0
_USED: Final = "used-later"
_DEAD: Final = "dead-later"
_LATER: Final = b"published later"

KINDS: Final = (
    "lost",  # an acknowledged message is not there
    "back",  # a removed message, or one of a deleted queue, is there again
    "torn",  # a message is handed out that is not whole
    "invented",  # one that was never published
    "lease broken",  # one that somebody else holds
    "queue lost",  # a queue that was made is not there
    "queue back",  # a deleted one is
    "doubled",  # one message is there twice
    "torn left",  # what recovery should have taken away
    "refused",  # mq does not open the root
)
"""What can be wrong, the worst first."""


class Flaw(NamedTuple):
    """A promise that was broken."""

    kind: str
    detail: str


def worst(flaws: Iterable[Flaw]) -> str:
    """The worst kind there is; empty for none."""
    return min((flaw.kind for flaw in flaws), key=KINDS.index, default="")


def judge(root: Path, ledger: Ledger, now_ns: int, step_ns: int = 0) -> list[Flaw]:
    """Every promise that the store in `root` breaks, seen at the instant `now_ns` by a clock that was set by `step_ns`,
    and in the life after that one by a clock that is right."""
    return trio.run(_judge, root, ledger, now_ns, step_ns, clock=MockClock())


def recover(root: Path, now_ns: int) -> None:
    """Open the store as a daemon does after a crash, and close it again, at the instant `now_ns`."""

    async def open_and_close() -> None:
        async with _in_time(), _opened(root) as storage, open_broker(storage, clock_ns=lambda: now_ns):
            pass

    trio.run(open_and_close, clock=MockClock())


def _opened(root: Path) -> AbstractAsyncContextManager[Storage]:
    has_log = (root / "state" / "log").exists()
    return open_storage(f"posix:{root}", log=has_log, log_bytes=LOG_BYTES)


async def _judge(root: Path, ledger: Ledger, now_ns: int, step_ns: int) -> list[Flaw]:
    court = _Court(ledger, now_ns, step_ns)
    config = BrokerConfig(visibility_seconds=_LEASE_SECONDS)
    try:
        async with _in_time():
            async with _opened(root) as storage:
                await groups.redo(storage)  # first, as a broker does: what an intent undoes was never handed out
                await court.look(storage)
                async with open_broker(storage, config, clock_ns=lambda: now_ns + step_ns) as broker:
                    await court.fetch(broker)
                    await court.use(broker)
            async with open_storage(f"posix:{root}") as storage:
                async with open_broker(storage, config, clock_ns=lambda: now_ns):
                    await trio.testing.wait_all_tasks_blocked()
                await court.look_again(storage)
    except* (MQError, AssertionError) as errors:
        room = os.statvfs(root)
        free = f"{room.f_bavail} of {room.f_blocks} blocks and {room.f_favail} of {room.f_files} inodes are free"
        court.flaws.append(Flaw("refused", f"{errors.exceptions!r}, where {free}"))
    else:
        court.weigh()
    return court.flaws


class _Court:
    def __init__(self, ledger: Ledger, now_ns: int, step_ns: int) -> None:
        self.flaws: list[Flaw] = []
        self._ledger = ledger
        self._now_ns = now_ns
        self._leases_end = step_ns > 0  # by the clock, which has been set ahead
        self._used: dict[str, str] = {}
        self._queues: set[str] = set()
        self._present: dict[str, Entry] = {}
        self._handed: Counter[str] = Counter()
        self._contents: dict[str, str] = {}

    def _blame(self, kind: str, detail: str) -> None:
        self.flaws.append(Flaw(kind, detail))

    async def look(self, storage: Storage) -> None:
        """At what recovery has left: every message once, each of them whole."""
        self._queues = set(await storage.records(QUEUE))
        entries = await storage.scan(State.NEW) + await storage.scan(State.DELAYED)
        for queue in self._queues:
            entries += await storage.scan(State.READY, queue)
        entries = [entry for entry in entries if entry.queue in self._queues]  # others can never be handed out
        for entry in entries:
            if entry.id in self._present:
                self._blame("doubled", f"{entry} and {self._present[entry.id]}")
            self._present[entry.id] = entry
        for start in range(0, len(entries), _AT_ONCE):
            await self._read(storage, entries[start : start + _AT_ONCE])

    async def use(self, broker: Broker) -> None:
        """Publish where there are queues and in a new one, and let a message die: the next life has all of it."""
        for queue in (_USED, _DEAD):
            await broker.create_queue(queue)
        await broker.change_settings(_USED, {"dead_letter_queue": _DEAD})
        for queue in sorted(self._queues | {_USED}):
            self._used[await broker.publish(queue, _LATER)] = queue
        # Where the clock was set ahead, the windows of the keys have ended.
        for queue, key in () if self._leases_end else sorted(self._ledger.keyed):
            await self._publish_again(broker, queue, key)
        [held] = await broker.hold(_USED)
        await broker.reject([held])
        await held.message.body.aclose()
        self._used[held.message.id] = _DEAD

    async def _publish_again(self, broker: Broker, queue: str, key: str) -> None:
        """With its key a message is published once: it is there, or known to have been, or is published now."""
        [outcome] = await broker.publish_many(queue, [Draft(_LATER, key=key)])
        assert isinstance(outcome, Published), outcome
        before = self._contents.get(key)
        if outcome.is_new:
            self._used[outcome.id] = queue
            answered = [id for id, message in self._ledger.messages.items() if message.digest == key]
            if before is not None or answered:
                self._blame("doubled", f"the key of {before or answered} in {queue} stands for nothing")
        elif outcome.id != before and outcome.id not in self._ledger.messages:
            self._blame("lost", f"a key stands for {outcome.id}, which was never there")

    async def look_again(self, storage: Storage) -> None:
        """Whatever was there is still there, as nobody removed any of it, and all that came since."""
        entries = await storage.scan(State.NEW) + await storage.scan(State.DELAYED)
        for queue in await storage.records(QUEUE):
            entries += await storage.scan(State.READY, queue)
        there = {entry.id: entry.queue for entry in entries}
        expected = {id: entry.queue for id, entry in self._present.items()} | self._used
        for id, queue in expected.items():
            if there.get(MessageId(id)) != queue:
                self._blame("lost", f"{id} of {queue} was there a life ago, and is not: {there.get(MessageId(id))}")

    async def _read(self, storage: Storage, entries: Sequence[Entry]) -> None:
        for entry, found in zip(entries, await storage.read(entries), strict=True):
            assert found is not None, f"{entry} was listed"
            try:
                await self._compare(entry.id, found.properties, found.body)
            except CorruptMessage as error:
                self._blame("torn left", f"{entry}: {error}")
            finally:
                await found.body.aclose()

    async def fetch(self, broker: Broker) -> None:
        """All that a consumer gets at this instant."""
        deleted = {queue for queue, claim in self._ledger.queues.items() if claim is Claim.GONE} - self._queues
        for queue in deleted:  # made anew, it must be empty
            await broker.create_queue(queue)
        for queue in sorted(self._queues | deleted):
            while await self._fetch_some(broker, queue):
                pass

    async def _fetch_some(self, broker: Broker, queue: str) -> bool:
        """Several at a time, so that they share a barrier. False when there is nothing more."""
        got: list[bool] = []

        async def fetch_one() -> None:
            message = await broker.fetch(queue)
            got.append(message is not None)
            if message is not None:
                self._handed[message.id] += 1
                try:
                    await self._compare(message.id, message.properties, message.body)
                except CorruptMessage as error:
                    self._blame("torn", f"{message.id}: {error}")
                finally:
                    await message.body.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(fetch_one)
        return all(got)

    async def _compare(self, id: str, properties: Properties, body: Body) -> None:
        content = digest(await body.read(), str(properties.attributes.get("content_type", "")))
        self._contents[content] = id
        known = self._ledger.messages.get(id)
        if known is not None and known.digest != content:
            self._blame("torn", f"{id} has other bytes, or another content type, than were published")
        elif content not in self._ledger.attempted and content != digest(_LATER, ""):
            self._blame("invented", f"{id} was never published: {properties}")

    def weigh(self) -> None:
        """Everything seen against everything promised."""
        for queue, claim in self._ledger.queues.items():
            if claim is Claim.THERE and queue not in self._queues:
                self._blame("queue lost", queue)
            elif claim is Claim.GONE and queue in self._queues:
                self._blame("queue back", queue)
        for id, times in self._handed.items():
            if times > 1:
                self._blame("doubled", f"{id} was handed out {times} times")
        for id, known in self._ledger.messages.items():
            there = self._present.get(id)
            if known.claim is Claim.THERE:
                self._weigh_one(id, known.leased_until_ns)
            elif known.claim is Claim.GONE and (there is not None or id in self._handed):
                self._blame("back", f"{id} of {known.queue}: {there}")

    def _weigh_one(self, id: str, leased_until_ns: int) -> None:
        there = self._present.get(id)
        if there is None:
            self._blame("lost", f"{id} of {self._ledger.messages[id].queue}")
            return
        if self._leases_end and there.state is State.DELAYED:
            return
        if leased_until_ns > self._now_ns and not self._leases_end:
            deadline_ns = (there.meta.deadline_ms or 0) * 1_000_000
            if id in self._handed or there.state is not State.DELAYED or deadline_ns < leased_until_ns:
                self._blame("lease broken", f"{id}: {there}, handed out {self._handed[id]} times")
        elif there.state is not State.DELAYED and id not in self._handed:
            self._blame("lost", f"{id} is there but not handed out: {there}")


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """The block ends within LONGEST_SECONDS of real time, whatever Trio's clock says."""
    ended = threading.Event()

    async def watch() -> None:
        if not await trio.to_thread.run_sync(ended.wait, LONGEST_SECONDS, abandon_on_cancel=True):
            raise TimeoutError(f"not judged within {LONGEST_SECONDS} seconds")

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
    finally:
        ended.set()
