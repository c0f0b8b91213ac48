"""A client of the broker that notes what it was told, and holds every answer to the promises.

What was refused for now is asked for a second time; by then the fault has been lifted, and it must be done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, open_broker
from mq.broker.config import GRACE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS
from mq.errors import (
    CorruptMessage,
    NoSuchMessage,
    NoSuchQueue,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageUnusable,
)
from mq.lifecycle import State
from mq.message import Message, MessageIds
from mq.storage.files.hop import inline_hop
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import QUEUE, Sharing
from mq.storage.options import StorageOptions
from tests.faults.ledger import Broken, Fate, Ledger, Thing, changing
from tests.faults.striking import Fault, Kind, StrikingCalls

T = TypeVar("T")

ROOT: Final = "/root"
START_NS: Final = 1_700_000_000 * 10**9
LEASE_SECONDS: Final = 0.5
LOG_BYTES: Final = 1 << 15
"""Of a segment: so few that there are checkpoints."""
ANSWER_SECONDS: Final = 60.0
"""Virtual. No answer takes longer, whatever goes wrong (P9)."""
ENOUGH: Final = 5
"""So much is asked for after the fault, to see how the same broker goes on; then the life may end."""


class Variant(NamedTuple):
    """How a store is used, and what its file system is like.

    Attributes:
        mount: how moves are made.
        sharing: with peers, though none is running, or alone.
        attributes: there are extended attributes.
        syncfs: syncfs(2) is used.
        at_once: a batch's calls are made as mq-native makes them.
        log: batches are made durable by a log.
    """

    mount: Mount
    sharing: Sharing = Sharing.ALONE
    attributes: bool = True
    syncfs: bool = True
    at_once: bool = False
    log: bool = False


class Actor:
    """One client, and the operator who starts the broker."""

    def __init__(self, variant: Variant, calls: StrikingCalls, ledger: Ledger, fault: Fault | None) -> None:
        self.ledger = ledger
        self._variant = variant
        self._calls = calls
        self._fault = fault
        self._asked_since = 0
        self._broker: Broker | None = None
        self._storage: FolderStorage | None = None

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "it does not run"
        return self._broker

    @property
    def storage(self) -> FolderStorage:
        assert self._storage is not None, "it is not open"
        return self._storage

    # The operator

    async def live(self, life: Callable[[Actor], Awaitable[None]]) -> None:
        """Open the store and a broker, let them live, and close them. An opening that fails is tried once more."""
        try:
            await self._live(life)
        except StorageUnusable:
            if not self._is_struck:
                raise
            self._calls.lift()
            await self._live(life)

    async def _live(self, life: Callable[[Actor], Awaitable[None]]) -> None:
        config = BrokerConfig(
            workers=2, peers=int(self._variant.sharing is Sharing.PEERS), visibility_seconds=LEASE_SECONDS
        )
        self._storage = self._new_storage()
        try:
            with trio.CancelScope(deadline=trio.current_time() + ANSWER_SECONDS) as scope:
                await self._storage.open()
                async with open_broker(self._storage, config, clock_ns=_wall_ns, random=Random(0)) as self._broker:
                    scope.deadline = inf
                    self._calls.lift()
                    await life(self)
                    scope.deadline = trio.current_time() + ANSWER_SECONDS
            if scope.cancelled_caught:
                raise Broken("P9: opening or closing does not end")
        finally:
            await self._storage.aclose()

    def _new_storage(self) -> FolderStorage:
        return FolderStorage(
            f"test:{ROOT}",
            ROOT,
            self._calls,
            StorageOptions(
                sharing=self._variant.sharing,
                log=self._variant.log,
                log_bytes=LOG_BYTES,
            ),
            mount=lambda root: self._variant.mount,
            hop=inline_hop,
            syncfs=self._variant.syncfs,
            ids=MessageIds(_wall_ns, 1),
            draw=Random(0).randbytes,
        )

    # The client

    async def create(self, queue: str) -> None:
        await self._change(queue, [self.ledger.queue(queue)], Fate.THERE, lambda: self.broker.create_queue(queue))

    async def delete(self, queue: str) -> None:
        things = [self.ledger.queue(queue), *self.ledger.messages(queue)]
        await self._change(queue, things, Fate.GONE, lambda: self.broker.delete_queue(queue))

    async def has_queue(self, queue: str) -> bool:
        """Whether the queue is there, which must be as its fate has it."""
        found = await self.broker.has_queue(queue)
        self.ledger.queue(queue).check(found)
        return found

    async def publish(self, queue: str, body: bytes, *, staged: bool = False, **attributes: Any) -> None:
        thing = self.ledger.publishing(queue, body, attributes)

        async def publish() -> None:
            content = await self.broker.stage(_chunks(body)) if staged else body
            thing.id = await self.broker.publish(queue, content, attributes)

        await self._change(queue, [thing], Fate.THERE, publish)

    async def stage_and_discard(self, queue: str, body: bytes) -> None:
        async def stage() -> None:
            await (await self.broker.stage(_chunks(body))).discard()

        await self._ask(queue, stage)

    async def fetch(self, queue: str) -> Thing | None:
        message: Message | None = await self._ask(queue, lambda: self.broker.fetch(queue))
        if message is None:
            return None
        try:
            body = await message.body.read()
        except CorruptMessage:
            if not self._is_struck:
                raise
            return None
        finally:
            await message.body.aclose()
        now = trio.current_time()
        return self.ledger.fetched(message, body, now, now + LEASE_SECONDS)

    async def fetch_and_vanish(self, queue: str) -> None:
        """Ask, and be gone before the answer."""

        async def vanish() -> None:
            with trio.move_on_after(0):
                await self.broker.fetch(queue)
            await wait_all_tasks_blocked()

        await self._ask(queue, vanish)

    async def remove(self, thing: Thing | None) -> None:
        if thing is not None and thing.id is not None:
            id = thing.id
            # there every name is removed by itself, and nobody knows how many there are
            in_steps = self._variant.sharing is Sharing.PEERS and not self._variant.mount.atomic_rename
            remove = partial(self.broker.remove, thing.queue, id)
            await self._change(thing.queue, [thing], Fate.GONE, remove, in_steps=in_steps)

    async def requeue(self, thing: Thing | None) -> None:
        if thing is not None and thing.id is not None:
            id, thing.leased_until = thing.id, 0.0
            await self._ask(thing.queue, lambda: self.broker.requeue(thing.queue, id))

    async def let_leases_end(self) -> None:
        await trio.sleep(LEASE_SECONDS + GRACE_SECONDS + MARGIN_SECONDS + RETRY_SECONDS)

    async def drain(self, queue: str) -> list[Thing]:
        """Fetch until there is nothing more."""
        seen = []
        while (thing := await self.fetch(queue)) is not None:
            seen.append(thing)
        return seen

    # How answers are judged

    async def _change(
        self,
        queue: str,
        things: list[Thing],
        fate: Fate,
        request: Callable[[], Awaitable[object]],
        *,
        in_steps: bool = False,
    ) -> None:
        """Ask for something that brings `things` to `fate`."""

        async def change() -> None:
            failed = self.storage._root_open.folders.volume.failure
            with changing(things, fate, in_steps=in_steps):
                await request()
            if failed:
                raise Broken("P8: changed after the medium failed")

        await self._ask(queue, change, things)

    async def _ask(self, queue: str, request: Callable[[], Awaitable[T]], things: Sequence[Thing] = ()) -> T | None:
        """The answer. What is refused for now is asked for again; None when it is refused for good."""
        if self._is_struck:
            self._asked_since += 1
            if self._asked_since > ENOUGH:
                return None
        for _ in range(2):
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    return await request()
            except StorageFull as error:
                self._check_expected(error)
            except StorageError as error:
                self._check_expected(error)
                await self._check_failed()
                return None
            except NoSuchQueue:
                self.ledger.queue(queue).check(False)
                return None
            except NoSuchMessage:
                for thing in things:
                    thing.check(False)
                return None
            except trio.TooSlowError:
                raise Broken("P9: no answer") from None
            finally:
                self._calls.lift()
            await wait_all_tasks_blocked()
        raise Broken("P8: refused for now, and once more when all was well")

    @property
    def _is_struck(self) -> bool:
        return self._fault is not None and bool(self._fault.call)

    def _check_expected(self, error: StorageError) -> None:
        """Is this the right error for what happened?"""
        if self._fault is None or not self._fault.call or self._fault.kind is Kind.SHORT:
            raise Broken(f"P7: an error for no reason: {error!r}")
        if not isinstance(error, StorageFull if self._fault.passes else StorageFailed):
            raise Broken(f"P8: the wrong error: {error!r}")

    async def _check_failed(self) -> None:
        """A medium that failed says so, and can still be looked at."""
        if not self.storage._root_open.folders.volume.failure:
            return
        if self.broker.ready:
            raise Broken("P8: the medium failed, and the broker says that it is ready")
        for queue in await self.storage.records(QUEUE):
            await self.broker.has_queue(queue)
            for found in await self.storage.read(await self.storage.scan(State.READY, queue)):
                if found is not None:
                    await found.body.read()
                    await found.body.aclose()


def _wall_ns() -> int:
    return START_NS + round(trio.current_time() * 1e9)


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]
