"""The link to a neighbour: one connection of AMQP, opened again whenever it ends, with requests and events over it.

The other end is in :mod:`mq.cluster.link_sessions`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import trio
from pamqp import commands as methods

from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import BasicProperties
from mq.broker.queues import Declarations
from mq.client.amqp.connection import connect_link
from mq.client.amqp.link import ClientChannel, Why
from mq.client.amqp.link import Link as Connection
from mq.client.amqp.protocol import Arrived
from mq.client.errors import ClientError
from mq.cluster.config import ClusterConfig, Neighbor
from mq.cluster.directory import Directory
from mq.cluster.link_codec import BodyOf, Handed, Malformed, decode, encode, messages_in
from mq.cluster.link_sessions import REPLIES, REQUESTS, VERSION
from mq.cluster.pieces import RemoteBody
from mq.errors import MQError, NotServed, ServiceLost
from mq.message import BytesBody, Message

logger = logging.getLogger("mq.cluster")

CONNECT_SECONDS: Final = 4.0
AGAIN_SECONDS: Final = 0.2
"""Between two attempts to connect. A node that is up again should be found at once."""
HEARTBEAT_SECONDS: Final = 1
"""A neighbour that is silent for two of these is gone."""
MEASURE_SECONDS: Final = 1.0
"""Between two looks at how long a neighbour takes to answer."""
MOVED: Final = "cluster-moved"
"""The kind of the records of moved neighbours; their keys are the addresses of the file."""
LOST: Final = "the link to the master was lost before the master answered, so the outcome of the request is unknown"


class _Answer:
    def __init__(self) -> None:
        self.came = trio.Event()
        self.value: Any = None


class _Exchange(ClientChannel):
    """The channel of a link."""

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection, number)
        self.over = trio.Event()
        self.told: Callable[[str, Any], None] = lambda correlation, value: None
        self.body_of: BodyOf | None = None
        self._connection = connection

    async def begin(self, replies: str) -> None:
        """Consume replies."""
        await self.ask(methods.Basic.Consume, queue=replies, consumer_tag="mq", no_ack=True, exclusive=True)

    def put(self, properties: bytes, body: bytes) -> None:
        """Send a request."""
        self.check()
        self._connection.publish(self.number, REQUESTS, properties, body)

    def arrived(self, message: Arrived) -> None:
        """A reply, or an event."""
        try:
            self.told(BasicProperties(message.properties).text("correlation_id"), decode(message.body, self.body_of))
        except (Malformed, Refusal) as error:
            self._connection.end(f"the neighbor sent an invalid message: {error}")

    def consumer_ended(self) -> None:
        """End the exchange: the neighbour is stopping."""
        self.over.set()

    def end(self, why: Why) -> None:
        """End the exchange: nothing comes any more."""
        super().end(why)
        self.over.set()


class PeerLeader:
    """A :class:`~mq.cluster.directory.Leader`: a neighbour that serves, for as long as one connection lasts.

    Attributes:
        term: of the neighbour's mastership; 0 while it has none.
    """

    def __init__(self, exchange: _Exchange, replies: str) -> None:
        self.term = 0
        self._exchange = exchange
        self._replies = replies
        self._answers: dict[str, _Answer] = {}
        self._unwanted: set[str] = set()
        self._last = 0

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Send a request, and wait for its answer."""
        correlation = self._send(method, args, named)
        answer = self._answers[correlation] = _Answer()
        try:
            await answer.came.wait()
        except trio.Cancelled:
            if answer.came.is_set():
                self._give_up(answer.value)
            else:
                self._unwanted.add(correlation)
                self._tell("cancel", [correlation])
            raise
        finally:
            self._answers.pop(correlation, None)
        if isinstance(answer.value, MQError):
            raise answer.value
        return answer.value

    def end_exclusion(self, number: int) -> None:
        """End the exclusion of a consumer that has gone."""
        self._tell("end_exclusion", [number])

    async def body_piece(self, number: int) -> bytes:
        """The next piece of a body that is open there."""
        return bytes(await self.call("body_piece", [number], {}))

    def close_body(self, number: int) -> None:
        """Let it close a body."""
        self._tell("close_body", [number])

    def leave(self) -> None:
        """Fail all waiting calls."""
        for answer in self._answers.values():
            answer.value = ServiceLost(LOST)
            answer.came.set()

    def answered(self, correlation: str, value: Any) -> None:
        """Take an answer to a request."""
        answer = self._answers.get(correlation)
        if answer is not None:
            answer.value = value
            answer.came.set()
        elif correlation in self._unwanted:
            self._unwanted.discard(correlation)
            self._give_up(value)

    def _give_up(self, value: Any) -> None:
        """Put back the messages for a caller that has gone, as if they had not been handed out."""
        for message in messages_in(value):
            if isinstance(message.body, RemoteBody):
                self.close_body(message.body.number)
        if not isinstance(value, list) or not value:
            return
        if isinstance(value[0], Handed):
            self._tell("put_back", [[each.number for each in value], False, False])
        elif isinstance(value[0], Message):
            self._tell("give_back", [[message._replace(body=BytesBody(b"")) for message in value]])

    def _tell(self, method: str, args: Sequence[Any]) -> None:
        with suppress(NotServed):  # it ends with the connection
            self._send(method, args, {})

    def _send(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> str:
        self._last += 1
        correlation = str(self._last)
        properties = methods.Basic.Properties(reply_to=self._replies, correlation_id=correlation)
        try:
            self._exchange.put(properties.marshal(), encode([method, list(args), dict(named)]))
        except ClientError as error:
            raise ServiceLost(LOST) from error
        return correlation


Dial = Callable[[ClusterConfig, Neighbor], AbstractAsyncContextManager[Connection]]
"""Opens a connection to a neighbour, for the length of a block."""


def dial(config: ClusterConfig, neighbor: Neighbor) -> AbstractAsyncContextManager[Connection]:
    """A connection over TCP, and with TLS where the cluster has authorities for it."""
    return connect_link(
        f"{'amqp' if config.ca is None else 'amqps'}://{neighbor}",
        role="cluster",
        user=(config.user, config.password),
        ca=config.ca,
        certificate=config.certificate,
        timeout=CONNECT_SECONDS,
        heartbeat=HEARTBEAT_SECONDS,
    )


class PeerLink:
    """The link to one neighbour.

    Attributes:
        node: its name; empty before the first contact.
        is_up: whether the link holds, and the neighbour has accepted this node.
    """

    def __init__(self, config: ClusterConfig, neighbor: Neighbor, directory: Directory, dial: Dial) -> None:
        self._config = config
        self.filed = self.neighbor = neighbor
        self._attempt = trio.CancelScope()
        self.node = ""
        self.is_up = False
        self._took = 0.0
        self._asked: float | None = None
        self._directory = directory
        self._dial = dial
        self._was_told = ""

    @property
    def latency_seconds(self) -> float | None:
        """How long the neighbour took for its last answer, or takes for the next where that is longer already; None
        while the link is down."""
        if not self.is_up:
            return None
        return self._took if self._asked is None else max(self._took, trio.current_time() - self._asked)

    async def run(self) -> None:
        """Keep the link, for ever."""
        while True:
            try:
                with trio.CancelScope() as self._attempt:
                    await self._serve()
            except (ClientError, MQError, ExceptionGroup) as error:
                self._tell(f"cannot connect to neighbor {self.neighbor}: {error}")
            await trio.sleep(AGAIN_SECONDS)

    def move(self, neighbor: Neighbor) -> None:
        """Look for the neighbour at another place."""
        self.neighbor = neighbor
        self._attempt.cancel()

    async def _serve(self) -> None:
        config = self._config
        async with self._dial(config, self.neighbor) as connection:
            replies = REPLIES + secrets.token_hex(16)
            exchange = await connection.open_channel(_Exchange)
            line = PeerLeader(exchange, replies)
            exchange.told = lambda correlation, value: self._on(line, correlation, value)
            exchange.body_of = lambda number, size: RemoteBody(line, number, size)
            await exchange.begin(replies)
            try:
                self.node = await line.call("hello", [config.password, config.node, VERSION], {})
                self._tell(f"connected to node {self.node} at {self.neighbor}")
                self.is_up, self._took, self._asked = True, 0.0, None
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._measure, line)
                    await exchange.over.wait()
                    nursery.cancel_scope.cancel()
            finally:
                self.is_up = False
                self._directory.end(line)
                line.leave()

    async def _measure(self, line: PeerLeader) -> None:
        """Ask the neighbour for an answer now and then, for ever."""
        while True:
            self._asked = trio.current_time()
            with suppress(MQError):  # a refusal is an answer, too
                await line.call("ping", [], {})
            self._took, self._asked = trio.current_time() - self._asked, None
            await trio.sleep(MEASURE_SECONDS)

    def _on(self, line: PeerLeader, correlation: str, value: Any) -> None:
        if correlation:
            line.answered(correlation, value)
            return
        event, term = value
        if event == "serves":
            line.term = term
            self._directory.begin(line)
        else:
            self._directory.end(line)

    def _tell(self, news: str) -> None:
        if news != self._was_told:
            self._was_told = news
            logger.info(news)


class MovedNeighbors:
    """The new places of neighbours that were replaced, and serve elsewhere than the cluster's file says. Kept in this
    node's root.
    """

    def __init__(self, local: Declarations) -> None:
        self._local = local

    async def load(self, filed: Collection[Neighbor]) -> Mapping[Neighbor, Neighbor]:
        """New places by those of the file. What was said of places that the file has no more is forgotten."""
        places = {str(neighbor): neighbor for neighbor in filed}
        found = {}
        for key, value in (await self._local.records(MOVED)).items():
            if key in places:
                found[places[key]] = Neighbor(value["host"], value["port"])
            else:
                await self._local.drop(MOVED, key)
        return found

    async def put(self, filed: Neighbor, now: Neighbor) -> None:
        """Keep a new place."""
        if filed == now:
            await self._local.drop(MOVED, str(filed))
        else:
            await self._local.put(MOVED, str(filed), now._asdict())
