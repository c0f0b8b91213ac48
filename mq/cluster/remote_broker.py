"""The cluster queues as a broker, whichever node leads.

Each method finds the leader and asks it. Where the answer got lost and a repeated question does no harm, it asks the
next leader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, cast

import trio

from mq.broker import Draft, Exclusion, Precedence, Published, QueueStatus, UnackedMessage, Upload
from mq.broker.batch_consumers import BatchConsumers
from mq.broker.bodies import close
from mq.broker.columns import ColumnReader
from mq.broker.peek import SequenceBrowser
from mq.broker.queues import Record
from mq.broker.verbs import Forwarding, Repeat, Verb
from mq.broker.write_jobs import WriteJobs
from mq.cluster.directory import PATIENCE_SECONDS, Directory, Leader
from mq.cluster.link_codec import Coming, Handed
from mq.cluster.pieces import WHOLE_BYTES
from mq.cluster.spool import GatheredBody, SpooledBody, pieces_of
from mq.errors import MQError, NoSuchQueue, NotServed
from mq.lifecycle import OWNER, State
from mq.message import BytesBody, Message, MessageId, MessageIds
from mq.storage.interface import Entry

_NO_BODY: Final = BytesBody(b"")


class RemoteUnacked(UnackedMessage):
    """A message of a cluster queue that a consumer holds through this node.

    Attributes:
        leader: the one that handed it out. Under another leader it is held no more.
    """

    leader: Leader
    number: int

    @classmethod
    def of(cls, handed: Handed, leader: Leader) -> RemoteUnacked:
        """A message that a leader handed out."""
        message = handed.message
        held = cls(message, handed.redelivered, Entry(message.queue, message.id, State.READY))
        held.leader, held.number = leader, handed.number
        return held

    def to_settle(self) -> RemoteUnacked:
        """The same without its message."""
        light = RemoteUnacked(*super().to_settle())
        light.leader, light.number = self.leader, self.number
        return light


class RemoteExclusion(Exclusion):
    """One consumer alone has the messages of a cluster queue."""

    def __init__(self, leader: Leader, number: int) -> None:
        self.leader = leader
        self.number = number

    def end(self) -> None:
        """End it."""
        self.leader.end_exclusion(self.number)


class LeaderClient:
    """Calls methods of the leader, once or until one answers."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    async def once(self, method: str, *args: Any, patience: float = PATIENCE_SECONDS, **named: Any) -> Any:
        """Ask one leader, and no other.

        Raises:
            NotServed: there was no leader in time; or it leads no more, and may have carried it out.
        """
        leader = await self.directory.serving(trio.current_time() + patience)
        return await leader.call(method, args, named)

    async def again(
        self,
        method: str,
        *args: Any,
        was_done: type[MQError] | None = None,
        patience: float = PATIENCE_SECONDS,
        **named: Any,
    ) -> Any:
        """Ask leaders until one answers.

        Args:
            was_done: the error of a repeated question by which the first one is known to have been carried out.
            patience: seconds.

        Raises:
            NotServed: none did in time.
        """
        deadline = trio.current_time() + patience
        is_again = False
        while True:
            leader = await self.directory.serving(deadline)
            try:
                return await leader.call(method, args, named)
            except NotServed:
                is_again = True
                if trio.current_time() >= deadline:
                    raise
                await self.directory.moved_on(leader)
            except MQError as error:
                if is_again and was_done is not None and isinstance(error, was_done):
                    return None
                raise


class RemoteBroker(Forwarding):
    """As :class:`~mq.broker.broker.Broker`, for the cluster queues."""

    def __init__(self, directory: Directory) -> None:
        super().__init__("", self._ask)
        self._leader_client = LeaderClient(directory)
        self._directory = directory
        self._ids = MessageIds()
        self._last_body = 0
        self.claims = cast(BatchConsumers, Forwarding("claims", self._ask))
        self.writes = cast(WriteJobs, Forwarding("writes", self._ask))
        self.browsing = cast(SequenceBrowser, Forwarding("browsing", self._ask))
        self.columns: ColumnReader | None = None  # over a link messages go one by one

    async def wait(self) -> None:
        """Wait for a leader.

        Raises:
            NotServed: there was none in time.
        """
        await self._directory.serving(trio.current_time() + PATIENCE_SECONDS)

    def on_failover(self, told: Callable[[], None]) -> None:
        """Call `told` when consumers have to begin anew."""
        self._directory.on_failover(told)

    # Queues

    async def declare(self, queue: str, settings: Mapping[str, Any], declared: Mapping[str, Any] | None) -> bool:
        """Make a queue. False when it is there already."""
        owner = OWNER.get()
        given = None if owner is None else list(owner)
        return bool(await self._leader_client.again("declare", queue, dict(settings), declared, given))

    async def share(self, puts: Sequence[Record], drops: Sequence[Record]) -> int:
        """Change what all nodes share; the number of the change."""
        given = [[list(record) for record in records] for records in (puts, drops)]
        return int(await self._leader_client.again("share", *given))

    async def ask_guest(self, method: str, *args: Any) -> Any:
        """Ask what lives with the leader. A question whose answer got lost is asked again, and finds its queue gone
        where it was deleted."""
        return await self._leader_client.again("ask_guest", method, list(args), was_done=NoSuchQueue)

    async def queues(self, patience: float) -> list[QueueStatus]:
        """The status of all queues."""
        found: list[QueueStatus] = await self._leader_client.again("queues", patience=patience)
        return found

    async def ready(self, queue: str) -> int:
        """How many messages can be handed out."""
        return int(await self._leader_client.again("ready", queue))

    # Publishing

    async def publish_many(
        self, queue: str, drafts: Sequence[Draft], has_place: Callable[[], object] | None = None
    ) -> list[Published | MQError]:
        """Store messages. Their ids are chosen here, so that the next leader knows them again. Bodies of more than
        WHOLE_BYTES go there in pieces, and from their beginning to the next leader. `has_place` is not called: two
        requests may overtake each other on the way."""
        numbered = [
            draft if draft.key is not None else draft._replace(id=self._ids.new(draft.group)) for draft in drafts
        ]
        is_large = any(map(_goes_in_pieces, numbered))
        deadline = trio.current_time() + PATIENCE_SECONDS
        is_again = False
        while True:
            leader = await self._directory.serving(deadline)
            try:
                outcomes: list[Published | MQError] = await (
                    self._publish_in_pieces(leader, queue, numbered, is_again)
                    if is_large
                    else leader.call("publish", [queue, numbered, is_again], {})
                )
            except NotServed:
                if is_large and not is_again:  # it may have taken longer than that until the link broke
                    deadline = trio.current_time() + PATIENCE_SECONDS
                is_again = True
                if trio.current_time() >= deadline:
                    raise
                await self._directory.moved_on(leader)
            else:
                return outcomes

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None:
        """The message of a unique queue that has this body."""
        data = body.data if isinstance(body, GatheredBody) else body
        found: MessageId | None = await (
            self._leader_client.again("contains", queue, data)
            if isinstance(data, bytes)
            else self._leader_client.again("contains_digest", queue, data.size, data.digest)
        )
        return found

    # Leases

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Give back messages that were fetched in vain. With another leader they have gone back by themselves."""
        await close(messages)
        with suppress(NotServed):
            await self._leader_client.once(
                "give_back", [message._replace(body=_NO_BODY) for message in messages], patience=0
            )

    # Holding

    async def hold(
        self,
        queue: str,
        most: int = 1,
        *,
        wait: float = 0,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage]:
        """Hold messages. A wait fails when the master does; a wait for a master goes on."""
        patience = math.inf if wait == math.inf else max(wait, PATIENCE_SECONDS)
        leader = await self._directory.serving(trio.current_time() + patience)
        alone = None
        if isinstance(exclusion, RemoteExclusion):
            if exclusion.leader is not leader:
                raise NotServed(
                    f"the exclusive consumer of queue {queue} was cancelled, because the cluster's master has changed"
                )
            alone = exclusion.number
        priority = 0 if precedence is None else precedence.priority
        handed: list[Handed] = await leader.call("hold", [queue, most, wait, alone, priority], {})
        return [RemoteUnacked.of(each, leader) for each in handed]

    async def exclude(self, queue: str, *, in_turn: bool = False) -> Exclusion:
        """Give a queue to one consumer alone. One that waits for its turn waits for a master, too."""
        leader = await self._directory.serving(trio.current_time() + (math.inf if in_turn else PATIENCE_SECONDS))
        return RemoteExclusion(leader, int(await leader.call("exclude", [queue, in_turn], {})))

    async def acknowledge(self, held: Sequence[RemoteUnacked], *, durable: bool) -> None:
        """Remove held messages. Those that an earlier leader handed out are held no more, and come again."""
        for leader, numbers in self._by_leader(held):
            await self._finish(leader, "acknowledge", [numbers, durable], must_know=durable)

    async def put_back(
        self, held: Sequence[RemoteUnacked], *, redelivered: bool, to_back: bool, failed: bool, most: int | None
    ) -> None:
        """Give held messages back."""
        for leader, numbers in self._by_leader(held):
            await self._finish(leader, "put_back", [numbers, redelivered, to_back, failed, most])

    async def reject(self, held: Sequence[RemoteUnacked]) -> None:
        """Reject held messages: they become dead letters."""
        for leader, numbers in self._by_leader(held):
            await self._finish(leader, "reject", [numbers])

    # How it is done

    async def _publish_in_pieces(
        self, leader: Leader, queue: str, drafts: Sequence[Draft], is_again: bool
    ) -> list[Published | MQError]:
        """Publish, and send the large bodies meanwhile, one piece after the other: each once the last one was taken."""
        bodies: dict[int, bytes | SpooledBody] = {}
        sent: list[Draft] = []
        for draft in drafts:
            if _goes_in_pieces(draft):
                assert isinstance(draft.body, bytes | SpooledBody), "a body that another store staged"
                self._last_body += 1
                bodies[self._last_body] = draft.body
                draft = draft._replace(body=cast(Any, Coming(self._last_body, _size(draft.body))))
            sent.append(draft)
        outcomes: list[Published | MQError] = []
        failures: list[MQError] = []

        async def send() -> None:
            try:
                await _send(leader, bodies)
            except MQError as error:  # then what the leader waits for never comes
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            try:
                outcomes = await leader.call("publish_in_pieces", [queue, sent, is_again], {})
            except MQError as error:
                failures.append(error)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return outcomes

    async def _ask(self, verb: Verb, *args: Any, **named: Any) -> Any:
        if verb.repeat is Repeat.NEVER or (verb.repeat is Repeat.UNLESS_IT_WAITS and named.get("wait")):
            return await self._leader_client.once(verb.name, *args, **named)
        return await self._leader_client.again(verb.name, *args, was_done=verb.was_done, **named)

    def _by_leader(self, held: Sequence[RemoteUnacked]) -> list[tuple[Leader, list[int]]]:
        now = self._directory.leader
        numbers = [each.number for each in held if each.leader is now]
        return [(now, numbers)] if now is not None and numbers else []

    async def _finish(self, leader: Leader, method: str, args: Sequence[Any], *, must_know: bool = False) -> None:
        try:
            await leader.call(method, args, {})
        except NotServed:
            if must_know:
                raise


def _goes_in_pieces(draft: Draft) -> bool:
    return isinstance(draft.body, SpooledBody) or len(cast(bytes, draft.body)) > WHOLE_BYTES


def _size(body: bytes | SpooledBody) -> int:
    return len(body) if isinstance(body, bytes) else body.size


async def _send(leader: Leader, bodies: Mapping[int, bytes | SpooledBody]) -> None:
    for number, body in bodies.items():
        if isinstance(body, bytes):
            for piece in pieces_of(body):
                await leader.call("piece", [number, piece], {})
        else:
            async with aclosing(body.pieces()) as pieces:
                async for piece in pieces:
                    await leader.call("piece", [number, piece], {})
        await leader.call("piece", [number, b""], {})
