"""Methods of the exchange and queue classes as commands, with the right that each of them needs.

The topology decides whether a declaration fits what exists, when the command is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pamqp import base
from pamqp import commands as methods

from mq.access import Right
from mq.amqp.model import arguments
from mq.amqp.model.declared import Binding, Destination, Exchange, ExchangeType, Queue
from mq.amqp.protocol.commands import (
    ChannelCommand,
    ChannelKey,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    InspectQueue,
    PurgeQueue,
)
from mq.amqp.protocol.session import Session
from mq.amqp.wire.errors import Code, Refusal
from mq.message import QueueName


class DeclareMethods:
    """Turns the declaring methods of one channel into commands.

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
            Refusal: 404; it means the last one, and there is none.
        """
        if not (name or self.last_queue):
            raise Refusal(
                Code.NOT_FOUND,
                "an empty queue name refers to the last queue declared on this channel, but none has been declared",
            )
        return name or self.last_queue

    def unsure_queue(self, method: base.Frame) -> QueueName | None:
        """The queue that a method names, where this node does not know whether it exists; else None."""
        name = getattr(method, "queue", "")
        is_new = isinstance(method, methods.Queue.Declare) and not method.passive
        unsure = None if is_new else self._session.topology.unsure(self._session.vhost, name)
        return None if unsure is None else unsure.key

    def usable_queue(self, name: str, right: Right) -> Queue:
        """The queue that a method means, if the user has that right on it.

        Raises:
            Refusal: 403, 404, 405.
        """
        name = self.queue_name(name)
        self._session.demand(right, "queue", name)
        return self._session.topology.queue(self._session.vhost, name, self._session.owner)

    # Exchanges

    def declare_exchange(self, method: methods.Exchange.Declare) -> ChannelCommand | None:
        """Plan an exchange. None: it was only asked for, and it is there.

        Raises:
            Refusal: 403; 404, it is not there; 503, there is no such type.
        """
        session, name = self._session, method.exchange
        if not name:
            raise Refusal(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
        if method.passive:
            session.demand_any("exchange", name)
            session.topology.exchange(session.vhost, name)
            return None
        if method.exchange_type not in set(ExchangeType):
            raise Refusal(Code.COMMAND_INVALID, f"unknown exchange type '{method.exchange_type}'")
        session.demand(Right.CONFIGURE, "exchange", name)
        given = _table(method.arguments)
        self._demand_onward("exchange", name, given.get("alternate-exchange"), "")
        exchange = Exchange(
            session.vhost,
            name,
            ExchangeType(method.exchange_type),
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
            Refusal: 403; 404, it is not there; 405, it is another connection's own.
        """
        session = self._session
        if method.passive:
            name = self.queue_name(method.queue)
            session.demand_any("queue", name)
            return InspectQueue(self._key, session.topology.queue(session.vhost, name, session.owner))
        session.demand(Right.CONFIGURE, "queue", method.queue or "amq.gen-")
        given = _table(method.arguments)
        key = given.get(arguments.DEAD_LETTER_ROUTING_KEY)
        self._demand_onward("queue", method.queue or "amq.gen-", given.get(arguments.DEAD_LETTER_EXCHANGE), key)
        owner = session.owner if method.exclusive else None
        queue = Queue(session.vhost, method.queue, method.durable, method.auto_delete, owner, given)
        return DeclareQueue(self._key, queue)

    def _demand_onward(self, what: str, name: str, exchange: Any, routing_key: Any) -> None:
        """Check the rights that forwarding messages needs: to consume from where they come, as it makes them readable,
        and to publish to where they go."""
        if isinstance(exchange, str):
            self._session.demand(Right.CONSUME, what, name)
        if isinstance(exchange, str) and exchange:
            self._session.demand(Right.PUBLISH, "exchange", exchange)
        elif isinstance(exchange, str):
            # Without a key of its own a message may go to any queue: its publisher chose the key.
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

    def binding(self, method: Any) -> Binding:
        """Plan a binding that is to be made, or to go."""
        if not isinstance(method, methods.Queue.Bind | methods.Queue.Unbind):
            return self._binding(
                method.source, Destination(False, method.destination), method.routing_key, method.arguments
            )
        name = self.queue_name(method.queue)
        key = name if not (method.queue or method.routing_key) else method.routing_key
        return self._binding(method.exchange, Destination(True, name), key, method.arguments)

    def _binding(self, source: str, to: Destination, key: str, given: Mapping[str, Any] | None) -> Binding:
        """A binding, after a check of its rights: to publish to its target, and to consume from its source."""
        self._session.demand(Right.PUBLISH, "queue" if to.is_queue else "exchange", to.name)
        self._session.demand(Right.CONSUME, "exchange", source)
        return Binding(self._session.vhost, source, to, key, _table(given))


def _table(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return given or {}
