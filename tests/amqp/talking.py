"""The other side of a connection, in tests: pamqp speaks, a few lines carry commands out."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from pamqp import base, body, frame, header
from pamqp import commands as methods

from mq.access import User
from mq.amqp.model.topology import Topology
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import Arrival, Command, PublishMessages, Settle, Settlement
from mq.amqp.protocol.connection import Connection
from mq.amqp.protocol.session import ConnectionLimits
from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.frames import PROTOCOL_HEADER

CAPABILITIES = {"consumer_cancel_notify": True, "authentication_failure_close": True, "connection.blocked": True}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def parse(data: bytes) -> Iterator[tuple[int, Any]]:
    """(channel, frame) as pamqp reads them. A protocol header is on channel 0."""
    while data:
        size, channel, found = frame.unmarshal(data)
        yield channel, found
        data = data[size:]


def words(method: base.Frame, channel: int = 1) -> bytes:
    return frame.marshal(method, channel)


def content(
    channel: int, payload: bytes, properties: methods.Basic.Properties | None = None, most: int = 4096
) -> bytes:
    head = frame.marshal(header.ContentHeader(body_size=len(payload), properties=properties), channel)
    parts = [payload[at : at + most] for at in range(0, len(payload), most)]
    return head + b"".join(frame.marshal(body.ContentBody(part), channel) for part in parts)


def publish(key: str, payload: bytes = b"x", *, channel: int = 1, properties: Any = None, **given: Any) -> bytes:
    return words(methods.Basic.Publish(routing_key=key, **given), channel) + content(channel, payload, properties)


class Peer:
    """A client of one connection, and the server behind it: queues are lists, and a consumer is served at once.

    Attributes:
        said: what the server said and nobody has looked at, as (channel, frame).
        done: every command, in order.
        stores: False keeps publishes waiting.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        *,
        owner: str = "c1",
        users: dict[tuple[str, str], User | None] | None = None,
        **limits: Any,
    ) -> None:
        self.clock = Clock()
        self.topology = topology or Topology(["blue"])
        self.owner = owner
        self.connection = Connection(self.topology, owner, self.clock, ConnectionLimits(**limits))
        self.users = {("guest", "guest"): None} if users is None else users
        self.said: deque[tuple[int, Any]] = deque()
        self.done: list[Command] = []
        self.stores = True
        self.queues: dict[str, deque[Arrival]] = defaultdict(deque)

    # The client

    def send(self, *data: bytes) -> None:
        self.connection.receive(b"".join(data))
        self.work()

    def say(self, *spoken: base.Frame, channel: int = 1) -> None:
        self.send(*(words(method, channel) for method in spoken))

    def call(self, method: base.Frame, channel: int = 1) -> Any:
        """Say it, and the one answer."""
        self.say(method, channel=channel)
        [(number, answer)] = self.heard()
        assert number == channel
        return answer

    def heard(self) -> list[tuple[int, Any]]:
        found = list(self.said)
        self.said.clear()
        return found

    def names(self) -> list[str]:
        """What was said, by name."""
        return [found.name for _, found in self.heard()]

    def begin(self, **capabilities: Any) -> None:
        self.send(PROTOCOL_HEADER)
        self.heard()

    def log_in(self, response: str = "\0guest\0guest", mechanism: str = "PLAIN", **properties: Any) -> None:
        given = {"capabilities": CAPABILITIES} | properties
        self.say(methods.Connection.StartOk(given, mechanism, response), channel=0)

    def open(
        self,
        vhost: str = "/",
        channels: int = 1,
        response: str = "\0guest\0guest",
        product: str = "tests",
        **tune: int,
    ) -> Peer:
        self.begin()
        self.log_in(response, product=product)
        self.say(
            methods.Connection.TuneOk(**({"channel_max": 2047, "frame_max": 131072, "heartbeat": 0} | tune)), channel=0
        )
        self.say(methods.Connection.Open(vhost), channel=0)
        for number in range(1, channels + 1):
            self.say(methods.Channel.Open(), channel=number)
        assert self.names()[-channels - 1 :] == ["Connection.OpenOk", *["Channel.OpenOk"] * channels]
        return self

    # The server

    def work(self) -> None:
        while (command := self.connection.next_command()) is not None:
            self.done.append(command)
            self.carry_out(command)
        self.flush()

    def flush(self) -> None:
        self.said += parse(self.connection.outgoing())

    def carry_out(self, command: Command) -> None:
        if isinstance(command, PublishMessages):
            for message in command.messages:
                self.store(message)
            if self.stores:
                self.connection.published(command.messages, is_stored=True)
        elif isinstance(command, Settle):
            self.settle(command)
        elif isinstance(command, commands.Credit):
            self.serve()
        else:
            try:
                result: Any = self.result(command)
            except Refusal as refusal:
                result = refusal
            self.connection.answer(command, result)
            self.serve()

    def store(self, message: commands.PublishedMessage) -> None:
        for queue in message.queues:
            token = (message.body, queue.name)
            arrival = Arrival(token, message.exchange, message.routing_key, message.properties.raw, message.body)
            self.queues[queue.key].append(arrival)

    def settle(self, command: Settle) -> None:
        if command.outcome is Settlement.REQUEUED:
            self.put_back(command.deliveries)

    def put_back(self, deliveries: tuple[commands.UnsettledDelivery, ...]) -> None:
        for delivery in reversed(deliveries):
            payload = delivery.token[0]
            self.queues[delivery.queue].appendleft(Arrival(delivery.token, "", "", b"\0\0", payload, True))

    def result(self, command: Any) -> Any:
        """As a server would: a plan, applied; or what happened to queues."""
        plan = self.plan(command)
        if plan is None:
            return self.use(command)
        self.topology.apply(plan)
        if isinstance(command, commands.DeclareQueue):
            return self.status(plan.queues[0] if plan.queues else command.queue)
        if isinstance(command, commands.DeleteQueue):
            return commands.Counted(sum(self.empty(queue.key) for queue in plan.lost_queues))
        return commands.Done()

    def plan(self, command: Any) -> TopologyChange | None:
        topology, vhost = self.topology, self.connection.session.vhost
        match command:
            case commands.DeclareExchange():
                return topology.declare_exchange(command.exchange)
            case commands.DeleteExchange():
                return topology.delete_exchange(vhost, command.name, if_unused=command.if_unused)
            case commands.Bind():
                return topology.bind(command.binding, self.owner)
            case commands.Unbind():
                return topology.unbind(command.binding, self.owner)
            case commands.DeclareQueue():
                return topology.declare_queue(command.queue)
            case commands.DeleteQueue():
                return topology.delete_queue(vhost, command.name, self.owner, if_unused=command.if_unused)
        return None

    def use(self, command: Any) -> Any:
        consumers = self.topology.consumers
        match command:
            case commands.Authenticate():
                who = (command.name, command.secret)
                return commands.Authenticated(self.users[who]) if who in self.users else None
            case commands.InspectQueue():
                return self.status(command.queue)
            case commands.PurgeQueue():
                return commands.Counted(self.empty(command.queue.key))
            case commands.Get():
                queue = self.queues[command.queue.key]
                return commands.Got(queue.popleft(), len(queue)) if queue else None
            case commands.Consume():
                consumers.add(command.queue, (command.channel, command.tag), exclusive=command.exclusive)
            case commands.Cancel():
                consumers.remove(command.queue, (command.channel, command.tag))
            case commands.Release():
                for tag, key in command.consumers:
                    consumers.remove(key, (command.channel, tag))
                self.put_back(command.deliveries)
            case commands.Commit():
                self.commit(command)
        return commands.Done()

    def commit(self, command: commands.Commit) -> None:
        for message in command.messages:
            self.store(message)
        for settled in command.settled:
            self.settle(settled)

    def status(self, queue: Any) -> commands.QueueDeclared:
        return commands.QueueDeclared(queue.name, len(self.queues[queue.key]), self.topology.consumers.count(queue.key))

    def empty(self, key: str) -> int:
        return len(self.queues.pop(key, ()))

    def serve(self) -> None:
        """Give every consumer what it may have."""
        for key, queue in list(self.queues.items()):
            for channel, tag in self.topology.consumers.of(key):  # type: ignore[misc]
                found = self.connection.channel(channel)
                most = 0 if found is None else found.deliveries.credit(tag)
                arrivals = [queue.popleft() for _ in range(min(most, len(queue)))]
                taken = self.connection.deliver(channel, tag, arrivals)
                queue.extendleft(reversed(arrivals[taken:]))


def ready(*bodies: bytes, product: str = "tests", **given: Any) -> Peer:
    """An open channel, and a queue with some messages."""
    peer = Peer(**given).open(product=product)
    peer.call(methods.Queue.Declare(queue="q"))
    peer.send(*(publish("q", body) for body in bodies))
    assert peer.heard() == []
    return peer


def deliveries(peer: Peer) -> list[tuple[str, int, bytes]]:
    """(consumer, tag, body) of what was delivered or got; anything else is a mistake."""
    said = [found for _, found in peer.heard()]
    found = []
    while said:
        method, head = said.pop(0), said.pop(0)
        body = b""
        while len(body) < head.body_size:
            body += said.pop(0).value
        found.append((getattr(method, "consumer_tag", ""), method.delivery_tag, body))
    return found


def confirms(peer: Peer) -> list[tuple[str, int, bool]]:
    return [(found.name[6:], found.delivery_tag, found.multiple) for _, found in peer.heard()]


def refusal(peer: Peer, *spoken: Any) -> tuple[int, str]:
    peer.say(*spoken)
    *_, (_, close) = peer.heard()
    assert close.name == "Channel.Close"
    return close.reply_code, close.reply_text
