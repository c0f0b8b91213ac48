"""The highly available queues as a broker, wherever they are served: each method finds the master, asks, and asks the
next one where the answer got lost and asking again does no harm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from mq.broker import (
    LARGEST_CLAIM,
    Batch,
    Browsed,
    Draft,
    Exclusion,
    Held,
    Published,
    QueueSettings,
    QueueStatus,
    Ranges,
    Redriven,
    Removal,
    Seen,
    Standing,
)
from mq.broker.claiming import CLAIM_SECONDS
from mq.broker.looking import READY
from mq.broker.queues import LARGEST_SLICE
from mq.cluster.directory import PATIENCE_SECONDS, Directory, Place
from mq.cluster.wire import Handed
from mq.errors import MQError, NoSuchMessage, NoSuchQueue, NotLeased, NotServed
from mq.lifecycle import State
from mq.message import BytesBody, Message, MessageId, MessageIds
from mq.storage.interface import Entry

_NO_BODY: Final = BytesBody(b"")


class RemoteHeld(Held):
    """A message of a highly available queue that somebody holds through this node.

    Attributes:
        place: who served it. Once others do, it is held no more.
        number: how that place names it.
    """

    place: Place
    number: int

    @classmethod
    def of(cls, handed: Handed, place: Place) -> RemoteHeld:
        """What a place handed out."""
        message = handed.message
        held = cls(message, handed.redelivered, Entry(message.queue, message.id, State.READY))
        held.place, held.number = place, handed.number
        return held


class RemoteExclusion(Exclusion):
    """One consumer alone has the messages of a highly available queue.

    Args:
        place: who knows that.
        number: how that place names it.
    """

    def __init__(self, place: Place, number: int) -> None:
        self.place = place
        self.number = number

    def end(self) -> None:
        """Let others in again."""
        self.place.end_exclusion(self.number)


class Asking:
    """Finds the master, and asks.

    Args:
        directory: knows who it is.
    """

    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    async def once(self, method: str, *args: Any, patience: float = PATIENCE_SECONDS, **named: Any) -> Any:
        """Ask one master, and no other.

        Raises:
            NotServed: there was none for so long; or it is it no more, and may have done it.
        """
        place = await self.directory.serving(trio.current_time() + patience)
        return await place.call(method, args, named)

    async def again(
        self,
        method: str,
        *args: Any,
        was_done: type[MQError] | None = None,
        patience: float = PATIENCE_SECONDS,
        **named: Any,
    ) -> Any:
        """Ask masters until one answers.

        Args:
            method: what is asked.
            args: what it is called with.
            named: the same, by name.
            was_done: the error that, when it is asked again, says that the first one had done it.
            patience: seconds.

        Raises:
            NotServed: none did for so long.
        """
        deadline = trio.current_time() + patience
        is_again = False
        while True:
            place = await self.directory.serving(deadline)
            try:
                return await place.call(method, args, named)
            except NotServed:
                is_again = True
                if trio.current_time() >= deadline:
                    raise
                await self.directory.moved_on(place)
            except MQError as error:
                if is_again and was_done is not None and isinstance(error, was_done):
                    return None
                raise


class RemoteClaims:
    """As :class:`~mq.broker.claiming.Claiming`. All of it may be repeated."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking.again

    async def consumers(self, queue: str) -> list[Standing]:
        """Every consumer of a queue."""
        found: list[Standing] = await self._ask("claims.consumers", queue)
        return found

    async def consumer(self, queue: str, name: str) -> Standing:
        """How far a consumer is."""
        found: Standing = await self._ask("claims.consumer", queue, name)
        return found

    async def start(self, queue: str, name: str) -> Standing:
        """Begin a new epoch."""
        found: Standing = await self._ask("claims.start", queue, name)
        return found

    async def claim(
        self,
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = LARGEST_CLAIM,
        most_bytes: int | None = None,
        up_to: int | None = None,
        lease: float = CLAIM_SECONDS,
    ) -> Batch | None:
        """Make a claim, or get the one that there is."""
        limits: dict[str, Any] = {"most": most, "most_bytes": most_bytes, "up_to": up_to, "lease": lease}
        found: Batch | None = await self._ask("claims.claim", queue, name, batch, epoch, **limits)
        return found

    async def read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int
    ) -> list[tuple[int, Message]]:
        """Messages of an open claim."""
        found = await self._ask("claims.read", queue, name, batch, epoch, start, stop)
        return [(sequence, message) for sequence, message in found]

    async def acknowledge(self, queue: str, name: str, batch: int, epoch: int) -> None:
        """Remove the messages of a claim."""
        await self._ask("claims.acknowledge", queue, name, batch, epoch)

    async def forget(self, queue: str, name: str) -> None:
        """Let go of a consumer."""
        await self._ask("claims.forget", queue, name)


class RemoteBrowsing:
    """As :class:`~mq.broker.browsing.Browsing`."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking.again

    async def browse(self, queue: str, *, after: int = 0, up_to: int | None = None, most: int = 100) -> Browsed:
        """Some READY messages by their sequence."""
        found: Browsed = await self._ask("browsing.browse", queue, after=after, up_to=up_to, most=most)
        return found

    async def ranges(self, queue: str, parts: int) -> Ranges:
        """The READY messages cut into parts."""
        found: Ranges = await self._ask("browsing.ranges", queue, parts)
        return found


class Remote:
    """As :class:`~mq.broker.broker.Broker`, for the highly available queues.

    Args:
        directory: knows who serves them.
    """

    def __init__(self, directory: Directory) -> None:
        self._asking = Asking(directory)
        self._directory = directory
        self._ids = MessageIds()
        self.claims = RemoteClaims(self._asking)
        self.browsing = RemoteBrowsing(self._asking)

    # Queues

    async def has_queue(self, queue: str) -> bool:
        """Whether there is one of that name."""
        return bool(await self._asking.again("has_queue", queue))

    async def declare(self, queue: str, settings: Mapping[str, Any], declared: Mapping[str, Any] | None) -> bool:
        """Make a queue. False when it is there already."""
        return bool(await self._asking.again("declare", queue, dict(settings), declared))

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue."""
        await self._asking.again("delete_queue", queue, was_done=NoSuchQueue)

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings:
        """Change what is set."""
        settings: QueueSettings = await self._asking.again("change_settings", queue, dict(patch))
        return settings

    async def status(self, queue: str) -> QueueStatus:
        """What is in it."""
        status: QueueStatus = await self._asking.again("status", queue)
        return status

    async def queues(self, patience: float) -> list[QueueStatus]:
        """All of them."""
        found: list[QueueStatus] = await self._asking.again("queues", patience=patience)
        return found

    async def ready(self, queue: str) -> int:
        """How many messages can be handed out."""
        return int(await self._asking.again("ready", queue))

    async def purge(self, queue: str) -> int:
        """Remove what nobody holds."""
        return int(await self._asking.again("purge", queue))

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven:
        """Move messages back."""
        found: Redriven = await self._asking.again("redrive", queue, to, most, ids)
        return found

    # Publishing

    async def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[Published | MQError]:
        """Store messages. Their ids are chosen here, so that whoever is asked again knows them again."""
        numbered = [draft if draft.key is not None else draft._replace(id=self._ids.new()) for draft in drafts]
        deadline = trio.current_time() + PATIENCE_SECONDS
        is_again = False
        while True:
            place = await self._directory.serving(deadline)
            try:
                outcomes: list[Published | MQError] = await place.call("publish", [queue, numbered, is_again], {})
            except NotServed:
                is_again = True
                if trio.current_time() >= deadline:
                    raise
                await self._directory.moved_on(place)
            else:
                return outcomes

    async def contains(self, queue: str, body: bytes) -> MessageId | None:
        """The message that has this body."""
        found: MessageId | None = await self._asking.again("contains", queue, body)
        return found

    # Leases

    async def fetch_many(
        self, queue: str, most: int, *, wait: float = 0, visibility: float | None = None
    ) -> list[Message]:
        """Lease messages. Who waits when the master fails is told so."""
        ask = self._asking.once if wait else self._asking.again
        found: list[Message] = await ask("fetch_many", queue, most, wait=wait, visibility=visibility)
        return found

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Messages that were fetched in vain. If their master is none any more, they have gone back."""
        with suppress(NotServed):
            await self._asking.once("give_back", [message._replace(body=_NO_BODY) for message in messages], patience=0)

    async def take(self, queue: str, *, wait: float = 0) -> Message | None:
        """Fetch and remove: at most once."""
        found: Message | None = await self._asking.once("take", queue, wait=wait)
        return found

    async def remove(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """Remove a message."""
        await self._asking.again("remove", queue, str(id), receipt=receipt, was_done=NoSuchMessage)

    async def remove_many(self, queue: str, removals: Sequence[Removal]) -> list[MQError | None]:
        """Remove messages."""
        found: list[MQError | None] = await self._asking.again("remove_many", queue, list(removals))
        return found

    async def requeue(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """End a lease."""
        await self._asking.again("requeue", queue, str(id), receipt=receipt, was_done=NotLeased)

    async def extend(self, queue: str, id: str, seconds: float, *, receipt: str | None = None) -> None:
        """Let a lease end later, or sooner."""
        await self._asking.again("extend", queue, str(id), seconds, receipt=receipt)

    # Holding

    async def hold(
        self, queue: str, most: int = 1, *, wait: float = 0, exclusion: Exclusion | None = None
    ) -> list[Held]:
        """Hold messages. Who waits when the master fails is told so; and who waits for a master waits on."""
        patience = math.inf if wait == math.inf else max(wait, PATIENCE_SECONDS)
        place = await self._directory.serving(trio.current_time() + patience)
        alone = None
        if isinstance(exclusion, RemoteExclusion):
            if exclusion.place is not place:
                raise NotServed(f"the queue {queue} is not this consumer's alone any more: its master has changed")
            alone = exclusion.number
        handed: list[Handed] = await place.call("hold", [queue, most, wait, alone], {})
        return [RemoteHeld.of(each, place) for each in handed]

    async def exclude(self, queue: str) -> Exclusion:
        """Let one consumer alone have the messages."""
        place = await self._directory.serving(trio.current_time() + PATIENCE_SECONDS)
        return RemoteExclusion(place, int(await place.call("exclude", [queue], {})))

    async def acknowledge(self, held: Sequence[RemoteHeld], *, durable: bool) -> None:
        """Remove what is held. What a master that is none any more had handed out is held no more: it comes again."""
        for place, numbers in self._by_place(held):
            await self._settle(place, "acknowledge", [numbers, durable], must_know=durable)

    async def put_back(self, held: Sequence[RemoteHeld], *, redelivered: bool, to_back: bool) -> None:
        """Let others have it."""
        for place, numbers in self._by_place(held):
            await self._settle(place, "put_back", [numbers, redelivered, to_back])

    async def reject(self, held: Sequence[RemoteHeld]) -> None:
        """Let it die."""
        for place, numbers in self._by_place(held):
            await self._settle(place, "reject", [numbers])

    # Looking

    async def show(self, queue: str, id: str) -> Seen:
        """A message as it is."""
        found: Seen = await self._asking.again("show", queue, str(id))
        return found

    async def peek(self, queue: str, *, state: str = READY, after: str | None = None, most: int = 100) -> list[Seen]:
        """Some messages as they are."""
        found: list[Seen] = await self._asking.again("peek", queue, state=state, after=after, most=most)
        return found

    # How it is done

    def _by_place(self, held: Sequence[RemoteHeld]) -> list[tuple[Place, list[int]]]:
        now = self._directory.place
        numbers = [each.number for each in held if each.place is now]
        return [(now, numbers)] if now is not None and numbers else []

    async def _settle(self, place: Place, method: str, args: Sequence[Any], *, must_know: bool = False) -> None:
        try:
            await place.call(method, args, {})
        except NotServed:
            if must_know:
                raise
