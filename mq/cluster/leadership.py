"""One mastership: the broker of the cluster queues, and the messages that clients hold of it.

Servers of this node and links of the others call it in the same way, by the name of a method. A leadership that is over
answers nothing more, not even what it has done: its successor may have answered already.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol

import trio

from mq.broker import Broker, Draft, Exclusion, Precedence, Published, UnackedMessage, Upload
from mq.broker.verbs import VERBS
from mq.cluster.grace_storage import GraceStorage
from mq.cluster.link_codec import Coming, Handed
from mq.cluster.pieces import Arrivals, OpenBodies
from mq.cluster.record_keeper import RecordKeeper
from mq.cluster.spool import upload_of
from mq.errors import BrokerClosed, CallerError, MQError, NoSuchQueue, NotServed, QueueHeld, ServiceLost
from mq.lifecycle import QueueOwner, made_for
from mq.message import MessageId, QueueName

logger = logging.getLogger("mq.cluster")

ENDED: Final = "the cluster's master has stopped serving the queues. Try again"
LOST: Final = (
    "the cluster's master stopped serving the queues before answering, so the outcome of the request is unknown"
)
_VERB_OF: Final = {
    "publish": "publish_many",
    "declare": "declarations.create",
    "share": "declarations.create",
    "ask_guest": "declarations.create",
}
"""What a link asks for under another name: in another form, which is safe to repeat at the next leader."""
_ASKED_OTHERWISE: Final = frozenset({"create_queue", *_VERB_OF.values()})


class Holder:
    """The messages and exclusions that one client of a leadership holds: a link, or this node's own servers.

    Attributes:
        arrivals: large bodies that it publishes.
        bodies: large bodies that it reads.
    """

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.bodies = OpenBodies()
        self.held: dict[int, UnackedMessage] = {}
        self.exclusions: dict[int, Exclusion] = {}
        self._last = 0

    def number(self) -> int:
        """A new number for something that is held."""
        self._last += 1
        return self._last

    def take(self, numbers: Sequence[int]) -> list[UnackedMessage]:
        """Let go of these numbers; returns the messages that were still held under them."""
        return [self.held.pop(number) for number in numbers if number in self.held]

    def end_exclusion(self, number: int) -> None:
        """End the exclusion of that number."""
        exclusion = self.exclusions.pop(number, None)
        if exclusion is not None:
            exclusion.end()


class Guest(Protocol):
    """What lives with a leadership: it works over its broker, and nodes ask it."""

    async def answer(self, method: str, args: Sequence[Any]) -> Any:
        """The answer to what a node asks, JSON."""


class NoGuest:
    """No guest: a leadership that answers no questions."""

    async def answer(self, method: str, args: Sequence[Any]) -> Any:
        """Nothing can be asked."""
        raise CallerError(f"unknown method {method}")


class Leadership:
    """One mastership, from its beginning on.

    Args:
        is_ours: whether no other node can be master yet.
    """

    def __init__(
        self, number: int, broker: Broker, store: GraceStorage, keeper: RecordKeeper, is_ours: Callable[[], bool]
    ) -> None:
        self.number = number
        self.broker = broker
        self.guest: Guest = NoGuest()
        self._store = store
        self._is_ours = is_ours
        self._has_ended = False
        self._scopes: set[trio.CancelScope] = set()
        self._publishing: dict[MessageId, trio.Event] = {}
        self._waiting: Counter[str] = Counter()
        self._own: dict[str, Callable[..., Awaitable[Any]]] = {
            "publish": self._publish,
            "publish_in_pieces": self._publish_in_pieces,
            "piece": self._piece,
            "body_piece": lambda holder, number: holder.bodies.piece(number),
            "close_body": lambda holder, number: holder.bodies.close(number),
            "contains_digest": lambda _, queue, size, digest: broker.contains(queue, upload_of(size, digest)),
            "declare": self._declare,
            "share": lambda _, puts, drops: keeper.change(puts, drops),
            "ask_guest": lambda _, method, args: self.guest.answer(method, args),
            "delete_queue": lambda _, queue: keeper.delete_queue(queue),
            "ready": self._ready,
            "hold": self._hold,
            "exclude": self._exclude,
            "end_exclusion": self._end_exclusion,
            "acknowledge": self._acknowledge,
            "put_back": self._put_back,
            "reject": self._reject,
        }

    def end(self) -> None:
        """End it, from this instant on. Running calls raise ServiceLost."""
        self._has_ended = True
        for scope in self._scopes:
            scope.cancel()

    async def perform(self, holder: Holder, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a method.

        Raises:
            NotServed: the term is over.
            ServiceLost: it ended meanwhile.
        """
        self._check()
        with self._guarded(shield=_finishes(method)) as scope:
            try:
                value = await self._call(holder, method, args, named)
            except BrokerClosed as error:
                raise ServiceLost(LOST) from error
        if scope.cancelled_caught or self.is_over:
            raise ServiceLost(LOST)
        logger.debug(
            "the master for term %d answered request %s at monotonic time %d ns",
            self.number,
            method,
            time.monotonic_ns(),
        )
        return value

    async def release(self, holder: Holder) -> None:
        """Give back everything that a client held."""
        for exclusion in holder.exclusions.values():
            exclusion.end()
        await holder.bodies.close_all()
        held = holder.take(list(holder.held))
        if held and not self._has_ended:
            with self._guarded(shield=True):
                try:
                    await self.broker.put_back(held)
                except MQError as error:
                    logger.warning(
                        "temporarily unable to requeue the messages that were leased over a lost cluster link: %s",
                        error,
                    )

    # How it is done

    def _check(self) -> None:
        if self.is_over:
            raise NotServed(ENDED)

    @property
    def is_over(self) -> bool:
        """Whether the term has ended, or may have ended by the clock."""
        return self._has_ended or not self._is_ours()

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
            return await _asked(method, self._own[method], holder, *args, **named)
        if method not in VERBS or method in _ASKED_OTHERWISE:
            raise CallerError(f"unknown method {method}")
        target: Any = self.broker
        for name in method.split("."):
            target = getattr(target, name)
        return await _asked(method, target, *args, **named)

    async def _publish(
        self, _: Holder, queue: str, drafts: Sequence[Draft], is_again: bool
    ) -> list[Published | MQError]:
        """Store messages whose ids the caller chose; with `is_again` only those not stored before."""
        return await self._store_fresh(queue, drafts, await self._which_are_stored(queue, drafts, is_again))

    async def _publish_in_pieces(
        self, holder: Holder, queue: str, drafts: Sequence[Draft], is_again: bool
    ) -> list[Published | MQError]:
        """As :meth:`_publish`, once the bodies that are :class:`Coming` have arrived. Nothing is stored where the
        caller goes before."""
        are_stored = await self._which_are_stored(queue, drafts, is_again)
        if all(are_stored):
            return [_as_stored(draft) for draft in drafts]
        # From here on: a second try, over the next link, waits for this one, whose link may not be known to be lost.
        with self._marked(drafts):
            return await self._store_arriving(holder, queue, drafts, are_stored)

    async def _store_arriving(
        self, holder: Holder, queue: str, drafts: Sequence[Draft], are_stored: Sequence[bool]
    ) -> list[Published | MQError]:
        refused: dict[int, MQError] = {}
        uploads: dict[int, Upload] = {}
        is_given = False
        try:
            for place, draft in enumerate(drafts):
                body: Any = draft.body
                if not isinstance(body, Coming):
                    continue
                with holder.arrivals.of(body.number) as arrival:
                    async with aclosing(arrival.pieces(body.size)) as pieces:
                        try:
                            if not are_stored[place]:
                                uploads[place] = await self.broker.stage(pieces)
                        except CallerError as error:
                            refused[place] = error
                        if place + 1 < len(drafts):  # what comes behind it comes after all of it
                            await _pass_over(pieces)
            await trio.lowlevel.checkpoint_if_cancelled()
            places = [place for place in range(len(drafts)) if place not in refused]
            given = [drafts[place]._replace(body=uploads.get(place, drafts[place].body)) for place in places]
            is_given = True
            with self._guarded(shield=True) as scope:
                outcomes = iter(await self._store_fresh(queue, given, [are_stored[place] for place in places]))
        finally:
            if not is_given:
                for upload in uploads.values():
                    await upload.discard()
        if scope.cancelled_caught:
            raise ServiceLost(LOST)
        return [refused[place] if place in refused else next(outcomes) for place in range(len(drafts))]

    async def _piece(self, holder: Holder, number: int, data: bytes) -> None:
        with holder.arrivals.of(number) as arrival:
            await arrival.put(data)

    async def _which_are_stored(self, queue: str, drafts: Sequence[Draft], is_again: bool) -> list[bool]:
        return [is_again and await self._is_stored(queue, draft.id) for draft in drafts]

    async def _store_fresh(
        self, queue: str, drafts: Sequence[Draft], are_stored: Sequence[bool]
    ) -> list[Published | MQError]:
        fresh = [draft for draft, is_stored in zip(drafts, are_stored, strict=True) if not is_stored]
        with self._marked(fresh):
            outcomes = iter(await self.broker.publish_many(queue, fresh) if fresh else ())
        return [
            _as_stored(draft) if is_stored else next(outcomes)
            for draft, is_stored in zip(drafts, are_stored, strict=True)
        ]

    @contextmanager
    def _marked(self, drafts: Sequence[Draft]) -> Iterator[None]:
        """They are being published, so a second try waits."""
        done = trio.Event()
        ids = [draft.id for draft in drafts if draft.id is not None]
        self._publishing.update(dict.fromkeys(ids, done))
        try:
            yield
        finally:
            for id in ids:
                self._publishing.pop(id, None)
            done.set()

    async def _is_stored(self, queue: str, id: MessageId | None) -> bool:
        if id is None:
            return False  # it has a key of its own, which tells
        while id in self._publishing:
            await self._publishing[id].wait()
        return await self._store.knows(await self._dead_letter_path(queue), id)

    async def _dead_letter_path(self, queue: str) -> list[str]:
        """Return a queue, and the queues that its dead letters may have been moved to."""
        path: list[str] = []
        name: str | None = queue
        while name is not None and name not in path:
            path.append(name)
            try:
                name = (await self.broker.status(name)).settings.dead_letter_queue
            except NoSuchQueue:
                break  # a message that was stored before its queue was deleted is not stored again
        return path

    async def _declare(
        self,
        _: Holder,
        queue: str,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        owner: Sequence[Any] | None,
    ) -> bool:
        with made_for(None if owner is None else QueueOwner(*owner)):
            return await self.broker.declarations.create(QueueName(queue), settings, declared, is_transient=False)

    async def _ready(self, _: Holder, queue: str) -> int:
        return self.broker.declarations.ready(queue)

    async def _hold(
        self, holder: Holder, queue: str, most: int, wait: float, exclusion: int | None, priority: int
    ) -> list[Handed]:
        alone = holder.exclusions.get(exclusion) if exclusion is not None else None
        if alone is None:
            self._waiting[queue] += 1
        precedence = Precedence(priority)
        try:
            held = await self.broker.hold(queue, most, wait=wait, exclusion=alone, precedence=precedence)
        finally:
            precedence.step_aside()  # its next request may come through another master
            if alone is None:
                self._waiting[queue] -= 1
        handed = []
        for each in held:
            number = holder.number()
            holder.held[number] = each.to_settle()
            handed.append(Handed(number, each.message, each.redelivered))
        return handed

    async def _exclude(self, holder: Holder, queue: str, in_turn: bool) -> int:
        if self._waiting[queue] and not in_turn:
            raise QueueHeld(f"queue {queue} has other consumers. Try again after they have disconnected")
        exclusion = await self.broker.exclude(queue, in_turn=in_turn)
        number = holder.number()
        holder.exclusions[number] = exclusion
        return number

    async def _end_exclusion(self, holder: Holder, number: int) -> None:
        holder.end_exclusion(number)

    async def _acknowledge(self, holder: Holder, numbers: Sequence[int], durable: bool) -> Any:
        return await self.broker.acknowledge(holder.take(numbers), durable=durable)

    async def _reject(self, holder: Holder, numbers: Sequence[int]) -> Any:
        return await self.broker.reject(holder.take(numbers))

    async def _put_back(
        self,
        holder: Holder,
        numbers: Sequence[int],
        redelivered: bool,
        to_back: bool,
        failed: bool = False,
        most: int | None = None,
    ) -> None:
        held = holder.take(numbers)
        await self.broker.put_back(held, redelivered=redelivered, to_back=to_back, failed=failed, most=most)


def _asked(method: str, target: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Awaitable[Any]:
    """Call it. A neighbour that gives it other arguments is refused, before anything of it has run."""
    try:
        return target(*args, **named)
    except TypeError as error:
        raise CallerError(f"invalid arguments for the method {method}") from error


async def _pass_over(pieces: AsyncIterable[bytes]) -> None:
    async for _ in pieces:
        pass


def _as_stored(draft: Draft) -> Published:
    assert draft.id is not None
    return Published(draft.id)


class LocalLeader:
    """A :class:`~mq.cluster.directory.Leader`: this node's own leadership, asked by its own servers."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._holder = Holder()

    @property
    def term(self) -> int:
        """The number of the leadership."""
        return self._leadership.number

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a method of the leadership."""
        return await self._leadership.perform(self._holder, method, args, named)

    def end_exclusion(self, number: int) -> None:
        """End the exclusion of a consumer that has gone."""
        self._holder.end_exclusion(number)

    def leave(self) -> None:
        """Nothing to do: the leadership ends by itself."""


def _finishes(method: str) -> bool:
    """Whether a method finishes even after its caller has gone."""
    verb = VERBS.get(_VERB_OF.get(method, method))
    return verb is not None and verb.finishes
