"""One mastership: the broker of the highly available queues, and who holds what of it.

Whoever asks, a door of this node or a link of another one, asks by the name of a method, so that both go the same way.
A term that is over answers nothing more: not even what it has done, for its successor may have answered already.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from mq.broker import Broker, Draft, Exclusion, Held, Published
from mq.cluster.kept import KeptStorage
from mq.cluster.wire import Handed
from mq.errors import BrokerClosed, CallerError, MQError, NotServed, QueueHeld
from mq.message import MessageId, QueueName

logger = logging.getLogger("mq.cluster")

ENDED: Final = "the node that served the highly available queues does so no more: try again"

_PLAIN: Final = frozenset(
    (
        *("has_queue", "delete_queue", "change_settings", "status", "queues", "purge", "redrive", "contains"),
        *("fetch_many", "give_back", "take", "remove", "remove_many", "requeue", "extend", "show", "peek"),
        *(f"claims.{verb}" for verb in ("consumers", "consumer", "start", "claim", "read", "acknowledge", "forget")),
        *("browsing.browse", "browsing.ranges"),
    )
)
"""Methods of the broker that are called as they are."""
_WHOLE: Final = frozenset({"publish", "declare", "acknowledge", "put_back", "reject"})
"""What is finished although whoever asked has gone."""


class Holder:
    """Somebody who holds messages of one term: a link, or this node's own doors."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.exclusions: dict[int, Exclusion] = {}
        self._last = 0

    def number(self) -> int:
        """A new one."""
        self._last += 1
        return self._last

    def take(self, numbers: Sequence[int]) -> list[Held]:
        """What is still held of these, which is held no longer."""
        return [self.held.pop(number) for number in numbers if number in self.held]

    def end_exclusion(self, number: int) -> None:
        """Others may have messages of that queue, too."""
        exclusion = self.exclusions.pop(number, None)
        if exclusion is not None:
            exclusion.end()


class Term:
    """A mastership. It begins when it is made.

    Args:
        number: higher than that of every term before.
        broker: over the cluster's store.
        store: the same store.
        is_ours: whether nobody else can be master yet.
        opened: told of each queue that is made, and of what was declared of it.
    """

    def __init__(
        self,
        number: int,
        broker: Broker,
        store: KeptStorage,
        is_ours: Callable[[], bool],
        opened: Callable[[str, Mapping[str, Any] | None], None],
    ) -> None:
        self.number = number
        self.broker = broker
        self._store = store
        self._is_ours = is_ours
        self._opened = opened
        self._has_ended = False
        self._scopes: set[trio.CancelScope] = set()
        self._publishing: dict[MessageId, trio.Event] = {}
        self._waiting: Counter[str] = Counter()
        self._own: dict[str, Callable[..., Awaitable[Any]]] = {
            "publish": self._publish,
            "declare": self._declare,
            "ready": self._ready,
            "hold": self._hold,
            "exclude": self._exclude,
            "end_exclusion": self._end_exclusion,
            "acknowledge": self._acknowledge,
            "put_back": self._put_back,
            "reject": self._reject,
        }

    def end(self) -> None:
        """It is over, from this instant on. Who is being served is told so."""
        self._has_ended = True
        for scope in self._scopes:
            scope.cancel()

    async def perform(self, holder: Holder, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a method.

        Args:
            holder: who asks.
            method: its name.
            args: what it is called with.
            named: the same, by name.

        Raises:
            NotServed: the term is over; what was asked for may have been done.
            MQError: what the method raises.
        """
        self._check()
        with self._guarded(shield=method in _WHOLE) as scope:
            try:
                value = await self._call(holder, method, args, named)
            except BrokerClosed as error:
                raise NotServed(ENDED) from error
        if scope.cancelled_caught:
            raise NotServed(ENDED)
        self._check()
        logger.debug("term %d answers %s at %d", self.number, method, time.monotonic_ns())
        return value

    async def release(self, holder: Holder) -> None:
        """Somebody has gone: what they held goes back."""
        for exclusion in holder.exclusions.values():
            exclusion.end()
        held = holder.take(list(holder.held))
        if held and not self._has_ended:
            with self._guarded(shield=True):
                try:
                    await self.broker.put_back(held)
                except MQError as error:
                    logger.warning("what a link held comes back later: %s", error)

    # How it is done

    def _check(self) -> None:
        if self._has_ended or not self._is_ours():
            raise NotServed(ENDED)

    @contextmanager
    def _guarded(self, *, shield: bool) -> Iterator[trio.CancelScope]:
        with trio.CancelScope(shield=shield) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    async def _call(self, holder: Holder, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if method in self._own:
            return await self._own[method](holder, *args, **named)
        if method not in _PLAIN:
            raise CallerError(f"{method} is nothing that can be asked of a master")
        target: Any = self.broker
        for name in method.split("."):
            target = getattr(target, name)
        return await target(*args, **named)

    async def _publish(
        self, _: Holder, queue: str, drafts: Sequence[Draft], is_again: bool
    ) -> list[Published | MQError]:
        """Store messages whose ids were chosen by who asks; those not again that were stored the first time."""
        are_stored = [is_again and await self._is_stored(queue, draft.id) for draft in drafts]
        fresh = [draft for draft, is_stored in zip(drafts, are_stored, strict=True) if not is_stored]
        done = trio.Event()
        ids = [draft.id for draft in fresh if draft.id is not None]
        self._publishing.update(dict.fromkeys(ids, done))
        try:
            outcomes = iter(await self.broker.publish_many(queue, fresh) if fresh else ())
        finally:
            for id in ids:
                self._publishing.pop(id, None)
            done.set()
        return [
            _as_stored(draft) if is_stored else next(outcomes)
            for draft, is_stored in zip(drafts, are_stored, strict=True)
        ]

    async def _is_stored(self, queue: str, id: MessageId | None) -> bool:
        if id is None:
            return False  # it has a key of its own, which tells
        while id in self._publishing:
            await self._publishing[id].wait()
        if await self._store.knows(queue, id):
            return True
        grave = (await self.broker.status(queue)).settings.dead_letter_queue
        return grave is not None and await self._store.knows(grave, id)

    async def _declare(
        self, _: Holder, queue: str, settings: Mapping[str, Any], declared: Mapping[str, Any] | None
    ) -> bool:
        made = await self.broker.declarations.create(QueueName(queue), settings, declared, is_transient=False)
        if made:
            self._opened(queue, declared)
        return made

    async def _ready(self, _: Holder, queue: str) -> int:
        return self.broker.declarations.ready(queue)

    async def _hold(self, holder: Holder, queue: str, most: int, wait: float, exclusion: int | None) -> list[Handed]:
        alone = holder.exclusions.get(exclusion) if exclusion is not None else None
        if alone is None:
            self._waiting[queue] += 1
        try:
            held = await self.broker.hold(queue, most, wait=wait, exclusion=alone)
        finally:
            if alone is None:
                self._waiting[queue] -= 1
        handed = []
        for each in held:
            number = holder.number()
            holder.held[number] = each
            handed.append(Handed(number, each.message, each.redelivered))
        return handed

    async def _exclude(self, holder: Holder, queue: str) -> int:
        if self._waiting[queue]:
            raise QueueHeld(f"queue {queue} has other consumers. Try again when they have gone")
        exclusion = await self.broker.exclude(queue)
        number = holder.number()
        holder.exclusions[number] = exclusion
        return number

    async def _end_exclusion(self, holder: Holder, number: int) -> None:
        holder.end_exclusion(number)

    async def _acknowledge(self, holder: Holder, numbers: Sequence[int], durable: bool) -> None:
        await self.broker.acknowledge(holder.take(numbers), durable=durable)

    async def _put_back(self, holder: Holder, numbers: Sequence[int], redelivered: bool, to_back: bool) -> None:
        await self.broker.put_back(holder.take(numbers), redelivered=redelivered, to_back=to_back)

    async def _reject(self, holder: Holder, numbers: Sequence[int]) -> None:
        await self.broker.reject(holder.take(numbers))


def _as_stored(draft: Draft) -> Published:
    assert draft.id is not None
    return Published(draft.id)
