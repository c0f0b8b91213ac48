"""Sessions of neighbours' links, and the answers to their requests.

A link is a connection of AMQP like any other. It publishes its requests to the queue :data:`REQUESTS`, with
``reply-to`` and ``correlation-id``, and consumes the replies from the queue that it names there. That queue is its own
as long as it is connected. Neither is a queue of the broker: this module answers for both. So links come in as all
clients do: TLS, users and their rights are those of the AMQP server. Beyond that, a link has to know the cluster's
password.
"""

from __future__ import annotations

import base64
import hmac
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import BasicProperties as AmqpProperties
from mq.broker import Browsed, Draft, Exclusion, Published, Seen, UnackedMessage
from mq.broker.bodies import close
from mq.cluster.leadership import Holder, Leadership
from mq.cluster.link_codec import Handed, Malformed, Waiting, decode, encode, messages_in
from mq.cluster.pieces import WHOLE_BYTES, OpenBodies
from mq.errors import BatchTooLarge, CallerError, CorruptMessage, MQError, NoSuchQueue, NotServed
from mq.lifecycle import State
from mq.message import BytesBody, DamagedBody, Message, MessageId, Properties
from mq.storage.interface import Entry

logger = logging.getLogger("mq.cluster")

REQUESTS: Final = "mq.cluster.requests"
REPLIES: Final = "mq.cluster.replies."
"""The prefix of the queues of replies; something unique follows."""
VERSION: Final = 6
"""Of the links' protocol. Nodes with different versions of it do not talk to each other."""
LARGEST_REPLY: Final = 32 * 1024 * 1024
"""Bytes of bodies in one reply."""
NO_MASTER: Final = "this node is not serving the cluster queues at the moment. Try again"

_NOBODY: Final = MessageId("00000000-0000-1000-8000-000000000000")
"""The id of every reply: replies are not messages of a queue, but look like some."""


class LinkSession(Exclusion):
    """A link that is connected here. It is the exclusive consumer of its replies, and ends as one.

    Attributes:
        node: the neighbour's name; empty before it has said hello.
    """

    def __init__(self, replies: str, ended: Callable[[LinkSession], None]) -> None:
        self.replies = replies
        self.node = ""
        self.scopes: dict[str, trio.CancelScope] = {}
        self.is_open = True
        self._ended = ended
        self._outgoing: deque[UnackedMessage] = deque()
        self._news = trio.Event()
        self._holders: list[tuple[Leadership, Holder]] = []

    def end(self) -> None:
        """End the session: its link is gone."""
        if self.is_open:
            self.is_open = False
            for scope in self.scopes.values():
                scope.cancel()
            self._ended(self)

    def send(self, correlation: str, value: Any) -> None:
        """Queue a reply or an event for the link."""
        properties = _with_correlation(correlation)
        body = encode(value)
        message = Message(self.replies, _NOBODY, BytesBody(body), Properties(len(body), None, properties), 1, "")
        self._outgoing.append(UnackedMessage(message, False, Entry(self.replies, _NOBODY, State.READY)))
        self._news.set()

    async def take(self, most: int) -> list[UnackedMessage]:
        """Wait for replies; up to `most` of them."""
        while not self._outgoing:
            self._news = trio.Event()
            await self._news.wait()
        return [self._outgoing.popleft() for _ in range(min(most, len(self._outgoing)))]

    def holder(self, leadership: Leadership) -> Holder:
        """The holder of what this link gets from a leadership."""
        if not self._holders or self._holders[-1][0] is not leadership:
            self._holders.append((leadership, Holder()))
        return self._holders[-1][1]

    async def close_bodies(self) -> None:
        """Close what the link was reading."""
        for _, holder in self._holders:
            await holder.bodies.close_all()

    async def release(self) -> None:
        """Give back what the link held."""
        for leadership, holder in self._holders:
            await leadership.release(holder)


class LinkSessions:
    """All links that are connected here.

    Attributes:
        leadership: this node's; None while it does not lead.
    """

    def __init__(self, node: str, secret: str) -> None:
        self.leadership: Leadership | None = None
        self._node = node
        self._secret = secret.encode()
        self._sessions: dict[str, LinkSession] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests, for ever."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # links that end after this have nothing to give back to: the node ends
        finally:
            for session in self._sessions.values():
                await session.close_bodies()

    @property
    def nodes(self) -> set[str]:
        """The neighbours that have a link to here."""
        return {session.node for session in self._sessions.values() if session.node}

    # The queues that are none

    def owns(self, queue: str) -> bool:
        """Whether a name is that of the requests or of replies: no queue of the broker."""
        return queue == REQUESTS or queue.startswith(REPLIES)

    def open(self, replies: str) -> LinkSession:
        """Begin a session: a link consumes its replies.

        Raises:
            NoSuchQueue: it cannot.
        """
        if not replies.startswith(REPLIES) or replies in self._sessions or self._nursery is None:
            raise NoSuchQueue(f"a cluster link cannot consume from reply queue {replies}")
        session = self._sessions[replies] = LinkSession(replies, self._end)
        return session

    async def take(self, replies: str, most: int, wait: float) -> list[UnackedMessage]:
        """Replies for a link.

        Raises:
            NoSuchQueue: there is no such link.
        """
        session = self._sessions.get(replies)
        if session is None or wait != math.inf:
            raise NoSuchQueue(f"no cluster link is consuming from reply queue {replies}")
        return await session.take(most)

    def receive(self, drafts: Sequence[Draft]) -> list[Published | MQError]:
        """Requests, each of which is answered later."""
        return [self._receive(draft) for draft in drafts]

    # What links are told

    def begin(self, leadership: Leadership) -> None:
        """Tell all links that this node leads."""
        self.leadership = leadership
        self._tell_all("serves", leadership.number)

    def finish(self) -> None:
        """Tell all links that this node leads no more."""
        if self.leadership is not None:
            self._tell_all("ended", self.leadership.number)
            self.leadership = None

    # How it is done

    def _tell_all(self, *event: Any) -> None:
        for session in self._sessions.values():
            if session.node:
                session.send("", event)

    def _receive(self, draft: Draft) -> Published | MQError:
        try:
            assert isinstance(draft.body, bytes), "what comes over AMQP is in memory"
            kept = draft.attributes["amqp"]
            properties = AmqpProperties(base64.b64decode(kept["properties"]))
            replies, correlation = properties.text("reply_to"), properties.text("correlation_id")
            method, args, named = decode(draft.body)
        except (Malformed, Refusal, KeyError, ValueError, TypeError) as error:
            return CallerError(f"invalid request on the cluster link: {error}")
        session = self._sessions.get(replies)
        if session is None or self._nursery is None:
            return NoSuchQueue(f"no cluster link is consuming from reply queue {replies}")
        if method == "hello":
            return self._greet(session, correlation, args)
        if not session.node:
            return CallerError("the first request on a cluster link must be hello")
        if method == "ping":
            session.send(correlation, None)
        elif method == "cancel":
            scope = session.scopes.get(str(args[0]))
            if scope is not None:
                scope.cancel()
        else:
            session.scopes[correlation] = trio.CancelScope()  # now: what cancels it may be next
            self._nursery.start_soon(self._answer, session, correlation, method, args, named)
        return Published(_NOBODY)

    def _greet(self, session: LinkSession, correlation: str, args: Sequence[Any]) -> Published | MQError:
        secret, node, version = (*args, None, None, None)[:3]
        if version != VERSION:
            session.send(
                correlation,
                CallerError(
                    f"node {self._node} uses version {VERSION} of the link protocol, but the connecting node uses a "
                    "different version. Run the same version of mq on all nodes"
                ),
            )
        elif not isinstance(secret, str) or not hmac.compare_digest(secret.encode(), self._secret):
            logger.warning(
                "refused the connection from node %s, because its cluster password differs from this node's. "
                "Use the same password on all nodes",
                node,
            )
            session.send(
                correlation,
                CallerError(f"node {self._node} has a different cluster password. Use the same password on all nodes"),
            )
        else:
            session.node = str(node)
            session.send(correlation, self._node)
            if self.leadership is not None:
                session.send("", ("serves", self.leadership.number))
        return Published(_NOBODY)

    async def _answer(
        self, session: LinkSession, correlation: str, method: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        with session.scopes[correlation] as scope:
            try:
                if not session.is_open:
                    return
                session.send(correlation, await self._perform(session, method, args, named))
            except MQError as error:
                session.send(correlation, error)
            finally:
                session.scopes.pop(correlation, None)
        if scope.cancelled_caught and session.is_open:
            session.send(correlation, None)  # not waited for, but the link keeps its number until then

    async def _perform(self, session: LinkSession, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        leadership = self.leadership
        if leadership is None:
            raise NotServed(NO_MASTER)
        holder = session.holder(leadership)
        value = await leadership.perform(holder, method, args, named)
        reply = _Reply(holder.bodies)
        try:
            rest = reply.excess(value)
            if rest:
                await _undo(leadership, holder, method, rest)
                value = value[: len(value) - len(rest)]
            sent = await reply.sendable(value)
            # What was handed out in the very step that ended the link could not be cancelled any more, and what the
            # link held may have been put back before: only this sees that no client gets it.
            await trio.lowlevel.checkpoint_if_cancelled()
            return sent
        except BaseException:
            with trio.CancelScope(shield=True):
                await reply.close()
                await _undo(leadership, holder, method, value)
            raise

    def _end(self, session: LinkSession) -> None:
        if self._nursery is not None:
            self._sessions.pop(session.replies, None)
            self._nursery.start_soon(session.release)


def _with_correlation(correlation: str) -> dict[str, Any]:
    """Attributes with which the AMQP server sends properties that have it."""
    flags = b"\x04\x00" if correlation else b"\x00\x00"
    raw = flags + (bytes([len(correlation)]) + correlation.encode() if correlation else b"")
    return {"amqp": {"properties": base64.b64encode(raw).decode(), "exchange": "", "routing_key": ""}}


class _Reply:
    """Makes what can be sent of an answer: with every body in memory, but for large ones that are read in pieces."""

    def __init__(self, bodies: OpenBodies) -> None:
        self._bodies = bodies
        self._opened: list[Waiting] = []

    async def sendable(self, value: Any) -> Any:
        """The same as it can be sent."""
        if isinstance(value, Message):
            return value._replace(body=await self._sendable_body(value))
        if isinstance(value, Seen | Handed):
            return value._replace(message=await self.sendable(value.message))
        if isinstance(value, list):
            return [await self.sendable(each) for each in value]
        if isinstance(value, tuple) and value and type(value) is tuple:
            return tuple([await self.sendable(each) for each in value])
        if isinstance(value, Browsed):
            return value._replace(messages=await self.sendable(list(value.messages)))
        return value

    async def _sendable_body(self, message: Message) -> Any:
        if not _is_open(message):
            return await _read(message)
        self._opened.append(self._bodies.add(message.body))
        return self._opened[-1]

    def excess(self, value: Any) -> list[Any]:
        """The last messages of a list, which are too much for one reply. A single longer one is not too much.

        Raises:
            BatchTooLarge: it cannot be left out.
        """
        left = LARGEST_REPLY
        for position, each in enumerate(value if isinstance(value, list) else ()):
            left -= sum(message.body.size for message in messages_in(each) if not _is_open(message))
            if left < 0 and position:
                if isinstance(each, Seen):
                    raise BatchTooLarge(
                        f"the requested messages exceed {LARGEST_REPLY} bytes in total. Request fewer messages at once"
                    )
                return list(value[position:])
        return []

    async def close(self) -> None:
        """Close what was opened: the answer is not sent."""
        for body in self._opened:
            await self._bodies.close(body.number)


def _is_open(message: Message) -> bool:
    """Whether its body is read in pieces."""
    return message.body.size > WHOLE_BYTES and not isinstance(message.body, DamagedBody)


async def _undo(leadership: Leadership, holder: Holder, method: str, value: Any) -> None:
    """Take back what a method gave in vain: an exclusion, or messages."""
    if method == "exclude":
        holder.end_exclusion(value)
    handed = [each for each in value if isinstance(each, Handed)] if isinstance(value, list) else []
    leased = [each for each in value if isinstance(each, Message)] if isinstance(value, list) else []
    with suppress(MQError):  # or else they come back by themselves
        if handed:
            numbers = [each.number for each in handed]
            await leadership.perform(holder, "put_back", [numbers], {"redelivered": False, "to_back": False})
        if leased:
            await leadership.perform(holder, "give_back", [leased], {})


async def _read(message: Message) -> BytesBody | DamagedBody:
    body = message.body
    if isinstance(body, BytesBody | DamagedBody):
        return body
    try:
        return BytesBody(await body.read())
    except CorruptMessage as error:
        return DamagedBody(body.size, str(error))
    finally:
        await close([message])
