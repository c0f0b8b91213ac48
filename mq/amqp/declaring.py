"""The part of a channel that declares: from methods of the exchange and queue classes to commands, with the right that
each of them takes. What there is and what fits is the topology's to know, when the command is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pamqp import commands as methods

from mq.access import Right
from mq.amqp import arguments
from mq.amqp.commands import (
    Bind,
    ChannelCommand,
    ChannelKey,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    InspectQueue,
    PurgeQueue,
    Unbind,
)
from mq.amqp.declared import Binding, Destination, Exchange, Kind, Queue
from mq.amqp.errors import Code, Refused
from mq.amqp.session import Session


class Declaring:
    """What one channel declares.

    Attributes:
        last_queue: the name of the queue that was declared last; methods that name none mean it.
    """

    def __init__(self, key: ChannelKey, session: Session) -> None:
        self.last_queue = ""
        self._key = key
        self._session = session

    def queue_name(self, name: str) -> str:
        """The queue that a method means.

        Raises:
            Refused: 404; it means the last one, and there is none.
        """
        if not (name or self.last_queue):
            raise Refused(Code.NOT_FOUND, "no previously declared queue")
        return name or self.last_queue

    def usable_queue(self, name: str, right: Right) -> Queue:
        """The queue that a method means, if the user has that right on it.

        Raises:
            Refused: 403, 404, 405.
        """
        name = self.queue_name(name)
        self._session.demand(right, "queue", name)
        return self._session.topology.queue(self._session.vhost, name, self._session.owner)

    # Exchanges

    def declare_exchange(self, method: methods.Exchange.Declare) -> ChannelCommand | None:
        """Plan an exchange. None: it was only asked for, and it is there.

        Raises:
            Refused: 403; 404, it is not there; 503, there is no such type.
        """
        session, name = self._session, method.exchange
        if not name:
            raise Refused(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
        if method.passive:
            session.demand_any("exchange", name)
            session.topology.exchange(session.vhost, name)
            return None
        if method.exchange_type not in set(Kind):
            raise Refused(Code.COMMAND_INVALID, f"unknown exchange type '{method.exchange_type}'")
        session.demand(Right.CONFIGURE, "exchange", name)
        given = _table(method.arguments)
        self._demand_onward(given.get("alternate-exchange"), "")
        exchange = Exchange(
            session.vhost,
            name,
            Kind(method.exchange_type),
            method.durable,
            method.auto_delete,
            method.internal,
            given,
        )
        return DeclareExchange(self._key, exchange)

    def delete_exchange(self, method: methods.Exchange.Delete) -> ChannelCommand:
        """Plan that an exchange goes."""
        self._session.demand(Right.CONFIGURE, "exchange", method.exchange)
        return DeleteExchange(self._key, method.exchange, method.if_unused)

    # Queues

    def declare_queue(self, method: methods.Queue.Declare) -> ChannelCommand:
        """Plan a queue, or ask for it.

        Raises:
            Refused: 403; 404, it is not there; 405, it is another connection's own.
        """
        session = self._session
        if method.passive:
            name = self.queue_name(method.queue)
            session.demand_any("queue", name)
            return InspectQueue(self._key, session.topology.queue(session.vhost, name, session.owner))
        session.demand(Right.CONFIGURE, "queue", method.queue or "amq.gen-")
        given = _table(method.arguments)
        key = given.get(arguments.DEAD_LETTER_ROUTING_KEY)
        self._demand_onward(given.get(arguments.DEAD_LETTER_EXCHANGE), key)
        owner = session.owner if method.exclusive else None
        queue = Queue(session.vhost, method.queue, method.durable, method.auto_delete, owner, given)
        return DeclareQueue(self._key, queue)

    def _demand_onward(self, exchange: Any, routing_key: Any) -> None:
        """Whoever lets messages go elsewhere needs the right to publish there. To the default exchange without a key
        of its own a message may go anywhere, since its publisher chose the key."""
        if isinstance(exchange, str) and exchange:
            self._session.demand(Right.PUBLISH, "exchange", exchange)
        elif isinstance(exchange, str):
            self._session.demand(Right.PUBLISH, "queue", routing_key if isinstance(routing_key, str) else None)

    def delete_queue(self, method: methods.Queue.Delete) -> ChannelCommand:
        """Plan that a queue goes."""
        name = self.queue_name(method.queue)
        self._session.demand(Right.CONFIGURE, "queue", name)
        return DeleteQueue(self._key, name, method.if_unused, method.if_empty)

    def purge_queue(self, method: methods.Queue.Purge) -> ChannelCommand:
        """Plan that a queue is emptied."""
        return PurgeQueue(self._key, self.usable_queue(method.queue, Right.CONFIGURE))

    # Bindings

    def bind_queue(self, method: methods.Queue.Bind) -> ChannelCommand:
        """Plan a binding to a queue."""
        return Bind(self._key, self._to_queue(method))

    def unbind_queue(self, method: methods.Queue.Unbind) -> ChannelCommand:
        """Plan that a binding to a queue goes."""
        return Unbind(self._key, self._to_queue(method))

    def bind_exchange(self, method: methods.Exchange.Bind) -> ChannelCommand:
        """Plan a binding to an exchange."""
        return Bind(self._key, self._to_exchange(method))

    def unbind_exchange(self, method: methods.Exchange.Unbind) -> ChannelCommand:
        """Plan that a binding to an exchange goes."""
        return Unbind(self._key, self._to_exchange(method))

    def _to_queue(self, method: methods.Queue.Bind | methods.Queue.Unbind) -> Binding:
        name = self.queue_name(method.queue)
        key = name if not (method.queue or method.routing_key) else method.routing_key
        return self._binding(method.exchange, Destination(True, name), key, method.arguments)

    def _to_exchange(self, method: methods.Exchange.Bind | methods.Exchange.Unbind) -> Binding:
        to = Destination(False, method.destination)
        return self._binding(method.source, to, method.routing_key, method.arguments)

    def _binding(self, source: str, to: Destination, key: str, given: Mapping[str, Any] | None) -> Binding:
        """A binding takes what publishing to its target takes, and what reading its source does."""
        self._session.demand(Right.PUBLISH, "queue" if to.is_queue else "exchange", to.name)
        self._session.demand(Right.CONSUME, "exchange", source)
        return Binding(self._session.vhost, source, to, key, _table(given))


def _table(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return given or {}
