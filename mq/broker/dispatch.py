"""Dispatch: which fetch request gets which message, and how.

:class:`FetchWorker` chooses messages for waiting requests (:mod:`mq.broker.waiters`) group by group; it chooses the
next group before the leases of the last are durable. :class:`Deliverer` answers in the order of the leases. Two ways
are shorter:

* :class:`DirectDispatch` leases a message in the batch that writes it, if a request waits by then: one barrier makes
  both durable. Only the first message of a queue goes this way, which keeps the order.
* :class:`UnackedDeliverer` leaves a held message READY in the store, and notes its holder in memory only. A hold costs
  no move, and ends with the process.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import trio

from mq import turns
from mq.broker.bodies import close
from mq.broker.catalog import LARGEST_BODY
from mq.broker.commit import BatchTimes
from mq.broker.config import MARGIN_SECONDS
from mq.broker.core import Core
from mq.broker.dead_letters import DeadLetters
from mq.broker.index import QueueIndex
from mq.broker.jobs import MoveJob
from mq.broker.leases import Leases
from mq.broker.message_groups import number_of
from mq.broker.upkeep import Upkeep
from mq.broker.waiters import BatchChannel, FetchRequest, Waiters, WaitQueue
from mq.broker.watched_body import WatchedBody
from mq.errors import MQError, NoSuchQueue, StorageError, StorageSlow
from mq.lifecycle import Kind, State
from mq.message import Body, BytesBody, DamagedBody, Message, MessageId, Properties, checksum
from mq.storage.interface import (
    FRESH,
    MOST_MOVED_ON,
    Entry,
    Meta,
    Move,
    Operation,
    Outcome,
    Result,
    Staged,
    Stored,
    Write,
)
from mq.storage.records import error_of

logger = logging.getLogger("mq.broker")

_DONE: Final = Result.DONE  # quicker than an attribute of the enumeration
_LEASE: Final = Kind.LEASE
LARGEST_GROUP: Final = 1024
"""Messages, or queues, that a worker takes up in one turn."""
MOST_NOW: Final = 16
"""Messages that a fetch leases in its own step: a worker shares out more, in turns."""
LONGEST_SLICE: Final = 256
"""Messages that are opened, or given to consumers, at a time."""
LARGEST_ANSWER: Final = 8 << 20
"""Bytes of bodies after which a request gets no more messages."""
_LONGEST_PAUSE_SECONDS: Final = 0.009
"""The longest pause before a broker with peers looks at the store for a queue that has few messages."""


class Assignment(NamedTuple):
    """A message and the request that is to get it, by a lease or a removal. The catalog has begun its move."""

    request: FetchRequest
    entry: Entry
    stored: Stored | None = None


class Fulfilment:
    """The answer to one request, while it is put together.

    Attributes:
        error: the request fails with it if there is no message.
        size: bytes of the bodies.
        seconds: length of its leases; 0 of removals.
        latest: the last instant at which a lease may be handed out (Trio's clock): half of its certain time is over.
        ends: when its leases end (Trio's clock); momentary ones, if their messages are not handed out.
        broken: message groups of which one message cannot be handed out, so none behind it may be.
    """

    size = 0
    error: MQError | None = None
    seconds = 0.0
    latest = ends = math.inf
    broken: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.messages: list[Message] = []

    def leave_out(self, request: FetchRequest, entry: Entry) -> None:
        """Note that a message cannot be handed out, though it is there."""
        if request.index.groups is not None:
            self.broken |= {number_of(entry.id)}

    def is_out_of_turn(self, entry: Entry) -> bool:
        """Whether an earlier message of its group was left out."""
        return number_of(entry.id) in self.broken


class ReadyMessages:
    """Chooses the next message of a queue that may be delivered, for leases, removals, gets and consumers alike.

    Args:
        upkeep: ends messages that have expired, or were received too often.

    Attributes:
        is_cut: whether the last :meth:`take` stopped at a turn's worth of such messages: ask again in another step.
    """

    def __init__(self, core: Core, upkeep: Upkeep) -> None:
        self.is_cut = False
        self._turns = turns.of_run()
        self._catalog = core.catalog
        self._committer = core.committer
        self._upkeep = upkeep
        self._recent = core.catalog.recent
        self._peers = core.config.peers
        self._random = core.random

    def take_now(self, index: QueueIndex, most: int, *, to_hold: bool) -> list[Entry] | None:
        """Take up to `most` messages in the caller's step, for a fetch, a get or consumers; none if none is READY.
        None if a worker has to serve them: another message may come first, or a body has to be read.

        Args:
            to_hold: whether a connection is to hold them, so that their bodies have to be in memory. A lease has a
                commit to wait for, in which bodies can be read.
        """
        if index.deleted or index.settings.paused or self._committer.failure:
            return None
        if to_hold and not index.is_plain():
            return None
        if not to_hold and has_to_catch_up(index, most):
            return None
        entries: list[Entry] = []
        last: MessageId | None = None
        while len(entries) < most and (entry := self.take(index, last)) is not None:
            entries.append(entry)
            last = entry.id
            if to_hold and not self._recent.has(last):
                for each in entries:
                    index.add(each)
                return None
        return entries if entries or not self.is_cut else None

    def take(self, index: QueueIndex, last: MessageId | None = None) -> Entry | None:
        """Take the next message that may be delivered, out of the index; None without one, or where :attr:`is_cut`.
        `last` is what the same request got just before."""
        self.is_cut = False
        while (entry := self._candidate(index) if self._peers else index.take(last)) is not None:
            # A locked one is passed over: a peer has brought here what this broker is moving from elsewhere. A fresh
            # one has no time to live, and was never received.
            if entry.id not in self._catalog.locks and (entry.meta is FRESH or not self._upkeep.is_dead(index, entry)):
                return entry
            last = entry.id  # no other of its group has to wait for one that is dead
            if self._turns.spend(turns.LIGHT):
                self.is_cut = True
                return None
        return None

    def _candidate(self, index: QueueIndex) -> Entry | None:
        candidates = index.first(self._peers + 1)  # any of these, so that brokers seldom want the same one
        return index.discard(self._random.choice(candidates).id) if candidates else None


class Lessor:
    """Takes messages for requests, and leases or removes them."""

    def __init__(self, core: Core, ready: ReadyMessages, deliverer: Deliverer) -> None:
        self._catalog = core.catalog
        self._committer = core.committer
        self._ready = ready
        self.deliverer = deliverer
        self._leases = deliverer.leases
        self._recent = core.catalog.recent
        self._others_move = core.config.others_move
        self._waiting = deliverer.waiters.queues

    def lease_now(self, request: FetchRequest) -> bool:
        """Serve a request in the caller's step. False where it has to wait, or a worker has to serve it."""
        index = request.index
        if self._others_move or request.takes or request.holds or request.count > MOST_NOW:
            return False
        if index in self._waiting or (index.ready and not self._leases.is_calm):
            return False  # a worker keeps the order of requests, and measures how late the event loop is
        entries = self._ready.take_now(index, request.count, to_hold=False)
        if entries is None or (request.waits and not entries):
            return False
        if entries:
            for entry in entries:
                self._catalog.begin(entry, is_out=True)
            self.submit([Assignment(request, entry) for entry in entries], {request: Fulfilment()})
        else:
            request.future.set([])
        return True

    def take(self, index: QueueIndex, count: int) -> list[Entry]:
        """The next messages that may be delivered, locked."""
        messages: list[Entry] = []
        while len(messages) < count:
            taken = self._ready.take(index, messages[-1].id if messages else None)
            if taken is None:
                break
            self._catalog.begin(taken, is_out=not self._others_move)
            messages.append(taken)
        return messages

    def submit(self, assignments: Sequence[Assignment], served: dict[FetchRequest, Fulfilment]) -> None:
        """Submit the moves of taken messages; their outcomes go to the deliverer."""
        leases, allowance, recent = self._leases, self._leases.allowance, self._recent

        def make() -> list[Move]:
            return [
                leases.move(request, entry, allowance, not recent.has(entry.id)) for request, entry, _ in assignments
            ]

        self._committer.submit(make, len(assignments), partial(self.deliverer.leased, assignments, served, allowance))


def has_to_catch_up(index: QueueIndex, wanted: int) -> bool:
    """Return whether messages of a queue have to be delivered before so many of them may be leased."""
    return index.undelivered and (
        # Or else a message that was delivered a batch before one of a higher priority, or before an earlier one that
        # was handed out from NEW and put back, would be handed out first.
        index.settings.max_priority > 0
        or index.is_returning
        or index.ready < wanted
        or (wanted > 0 and index.groups is not None)  # the READY messages may be of groups that are blocked
    )


class FetchWorker:
    """Serves the waiters of its queues, one group at a time. Start :meth:`run`.

    Args:
        calls: the queues whose waiters changed, or for which a message came.
        refresh: reads from the store which messages of a queue are READY; used at peers > 0.
    """

    def __init__(
        self,
        core: Core,
        calls: BatchChannel[QueueIndex],
        ready: ReadyMessages,
        lessor: Lessor,
        unacked_deliverer: UnackedDeliverer,
        refresh: Callable[[QueueIndex], Awaitable[None]],
    ) -> None:
        self._catalog = core.catalog
        self._committer = core.committer
        self._secure_keys = core.secure_keys
        self._calls = calls
        self._ready = ready
        self._lessor = lessor
        self._waiters = lessor.deliverer.waiters
        self._leases = lessor.deliverer.leases
        self._upkeep = lessor.deliverer.upkeep
        self._unacked_deliverer = unacked_deliverer
        self._peers = core.config.peers
        self._random = core.random
        self._refresh = refresh

    async def run(self) -> None:
        """Choose messages for waiting requests and lease them, for ever."""
        while True:
            called = deque(await self._calls.drain(LARGEST_GROUP))
            self._leases.note_step(self._calls.step_seconds)
            while called:
                assignments, portions = await self._assign_next(called)
                await self._unacked_deliverer.serve(portions)
                self._committer.progress.flush()
                if assignments:
                    await self._lease(assignments)

    async def _assign_next(self, called: deque[QueueIndex]) -> tuple[list[Assignment], list[Portion]]:
        """Choose messages for every queue whose waiters changed, up to one turn's worth."""
        assignments: list[Assignment] = []
        portions: list[Portion] = []
        while called and len(assignments) + len(portions) < LARGEST_GROUP:
            index = called.popleft()
            wait_queue = self._waiters.answer_call(index)
            nonblocking = list(wait_queue.nonblocking)
            await self._check_waiters(index, wait_queue)
            leased, held = self._choose(index, wait_queue, nonblocking)
            assignments += leased
            portions += held
            self._waiters.served(index)
        return assignments, portions

    async def _check_waiters(self, index: QueueIndex, wait_queue: WaitQueue) -> None:
        """Let waiting requests fail that cannot be served now: the store cannot be read, the queue was deleted, or the
        event loop is too late for leases."""
        try:
            await self._prepare(index, wait_queue)
        except StorageError as error:
            await _fail(list(wait_queue.nonblocking), wait_queue, error)
        if index.deleted:
            await _fail(
                wait_queue.requests, wait_queue, NoSuchQueue(f"queue {index.name} was deleted during the request")
            )
        elif self._leases.come_too_late:
            leased = [request for request in wait_queue.requests if not request.holds and not request.takes]
            late = StorageSlow("mq is overloaded and could not lease a message in time. Try again")
            await _fail(leased, wait_queue, late)

    def _choose(
        self, index: QueueIndex, wait_queue: WaitQueue, nonblocking: list[FetchRequest]
    ) -> tuple[list[Assignment], list[Portion]]:
        """Messages for the requests at the head of the wait queue, locked or held from now on. A request in
        `nonblocking` that gets none is answered at once."""
        # A request that came meanwhile, or found this turn full, is served in the next: the queue is called again.
        assignments: list[Assignment] = []
        portions: list[Portion] = []
        held_count = 0
        self._ready.is_cut = False
        while (request := wait_queue.first()) is not None and not index.settings.paused:
            if len(assignments) >= LARGEST_GROUP or held_count >= LONGEST_SLICE:
                self._waiters.call(index)
                return assignments, portions
            if request.holds:
                ready = islice(iter(partial(self._ready.take, index), None), LONGEST_SLICE)
                portions_now = self._unacked_deliverer.share(index, wait_queue, ready)
                portions += portions_now
                held_count += sum(len(portion.messages) for portion in portions_now)
                if wait_queue.first() is request:
                    break
                continue
            messages = [] if request.future.abandoned else self._lessor.take(index, request.count)
            if not messages and not request.future.abandoned:
                break
            if messages:
                self._waiters.keep_place(index, request.precedence)
            wait_queue.leave(request)
            assignments += [Assignment(request, entry) for entry in messages]
        if self._ready.is_cut:
            self._waiters.call(index)
            return assignments, portions
        for request in nonblocking:
            if wait_queue.leave(request):
                request.future.set([])
        if wait_queue.nonblocking:
            self._waiters.call(index)
        return assignments, portions

    async def _prepare(self, index: QueueIndex, wait_queue: WaitQueue) -> None:
        """Bring the index up to date: for requests that do not wait, and where a later message may come first."""
        if index.deleted or wait_queue.is_empty:
            return
        # A request that waits needs nothing else of this: its queue is called when a message is READY.
        wanted = sum(request.count for request in wait_queue.nonblocking)
        if has_to_catch_up(index, wanted):
            await self._upkeep.caught_up(index)
        if not wait_queue.nonblocking:
            return
        if self._peers and index.ready <= self._peers:
            # Peers that looked at the same instant would want the same few messages.
            await trio.sleep(self._random.uniform(0, _LONGEST_PAUSE_SECONDS))
            await self._refresh(index)

    async def _lease(self, assignments: list[Assignment]) -> None:
        """Submit the moves; their outcomes go to the deliverer."""
        served = {each.request: Fulfilment() for each in assignments}
        assignments = await self._movable(assignments, served)
        for some in _cut(assignments, self._committer.together):
            requests = dict.fromkeys(each.request for each in some)
            self._lessor.submit(some, {request: served.pop(request) for request in requests})
        if served:  # refused, all of them
            self._lessor.submit([], served)

    async def _movable(self, assignments: list[Assignment], served: dict[FetchRequest, Fulfilment]) -> list[Assignment]:
        """The assignments that may be moved now. Removals need the keys of their messages secured first."""
        taken = [each for each in assignments if each.request.takes]
        if not taken:
            return assignments
        try:
            await self._secure_keys([each.entry.id for each in taken])
        except StorageError as error:
            for each in taken:
                self._catalog.end(each.entry, each.entry, Kind.REMOVE)
                served[each.request].error = error
            return [each for each in assignments if not each.request.takes]
        return assignments


def _cut(assignments: Sequence[Assignment], size: int) -> Iterator[Sequence[Assignment]]:
    """The assignments in order, about so many at a time; those of a request together."""
    begin = 0
    for end in range(1, len(assignments) + 1):
        is_last = end == len(assignments)
        if is_last or (end - begin >= size and assignments[end].request is not assignments[end - 1].request):
            yield assignments[begin:end]
            begin = end


class Deliverer:
    """Answers requests with the messages that were leased or removed for them: a few whose bodies are in memory in the
    step that ends the batch, the others in :meth:`run`, which has to be started.

    Args:
        waiters: gets the requests back whose messages were gone.
        upkeep: takes back messages that no request gets.
    """

    def __init__(
        self,
        core: Core,
        waiters: Waiters,
        leases: Leases,
        upkeep: Upkeep,
        dead_letters: DeadLetters,
    ) -> None:
        self._catalog = core.catalog
        self._storage = core.storage
        self.waiters = waiters
        self.leases = leases
        self.upkeep = upkeep
        self._dead_letters = dead_letters
        self._recent = core.catalog.recent
        self._others_move = core.config.others_move
        self._leased: BatchChannel[tuple[list[_Leased], dict[FetchRequest, Fulfilment]]] = BatchChannel()
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time

    async def run(self) -> None:
        """Answer requests for ever. One whose messages were all gone or damaged goes back to the head of its wait
        queue."""
        while True:
            for held, served in await self._leased.drain(LARGEST_GROUP):
                await self._read(held, served)
                async for request in turns.in_turns(reversed(served)):  # with what each one's task does then
                    if request.future.abandoned:
                        await close(served[request].messages)
                    self._answer(request, served[request])

    def leased(
        self,
        assignments: Iterable[Assignment],
        served: dict[FetchRequest, Fulfilment],
        allowance: float,
        outcomes: Sequence[Outcome],
        barrier: BatchTimes,
    ) -> None:
        """Note what became of the moves, and answer the requests in `served` soon.

        Args:
            served: the requests to answer, with what is known of their answers.
            allowance: seconds by which the leases were named longer than they last.
            barrier: when the leases were named, and when they were durable.
        """
        now = self._now()
        held: list[_Leased] = []
        for (request, left, stored), outcome in zip(assignments, outcomes, strict=True):
            result, entry, _, _ = outcome
            if result is _DONE and entry is not None:
                fulfilment, takes = served[request], request.takes
                is_out_of_turn = bool(fulfilment.broken) and not takes and fulfilment.is_out_of_turn(left)
                if not is_out_of_turn:
                    held.append(_Leased(request, left, entry, stored or self._recent.take(left.id)))
                if not takes:
                    fulfilment.seconds = self.leases.seconds(request)
                    lease_seconds = self.leases.standing_seconds(fulfilment.seconds)
                    due = now + lease_seconds + allowance
                    fulfilment.latest = barrier.began + MARGIN_SECONDS + allowance + lease_seconds / 2
                    fulfilment.ends = due
                    self._catalog.end(left, entry, _LEASE, due, request.protocol)
                if is_out_of_turn:
                    self.upkeep.give_back(entry)
            elif result is Result.EXISTS and request.takes:
                self._catalog.end_second_copy(left, Kind.REMOVE)
            else:
                self._catalog.end(left, None if result is Result.GONE else left, Kind.LEASE)
                if result is not Result.GONE:
                    served[request].error = error_of(outcome, "cannot lease the message")
                    served[request].leave_out(request, left)
        seconds = barrier.ended - barrier.began
        if seconds > MARGIN_SECONDS + allowance:
            held = self._too_late(held, seconds, served)
        if len(held) <= MOST_NOW and not self._others_move and None not in [each.stored for each in held]:
            self._add(held, (), served, now)
            for request in reversed(served):
                self._answer(request, served[request])
        else:
            self._leased.put((held, served))

    def _too_late(self, held: list[_Leased], seconds: float, served: dict[FetchRequest, Fulfilment]) -> list[_Leased]:
        """Give the leases back, and return the removals, which are handed out all the same."""
        for request, _, entry, _ in held:
            if not request.takes:  # after a barrier this slow, a lease would not outlive a restart
                self.upkeep.give_back(entry)
                served[request].error = StorageSlow(
                    f"the store took too long ({seconds:.1f} s) to record the lease, so no message was delivered. "
                    "Try again"
                )
        return [each for each in held if each.request.takes]

    async def _read(self, held: list[_Leased], served: dict[FetchRequest, Fulfilment]) -> None:
        """Open the bodies slice by slice. A request that has bytes enough gives its other leases back."""
        # Small bodies are in memory from here on, so the answers have to be bounded.
        for start in range(0, len(held), LONGEST_SLICE):
            wanted = []
            for each in held[start : start + LONGEST_SLICE]:
                if served[each.request].size < LARGEST_ANSWER or each.request.takes:
                    wanted.append(each)
                else:
                    self.upkeep.give_back(each.entry)
            if wanted:
                await self._read_slice(wanted, served)

    async def _read_slice(self, held: list[_Leased], served: dict[FetchRequest, Fulfilment]) -> None:
        """Open the bodies of one slice, and add the messages to their answers."""
        try:
            unread = [each.entry for each in held if each.stored is None]
            read: list[Stored | None] = await self._storage.read(unread) if unread else []
            with suppress(StorageError):  # a message is worth more than its history
                await self._dead_letters.learn([each.left for each in held])
        except StorageError as error:
            read = [None] * len(unread)
            for request, _, entry, _ in [each for each in held if each.stored is None]:
                served[request].error = error
                served[request].leave_out(request, entry)
                if not request.takes:
                    self.upkeep.give_back(entry)
        for unused in self._add(held, read, served, self._now()):
            await unused.body.aclose()

    def _add(
        self, held: list[_Leased], read: Iterable[Stored | None], served: dict[FetchRequest, Fulfilment], now: float
    ) -> list[Stored]:
        """Add messages to the answers of their requests. Returns those that no request gets, to be closed."""
        unused: list[Stored] = []
        following = iter(read)
        for request, left, entry, stored in held:
            found, fulfilment, takes = stored or next(following), served[request], request.takes
            if not takes and not self._is_in_time(entry, request, fulfilment, now):
                if found is not None:
                    unused.append(found)
                fulfilment.leave_out(request, entry)
            elif found is not None and fulfilment.broken and not takes and fulfilment.is_out_of_turn(entry):
                unused.append(found)
                self.upkeep.give_back(entry)
            elif found is not None and not isinstance(found.body, DamagedBody):
                fulfilment.entries.append(entry)
                fulfilment.messages.append(self._message(request, left, entry, found, fulfilment.seconds))
                fulfilment.size += found.body.size
            elif fulfilment.error is not None:
                fulfilment.leave_out(request, entry)
            else:
                _log_damage(entry, found)
                _pass_over(self.waiters, request.index, entry)
            if takes:  # not before the body is open: the reaper unlinks one that is in memory at once
                self._catalog.end(left, entry, Kind.REMOVE, protocol=request.protocol)
        return unused

    def _is_in_time(self, entry: Entry, request: FetchRequest, served: Fulfilment, now: float) -> bool:
        """Whether a lease may still be handed out: it stands, and enough of it is left."""
        leased = request.index.delayed.get(entry.id)
        # On a shared store the index may be older than the lease, which the store itself has confirmed; or newer, once
        # the lease has ended.
        if (leased == entry or (self._others_move and now < served.ends)) and now <= served.latest:
            return True
        if request.index.find(entry.id) is not None:  # it was not removed meanwhile, as by a claim
            served.error = StorageSlow(
                "mq is overloaded: the lease expired before the message could be sent. Try again"
            )
        if leased == entry:
            self.upkeep.give_back(entry)
        return False

    def _message(self, request: FetchRequest, left: Entry, entry: Entry, found: Stored, seconds: float) -> Message:
        properties, body = found
        queue, id, _, meta = entry
        index = request.index
        if index.groups is not None:
            body = _watched(self.waiters, index, entry, body)
        if request.takes and not isinstance(body, BytesBody):
            # Its bytes may come from the store piece by piece, for as long as its reader takes.
            body = WatchedBody(body, closed=self.upkeep.keep_until_read(entry))
        receives, history = left.meta.receives + 1, self._dead_letters.history(left)
        return Message(queue, id, body, properties, receives, meta.receipt or "", history, seconds)

    def _answer(self, request: FetchRequest, served: Fulfilment) -> None:
        """Answer a request. The caller has closed the bodies for one that is abandoned, unless they are in memory."""
        if request.future.abandoned:
            if not request.takes:
                for entry in served.entries:
                    self.upkeep.give_back(entry)
        elif served.messages:
            if not request.takes and self.leases.is_momentary(served.seconds):
                ends = trio.current_time() + served.seconds + self.leases.allowance
                for entry in served.entries:
                    self.upkeep.end_lease(entry, ends)
            request.held = served.entries
            request.future.set(served.messages)
        elif served.error is not None:
            request.future.fail(served.error)
        else:
            self.waiters.ask(request, first=True)


class _Leased(NamedTuple):
    """A message whose move for a request is durable: from `left` to `entry`."""

    request: FetchRequest
    left: Entry
    entry: Entry
    stored: Stored | None


def _pass_over(waiters: Waiters, index: QueueIndex, entry: Entry) -> None:
    """Let a message that is damaged keep none behind it in its group waiting."""
    if index.groups is not None and index.groups.pass_over(entry.id):
        waiters.call(index)


def _watched(waiters: Waiters, index: QueueIndex, entry: Entry, body: Body) -> Body:
    """The body of a message, which is passed over if its reader finds it damaged: a large one is read by its server."""
    if isinstance(body, BytesBody):
        return body
    return WatchedBody(body, partial(_pass_over, waiters, index, entry))


def _log_damage(entry: Entry, found: Stored | None) -> None:
    why = (
        found.body.reason
        if found is not None and isinstance(found.body, DamagedBody)
        else "the message file has vanished"
    )
    stays = (
        "The message has already been removed" if entry.state is State.REMOVED else "The message remains in the queue"
    )
    logger.error("cannot deliver message %s from queue %s: %s. %s", entry.id, entry.queue, why, stays)


class DirectDispatch:
    """Assigns messages that are about to be written to waiting requests.

    Attributes:
        assignments: what the batch that is being made dispatches.
        waiting: queues that requests wait for, among others.
        under_way: messages that are dispatched in batches that have not ended.
        is_placed: whether a message is written where its lease leaves it, and not moved there.
    """

    def __init__(self, core: Core, waiters: Waiters, leases: Leases, deliverer: Deliverer) -> None:
        self.catalog = core.catalog
        self.deliverer = deliverer
        self.under_way = 0
        self.is_placed = core.places
        self._waiters = waiters
        self._leases = leases
        self.waiting = waiters.queues
        self._is_open = core.config.skips_steps
        self.assignments: list[Assignment] = []
        self._unsated: dict[QueueIndex, tuple[FetchRequest, int]] = {}

    def takes(
        self,
        index: QueueIndex,
        id: MessageId,
        body: bytes | Staged,
        attributes: Mapping[str, Any],
        meta: Meta,
        *,
        is_transient: bool,
    ) -> bool:
        """Whether a message that is about to be written is dispatched. If so, :meth:`collect` includes it."""
        if index not in self.waiting and index not in self._unsated:
            return False
        if not self._is_open or index.writing:
            return False
        if not self.is_placed and self.under_way + len(self.assignments) >= MOST_MOVED_ON:
            return False
        if not isinstance(body, bytes) or len(body) > LARGEST_BODY or meta != FRESH or is_transient:
            return False
        if index.groups is not None and index.groups.is_blocked(id):
            return False
        request = self._next_request(index)
        if request is None:
            return False
        if index.groups is not None:
            index.groups.block(id)
        entry = Entry(index.name, id, State.NEW)
        stored = Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))
        self.assignments.append(Assignment(request, entry, stored))
        return True

    def collect(self, writes: Sequence[Operation]) -> DirectBatch:
        """The messages dispatched since the last call, of those that are written. Just before the store, so that the
        leases are named as late as can be."""
        assignments, self.assignments = self.assignments, []
        self._unsated.clear()
        self.under_way += len(assignments)
        return DirectBatch(self, assignments, writes, self._leases)

    def _next_request(self, index: QueueIndex) -> FetchRequest | None:
        """The request that gets the queue's next message; None without one."""
        # One that wants several gets those of one batch, which :meth:`collect` ends.
        request, left = self._unsated.pop(index, (None, 0))
        if request is None:
            if index.ready or index.undelivered or index.settings.paused or index.deleted:
                return None
            request = self._waiters.next_to_lease(index)
            left = request.count if request is not None else 0
        if request is not None and left > 1:
            self._unsated[index] = (request, left - 1)
        return request


class DirectBatch:
    """The messages that are dispatched directly in one batch.

    Args:
        writes: the operations of the batch, which write them.
    """

    def __init__(
        self, direct: DirectDispatch, assignments: Sequence[Assignment], writes: Sequence[Operation], leases: Leases
    ) -> None:
        self._direct = direct
        self._assignments = assignments
        self._allowance = leases.allowance
        self._positions: list[int] = []  # of the operations that give the messages to their requests
        self.operations = operations = list(writes)
        position_of = {write.id: at for at, write in enumerate(writes) if isinstance(write, Write)}
        for each in assignments:
            move = leases.move(each.request, each.entry, self._allowance)
            at, write = position_of[each.entry.id], operations[position_of[each.entry.id]]
            if direct.is_placed and not each.request.takes and isinstance(write, Write):
                operations[at] = write._replace(state=move.state, meta=move.meta)
            else:
                at = len(operations)
                operations.append(move)
            self._positions.append(at)

    def done(self, outcomes: Sequence[Outcome], barrier: BatchTimes) -> None:
        """Answer the requests whose messages were written. The others go back to their wait queues."""
        catalog = self._direct.catalog
        self._direct.under_way -= len(self._assignments)
        served = {each.request: Fulfilment() for each in self._assignments}
        written: list[tuple[Assignment, Outcome]] = []
        for each, outcome in zip(self._assignments, [outcomes[at] for at in self._positions], strict=True):
            if each.entry.id not in catalog.locks:  # its publish job saw it fail, and locked nothing
                if each.request.index.groups is not None:
                    each.request.index.groups.release(each.entry.id)
                continue
            if each.request.index.deleted:  # and perhaps made anew; the publisher gets this error, too
                catalog.end(each.entry, outcome.entry or each.entry, Kind.LEASE)
                served[each.request].error = NoSuchQueue(
                    f"queue {each.request.index.name} was deleted during the request"
                )
            else:
                written.append((each, outcome))
        self._direct.deliverer.leased(
            [each for each, _ in written], served, self._allowance, [outcome for _, outcome in written], barrier
        )


class Portion(NamedTuple):
    """The messages that one request gets to hold."""

    request: FetchRequest
    messages: list[Entry]


def share_out(requests: Iterable[FetchRequest], messages: Iterator[Entry]) -> list[Portion]:
    """Portions of the messages there are, given to requests one by one in turn (round-robin).

    Returns:
        The portions that are not empty; first that of the next request in turn.
    """
    portions: dict[FetchRequest, list[Entry]] = {}
    turns = deque(requests)
    while turns and (taken := next(messages, None)) is not None:
        request = turns.popleft()
        portion = portions.pop(request, [])
        portion.append(taken)
        portions[request] = portion
        if len(portion) < request.count:
            turns.append(request)
    return [Portion(request, messages) for request, messages in portions.items()]


class UnackedDeliverer:
    """Hands out messages that a connection holds in memory, and puts them back.

    Args:
        waiters: gets the requests back whose messages were gone.
    """

    def __init__(
        self,
        core: Core,
        waiters: Waiters,
        ready: ReadyMessages,
        dead_letters: DeadLetters,
        leases: Leases,
    ) -> None:
        self._catalog = core.catalog
        self._committer = core.committer
        self._storage = core.storage
        self._waiters = waiters
        self._dead_letters = dead_letters
        self._leases = leases
        self._jobs = core.jobs
        self._ready = ready
        self._recent = core.catalog.recent
        self._seconds = core.config.visibility_seconds
        waiters.push = self.push

    def share(self, index: QueueIndex, wait_queue: WaitQueue, messages: Iterator[Entry]) -> list[Portion]:
        """Portions for the requests of the highest priority that hold messages in memory. They are held from then on.
        No more messages are taken than these requests want."""
        portions = share_out(_holders(wait_queue), messages)
        for portion in portions:
            self._waiters.keep_place(index, portion.request.precedence)
            wait_queue.leave(portion.request)
            for entry in portion.messages:
                index.hold(entry)
        return portions

    def push(self) -> None:
        """Serve requests of the queues that have got messages, in the step in which these became READY: as many as a
        turn has. A worker does the rest, and what takes longer."""
        left, waiters = turns.MESSAGES_A_TURN, self._waiters
        while waiters.ready:
            index = waiters.ready.popleft()
            wait_queue = waiters.answer_call(index)
            wanted = sum([request.count for request in _holders(wait_queue)])
            entries = self._ready.take_now(index, min(left, wanted), to_hold=True) if left > 0 else None
            if entries:
                left -= len(entries)
                for request, portion in self.share(index, wait_queue, iter(entries)):
                    request.held = portion
                    request.future.set([self._message(index, entry, self._recent.take(entry.id)) for entry in portion])
            if (entries is not None and not index.ready) or not wait_queue.wanted:
                waiters.served(index)
            elif not wait_queue.is_called:
                waiters.call_worker(index, wait_queue)

    def deliver_now(self, index: QueueIndex, most: int) -> list[tuple[Entry, Message]] | None:
        """Up to `most` messages, held from now on, in the caller's step; none if none is READY. None if a worker has to
        serve them, as where others wait for messages of the queue."""
        entries = None if index in self._waiters.queues else self._ready.take_now(index, most, to_hold=True)
        if not entries:
            return None if entries is None else []
        found = []
        for entry in entries:
            index.hold(entry)
            found.append((entry, self._message(index, entry, self._recent.take(entry.id))))
        return found

    async def serve(self, portions: Sequence[Portion]) -> None:
        """Answer requests with their messages. One whose messages were all gone or damaged goes back to the head of its
        wait queue; once the medium has failed each request fails."""
        if not portions:
            return
        try:
            self._committer.check()  # a message whose move failed is READY here, and may not be where that says
            stored = await self._read([entry for portion in portions for entry in portion.messages])
        except StorageError as error:
            for request, entries in portions:
                self.put_back(request.index, entries, is_returned=False)
                request.future.fail(error)
            return
        answers = [(portion.request, self._messages(portion, stored)) for portion in portions]
        async for request, found in turns.in_turns(answers):  # with what each one's task does then
            await self._answer(request, found)

    def put_back(self, index: QueueIndex, entries: Iterable[Entry], *, is_returned: bool = True) -> None:
        """Make messages READY again in their places, as far as they are still held.

        Args:
            is_returned: whether a consumer has had them.
        """
        for entry in entries:
            if index.held.get(entry.id) == entry:
                del index.held[entry.id]
                if is_returned:
                    index.returned.add(entry.id)
                self._catalog.place(entry)

    async def _read(self, entries: Sequence[Entry]) -> Mapping[MessageId, Stored | None]:
        found = {entry.id: self._recent.take(entry.id) for entry in entries}
        unread = [entry for entry in entries if found[entry.id] is None]
        if unread:
            for entry, stored in zip(unread, await self._storage.read(unread), strict=True):
                found[entry.id] = stored
        return found

    def _messages(self, portion: Portion, stored: Mapping[MessageId, Stored | None]) -> list[tuple[Entry, Message]]:
        messages = []
        for entry in portion.messages:
            found = stored[entry.id]
            if portion.request.index.held.get(entry.id) != entry:
                continue  # another request has removed it meanwhile
            body = None if found is None else found.body
            if found is not None and not isinstance(body, DamagedBody):
                messages.append((entry, self._message(portion.request.index, entry, found)))
                continue
            if portion.request.index.is_going or portion.request.index.deleted:
                continue  # it went with its queue
            why = body.reason if isinstance(body, DamagedBody) else "the message file has vanished"
            logger.error(
                "cannot deliver message %s from queue %s: %s. The message remains in the queue",
                entry.id,
                entry.queue,
                why,
            )
            _pass_over(self._waiters, portion.request.index, entry)
            self._set_aside(entry)
        return messages

    def _message(self, index: QueueIndex, entry: Entry, found: Stored | None) -> Message:
        assert found is not None, "its body is in memory, or was just read"
        history = self._dead_letters.history(entry)
        body = found.body if index.groups is None else _watched(self._waiters, index, entry, found.body)
        return Message(entry.queue, entry.id, body, found.properties, entry.meta.receives + 1, "", history)

    def _set_aside(self, entry: Entry) -> None:
        """Hide a message that cannot be handed out for the length of a lease."""
        self._catalog.begin(entry)  # left READY, it would be chosen again at once
        move = Move(entry, State.DELAYED, self._leases.meta(entry, self._seconds))
        self._jobs.put([MoveJob(self._catalog, move, Kind.LEASE, "reserve the message", self._seconds)])

    async def _answer(self, request: FetchRequest, messages: list[tuple[Entry, Message]]) -> None:
        if request.future.abandoned:
            await close([message for _, message in messages])
            self.put_back(request.index, [entry for entry, _ in messages], is_returned=False)
        elif messages:
            request.held = [entry for entry, _ in messages]
            request.future.set([message for _, message in messages])
        else:
            self._waiters.ask(request, first=True)


def _holders(wait_queue: WaitQueue) -> list[FetchRequest]:
    """The requests that hold messages in memory, and share the next ones. Those that are abandoned leave."""
    holders = wait_queue.holders()
    for request in holders:
        if request.future.abandoned:
            wait_queue.leave(request)
    return [request for request in holders if not request.future.abandoned]


async def _fail(requests: list[FetchRequest], wait_queue: WaitQueue, error: Exception) -> None:
    async for request in turns.in_turns(requests, turns.FRAME):  # with what each one's task does then
        if wait_queue.leave(request):  # else it was cancelled meanwhile
            request.future.fail(error)
