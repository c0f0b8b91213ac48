"""What a node answers to the links of its neighbours.

A link is a connection of AMQP like any other. It publishes its requests to the queue :data:`REQUESTS`, with
``reply-to`` and ``correlation-id``, and consumes the replies from the queue that it names there, which is its own as
long as it is connected. Both queues are no queues of the broker: what is asked of them ends here. So links have no
other way in than all clients: TLS, users and their rights are those of the AMQP door. Beyond that, a link has to know
the cluster's password.
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

from mq.amqp.errors import Refused
from mq.amqp.properties import Properties as AmqpProperties
from mq.broker import Browsed, Draft, Exclusion, Held, Published, Seen
from mq.broker.closing import close
from mq.cluster.term import Holder, Term
from mq.cluster.wire import Handed, Malformed, decode, encode
from mq.errors import BatchTooLarge, CallerError, CorruptMessage, MQError, NoSuchQueue, NotServed
from mq.lifecycle import State
from mq.message import BytesBody, DamagedBody, Message, MessageId, Properties
from mq.storage.interface import Entry

logger = logging.getLogger("mq.cluster")

REQUESTS: Final = "mq.cluster.requests"
REPLIES: Final = "mq.cluster.replies."
"""And then something that nobody else has."""
VERSION: Final = 1
"""Of what is said over links. Nodes of two versions that differ here do not talk to each other."""
LARGEST_REPLY: Final = 32 * 1024 * 1024
"""Bytes of bodies in one reply."""
NO_MASTER: Final = "this node serves no highly available queues just now"

_NOBODY: Final = MessageId("00000000-0000-1000-8000-000000000000")
"""Replies are no messages of a queue, but they have to look like some."""


class Session(Exclusion):
    """A link that is connected here. It is the exclusive consumer of its replies, and ends as one.

    Args:
        replies: the name of their queue.
        ended: called once, at its end.
    """

    def __init__(self, replies: str, ended: Callable[[Session], None]) -> None:
        self.replies = replies
        self.node = ""
        self.scopes: dict[str, trio.CancelScope] = {}
        self.is_open = True
        self._ended = ended
        self._outgoing: deque[Held] = deque()
        self._news = trio.Event()
        self._holder: tuple[Term, Holder] | None = None

    def end(self) -> None:
        """The link is gone."""
        if self.is_open:
            self.is_open = False
            for scope in self.scopes.values():
                scope.cancel()
            self._ended(self)

    def send(self, correlation: str, value: Any) -> None:
        """Let it have something."""
        properties = _with_correlation(correlation)
        body = encode(value)
        message = Message(self.replies, _NOBODY, BytesBody(body), Properties(len(body), None, properties), 1, "")
        self._outgoing.append(Held(message, False, Entry(self.replies, _NOBODY, State.READY)))
        self._news.set()

    async def take(self, most: int) -> list[Held]:
        """What is to be sent, once there is something."""
        while not self._outgoing:
            self._news = trio.Event()
            await self._news.wait()
        return [self._outgoing.popleft() for _ in range(min(most, len(self._outgoing)))]

    def holder(self, term: Term) -> Holder:
        """What it holds of that term."""
        if self._holder is None or self._holder[0] is not term:
            self._holder = (term, Holder())
        return self._holder[1]

    async def release(self) -> None:
        """Give back what it held."""
        if self._holder is not None:
            await self._holder[0].release(self._holder[1])


class Sessions:
    """All links that are connected here.

    Args:
        node: the name of this node.
        secret: of the cluster.

    Attributes:
        term: the mastership of this node; None while it is no master.
    """

    def __init__(self, node: str, secret: str) -> None:
        self.term: Term | None = None
        self._node = node
        self._secret = secret.encode()
        self._sessions: dict[str, Session] = {}
        self._queues: dict[str, Mapping[str, Any] | None] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer, for ever."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    # The queues that are none

    def owns(self, queue: str) -> bool:
        """Whether a queue of that name is one of these."""
        return queue == REQUESTS or queue.startswith(REPLIES)

    def open(self, replies: str) -> Session:
        """A link begins to consume its replies.

        Raises:
            NoSuchQueue: it cannot.
        """
        if not replies.startswith(REPLIES) or replies in self._sessions or self._nursery is None:
            raise NoSuchQueue(f"no link can consume from {replies}")
        session = self._sessions[replies] = Session(replies, self._end)
        return session

    async def take(self, replies: str, most: int, wait: float) -> list[Held]:
        """Replies for a link.

        Raises:
            NoSuchQueue: there is no such link.
        """
        session = self._sessions.get(replies)
        if session is None or wait != math.inf:
            raise NoSuchQueue(f"no link consumes from {replies}")
        return await session.take(most)

    def receive(self, drafts: Sequence[Draft]) -> list[Published | MQError]:
        """Requests, each of which is answered later."""
        return [self._receive(draft) for draft in drafts]

    # What links are told

    def begin(self, term: Term, queues: Mapping[str, Mapping[str, Any] | None]) -> None:
        """This node is master, and these are the highly available queues."""
        self.term = term
        self._queues = dict(queues)
        self._tell_all("serves", term.number, self._queues)

    def finish(self) -> None:
        """It is no more."""
        if self.term is not None:
            self._tell_all("ended", self.term.number)
            self.term = None

    def opened(self, queue: str, declared: Mapping[str, Any] | None) -> None:
        """There is one more queue."""
        self._queues[queue] = declared
        self._tell_all("opened", queue, declared)

    def closed(self, queue: str) -> None:
        """There is one less."""
        self._queues.pop(queue, None)
        self._tell_all("closed", queue)

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
        except (Malformed, Refused, KeyError, ValueError, TypeError) as error:
            return CallerError(f"not a request of a link: {error}")
        session = self._sessions.get(replies)
        if session is None or self._nursery is None:
            return NoSuchQueue(f"no link consumes from {replies}")
        if method == "hello":
            return self._greet(session, correlation, args)
        if not session.node:
            return CallerError("a link says hello first")
        if method == "cancel":
            scope = session.scopes.get(str(args[0]))
            if scope is not None:
                scope.cancel()
        else:
            self._nursery.start_soon(self._answer, session, correlation, method, args, named)
        return Published(_NOBODY)

    def _greet(self, session: Session, correlation: str, args: Sequence[Any]) -> Published | MQError:
        secret, node, version = (*args, None, None, None)[:3]
        if version != VERSION:
            session.send(correlation, CallerError(f"node {self._node} speaks version {VERSION} of links"))
        elif not isinstance(secret, str) or not hmac.compare_digest(secret.encode(), self._secret):
            logger.warning("node %s was refused: it has another password than this cluster", node)
            session.send(correlation, CallerError(f"node {self._node} has another password: use the same on all nodes"))
        else:
            session.node = str(node)
            session.send(correlation, self._node)
            if self.term is not None:
                session.send("", ("serves", self.term.number, self._queues))
        return Published(_NOBODY)

    async def _answer(
        self, session: Session, correlation: str, method: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        with trio.CancelScope() as scope:
            if not session.is_open:
                return
            session.scopes[correlation] = scope
            try:
                session.send(correlation, await self._perform(session, method, args, named))
            except MQError as error:
                session.send(correlation, error)
            finally:
                session.scopes.pop(correlation, None)
        if scope.cancelled_caught and session.is_open:
            session.send(correlation, None)  # nobody waits for it, but somebody remembers that

    async def _perform(self, session: Session, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        term = self.term
        if term is None:
            raise NotServed(NO_MASTER)
        holder = session.holder(term)
        value = await term.perform(holder, method, args, named)
        try:
            rest = _excess(value)
            if rest:
                await _undo(term, holder, rest)
                value = value[: len(value) - len(rest)]
            return await _in_memory(value)
        except BaseException:
            with trio.CancelScope(shield=True):
                await _undo(term, holder, value)
            raise

    def _end(self, session: Session) -> None:
        self._sessions.pop(session.replies, None)
        if self._nursery is not None:
            self._nursery.start_soon(session.release)


def _with_correlation(correlation: str) -> dict[str, Any]:
    """Attributes with which the AMQP door sends properties that have it."""
    flags = b"\x04\x00" if correlation else b"\x00\x00"
    raw = flags + (bytes([len(correlation)]) + correlation.encode() if correlation else b"")
    return {"amqp": {"properties": base64.b64encode(raw).decode(), "exchange": "", "routing_key": ""}}


async def _in_memory(value: Any) -> Any:
    """The same with every body read and closed."""
    if isinstance(value, Message):
        return value._replace(body=await _read(value))
    if isinstance(value, Seen | Handed):
        return value._replace(message=await _in_memory(value.message))
    if isinstance(value, list):
        return [await _in_memory(each) for each in value]
    if isinstance(value, tuple) and value and type(value) is tuple:
        return tuple([await _in_memory(each) for each in value])
    if isinstance(value, Browsed):
        return value._replace(messages=await _in_memory(list(value.messages)))
    return value


def _excess(value: Any) -> list[Any]:
    """What of a list of messages is too much for one reply, but for a single longer one.

    Raises:
        BatchTooLarge: it cannot be left out.
    """
    left = LARGEST_REPLY
    for place, each in enumerate(value if isinstance(value, list) else ()):
        message = each if isinstance(each, Message) else each.message if isinstance(each, Seen | Handed) else None
        left -= 0 if message is None else message.body.size
        if left < 0 and place:
            if isinstance(each, Seen):
                raise BatchTooLarge(f"these messages have more than {LARGEST_REPLY} bytes together: ask for fewer")
            return list(value[place:])
    return []


async def _undo(term: Term, holder: Holder, value: Any) -> None:
    """Messages were handed out that nobody gets."""
    handed = [each for each in value if isinstance(each, Handed)] if isinstance(value, list) else []
    leased = [each for each in value if isinstance(each, Message)] if isinstance(value, list) else []
    with suppress(MQError):  # or else they come back by themselves
        if handed:
            numbers = [each.number for each in handed]
            await term.perform(holder, "put_back", [numbers], {"redelivered": False, "to_back": False})
        if leased:
            await term.perform(holder, "give_back", [leased], {})


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
