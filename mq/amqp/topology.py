"""What has been declared: exchanges, queues and bindings by vhost, and the way of a message through them.

A change is planned, made durable by whoever asks, and then applied::

    change = topology.declare_queue(queue)  # checks, and changes nothing
    ...  # keep change.puts(), drop change.drops()
    topology.apply(change)

Plan, keep and apply one change before the next is planned. Nothing here waits, and nothing here knows of messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from mq.amqp import arguments as queue_arguments
from mq.amqp import declared
from mq.amqp.arguments import check_same
from mq.amqp.changes import NOTHING, Change, Removal, is_lasting
from mq.amqp.consumers import Consumers
from mq.amqp.declared import Binding, Destination, Exchange, Kind, Queue, Record
from mq.amqp.errors import Code, Refused
from mq.amqp.names import DEFAULT_VHOST, encode
from mq.amqp.routing import Headers, check_binding
from mq.amqp.vhost import Vhost
from mq.message import QueueName

RESERVED: Final = "amq."
"""What names begin with that no client may choose."""
PREDECLARED: Final[Mapping[str, Kind]] = {
    "amq.direct": Kind.DIRECT,
    "amq.fanout": Kind.FANOUT,
    "amq.topic": Kind.TOPIC,
    "amq.headers": Kind.HEADERS,
    "amq.match": Kind.HEADERS,
}
"""The exchanges that every vhost has, beside the default one."""


def server_named() -> str:
    """A new name for a queue whose client gave none."""
    return f"{RESERVED}gen-{secrets.token_urlsafe(16)}"


def _nobody(name: QueueName) -> bool:
    return False


class Topology:
    """All vhosts.

    Args:
        vhosts: their names; ``/`` is there anyway.
        has_queue: whether mq has a queue of that name that was not declared over AMQP. It is taken for a durable one.
    """

    def __init__(self, vhosts: Iterable[str] = (), has_queue: Callable[[QueueName], bool] = _nobody) -> None:
        self.consumers = Consumers()
        self._has_queue = has_queue
        self._vhosts = {name: Vhost(name) for name in (DEFAULT_VHOST, *vhosts) if name}
        for vhost in self._vhosts.values():
            for name, kind in PREDECLARED.items():
                vhost.add_exchange(Exchange(vhost.name, name, kind, durable=True))

    # Looking

    def has_vhost(self, name: str) -> bool:
        """Whether there is such a vhost."""
        return name in self._vhosts

    def exchange(self, vhost: str, name: str) -> Exchange:
        """An exchange that is not the default one.

        Raises:
            Refused: 404.
        """
        found = self._vhosts[vhost].exchanges.get(name)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")
        return found

    def queue(self, vhost: str, name: str, owner: Hashable | None = None) -> Queue:
        """A queue, as a connection may use it.

        Args:
            vhost: where it is.
            name: what it is called there.
            owner: the connection that asks.

        Raises:
            Refused: 404; or 405, it is another connection's own.
        """
        found = self._find_queue(vhost, name)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")
        _check_owner(found, owner)
        return found

    def queues(self) -> Iterator[Queue]:
        """Every queue that was declared over AMQP."""
        for vhost in self._vhosts.values():
            yield from vhost.queues.values()

    def route(self, vhost: str, exchange: str, routing_key: str, headers: Headers) -> list[Queue]:
        """The queues that a message comes to, each once, by name.

        Args:
            vhost: where it is published.
            exchange: what it is published to.
            routing_key: as published.
            headers: gives its headers, if somebody has to know.

        Raises:
            Refused: 404, there is no such exchange; 502, the headers are malformed.
        """
        if not exchange:
            queue = self._find_queue(vhost, routing_key)
            return [] if queue is None else [queue]
        self.exchange(vhost, exchange)
        place = self._vhosts[vhost]
        names: set[str] = set()
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            found = set(self._targets(place, waiting.pop(), routing_key, headers))
            names |= {target.name for target in found if target.is_queue}
            further = {target.name for target in found if not target.is_queue} - seen
            seen |= further
            waiting += further
        queues = (self._find_queue(vhost, name) for name in sorted(names))
        return [queue for queue in queues if queue is not None]

    def _targets(self, place: Vhost, exchange: str, routing_key: str, headers: Headers) -> Iterator[Destination]:
        if not exchange:
            if self._find_queue(place.name, routing_key):
                yield Destination(True, routing_key)
            return
        fitting = place.matchers[exchange].match(routing_key, headers)
        yield from (binding.to for binding in fitting)
        alternate = place.exchanges[exchange].alternate
        if not fitting and alternate is not None and (not alternate or alternate in place.exchanges):
            yield Destination(False, alternate)

    def _find_queue(self, vhost: str, name: str) -> Queue | None:
        found = self._vhosts[vhost].queues.get(name)
        if found is None and vhost == DEFAULT_VHOST and self._has_queue(encode(vhost, name)):
            return Queue(vhost, name, durable=True)
        return found

    # Exchanges

    def declare_exchange(self, exchange: Exchange) -> Change:
        """Plan an exchange; nothing when it is there as it is declared.

        Raises:
            Refused: 403, the name is reserved; 406, it is there and another one.
        """
        place = self._vhosts[exchange.vhost]
        if not exchange.name:
            raise Refused(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
        current = place.exchanges.get(exchange.name)
        if current is None:
            _check_name("exchange", exchange.vhost, exchange.name)
            alternate = exchange.alternate
            if alternate is not None and not isinstance(alternate, str):
                raise Refused(Code.PRECONDITION_FAILED, f"invalid arg 'alternate-exchange': {alternate!r} is no name")
            return Change(exchanges=(exchange,))
        what = f"exchange '{exchange.name}' in vhost '{exchange.vhost}'"
        check_same(what, _traits(exchange), _traits(current), ("type", "durable", "auto_delete", "internal"))
        check_same(what, exchange.arguments, current.arguments, ("alternate-exchange",))
        return NOTHING

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> Change:
        """Plan that an exchange goes, with its bindings; nothing when it is not there.

        Raises:
            Refused: 403, it belongs to the server; 406, it has bindings, and must not.
        """
        place = self._vhosts[vhost]
        if not name:
            raise Refused(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
        if name.startswith(RESERVED):
            raise Refused(Code.ACCESS_REFUSED, f"exchange '{name}' in vhost '{vhost}' belongs to the server")
        if name not in place.exchanges:
            return NOTHING
        if if_unused and place.bindings_from(name):
            raise Refused(Code.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{vhost}' in use")
        return Removal(place).plan(exchanges=[name])

    # Queues

    def declare_queue(self, queue: Queue) -> Change:
        """Plan a queue; nothing when it is there as it is declared. One without a name gets a new one.

        Raises:
            Refused: 403, the name is reserved; 405, it is a connection's own; 406, it is there and another one, or an
                argument is wrong.
        """
        what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
        current = self._find_queue(queue.vhost, queue.name)
        if current is not None:
            if current.owner != queue.owner:
                raise _locked(current)
            check_same(what, _traits(queue), _traits(current), ("durable", "auto_delete"))
            check_same(what, queue.arguments, current.arguments, queue_arguments.CHECKS)
            return NOTHING
        if queue.name:
            _check_name("queue", queue.vhost, queue.name)
        queue = replace(queue, name=queue.name or server_named())
        queue_arguments.check(queue)
        return Change(queues=(queue,))

    def delete_queue(self, vhost: str, name: str, owner: Hashable | None = None, *, if_unused: bool = False) -> Change:
        """Plan that a queue goes, with its bindings; nothing when it is not there. If it is empty is not known here.

        Raises:
            Refused: 405, it is another connection's own; 406, it has consumers, and must not.
        """
        queue = self._find_queue(vhost, name)
        if queue is None:
            return NOTHING
        _check_owner(queue, owner)
        if if_unused and self.consumers.count(queue.key):
            raise Refused(Code.PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost}' in use")
        return Removal(self._vhosts[vhost]).plan(queues=[queue])

    def gone(self, vhost: str, name: str) -> Change:
        """Plan what goes with a queue that went another way: somebody deleted it over HTTP."""
        place = self._vhosts[vhost]
        return Removal(place).plan(queues=[place.queues.get(name) or Queue(vhost, name, durable=True)])

    def left(self, vhost: str, name: str) -> Change:
        """Plan that a queue goes that is to go with its last consumer. A consumer has just left it."""
        queue = self._vhosts[vhost].queues.get(name)
        if queue is None or not queue.auto_delete or self.consumers.count(queue.key):
            return NOTHING
        return Removal(self._vhosts[vhost]).plan(queues=[queue])

    def disconnect(self, vhost: str, owner: Hashable) -> Change:
        """Plan that everything goes that a connection has to itself."""
        place = self._vhosts[vhost]
        return Removal(place).plan(queues=[queue for queue in place.queues.values() if queue.owner == owner])

    # Bindings

    def bind(self, binding: Binding, owner: Hashable | None = None) -> Change:
        """Plan a binding; nothing when it is there.

        Raises:
            Refused: 403, one end is the default exchange; 404, one end is not there; 405, the queue is another
                connection's own; 406, an argument is wrong.
        """
        _check_ends(binding)
        place = self._vhosts[binding.vhost]
        source = self.exchange(binding.vhost, binding.source)
        if binding.to.is_queue:
            self.queue(binding.vhost, binding.to.name, owner)
        else:
            self.exchange(binding.vhost, binding.to.name)
        check_binding(source.kind, binding.arguments)
        if binding in place.bindings:
            return NOTHING
        lasting = frozenset({binding} if is_lasting(place, binding) else ())
        return Change(bindings=(binding,), lasting_bindings=lasting)

    def unbind(self, binding: Binding, owner: Hashable | None = None) -> Change:
        """Plan that a binding goes; nothing when it, or one of its ends, is not there.

        Raises:
            Refused: 403, one end is the default exchange; 405, the queue is another connection's own.
        """
        _check_ends(binding)
        queue = self._find_queue(binding.vhost, binding.to.name) if binding.to.is_queue else None
        if queue is not None:
            _check_owner(queue, owner)
        place = self._vhosts[binding.vhost]
        return Removal(place).plan(bindings=[binding]) if binding in place.bindings else NOTHING

    # Changing

    def apply(self, change: Change) -> None:
        """Let the change be so that was planned last."""
        for binding in change.lost_bindings:
            self._vhosts[binding.vhost].drop_binding(binding)
        for queue in change.lost_queues:
            self._vhosts[queue.vhost].queues.pop(queue.name, None)
        for exchange in change.lost_exchanges:
            self._vhosts[exchange.vhost].drop_exchange(exchange)
        for exchange in change.exchanges:
            self._vhosts[exchange.vhost].add_exchange(exchange)
        for queue in change.queues:
            self._vhosts[queue.vhost].queues[queue.name] = queue
        for binding in change.bindings:
            self._vhosts[binding.vhost].add_binding(binding)

    def load(self, records: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Record]:
        """Take up what is in the store, once, at the start.

        Args:
            records: values by kind. What is of a vhost that there is not, stays in the store: it may be there again.

        Returns:
            The bindings that have lost an end. They are to be dropped, or else they would be there again, unasked for,
            when that end is.

        Raises:
            ValueError, KeyError, TypeError: a value that nobody here has written.
        """
        exchanges = (Exchange.stored(value) for value in records.get(declared.EXCHANGE, ()))
        queues = (Queue.stored(value) for value in records.get(declared.QUEUE, ()))
        self.apply(
            Change(
                tuple(exchange for exchange in exchanges if exchange.vhost in self._vhosts),
                tuple(queue for queue in queues if queue.vhost in self._vhosts),
            )
        )
        lost = []
        for binding in map(Binding.stored, records.get(declared.BINDING, ())):
            if binding.vhost not in self._vhosts:
                continue
            if self._has_ends(binding):
                self._vhosts[binding.vhost].add_binding(binding)
            else:
                lost.append(binding.record())
        return lost

    def _has_ends(self, binding: Binding) -> bool:
        exchanges = self._vhosts[binding.vhost].exchanges
        if binding.source not in exchanges:
            return False
        if not binding.to.is_queue:
            return binding.to.name in exchanges
        return self._find_queue(binding.vhost, binding.to.name) is not None


def _traits(thing: Exchange | Queue) -> dict[str, Any]:
    """What has to be the same when it is declared again, by the names that error texts use."""
    traits: dict[str, Any] = {"durable": thing.durable, "auto_delete": thing.auto_delete}
    if isinstance(thing, Exchange):
        traits |= {"type": thing.kind.value, "internal": thing.internal}
    return traits


def _check_name(what: str, vhost: str, name: str) -> None:
    if name.startswith(RESERVED):
        text = f"{what} name '{name}' in vhost '{vhost}' contains reserved prefix '{RESERVED}*'"
        raise Refused(Code.ACCESS_REFUSED, text)


def _check_owner(queue: Queue, owner: Hashable | None) -> None:
    if queue.owner is not None and queue.owner != owner:
        raise _locked(queue)


def _locked(queue: Queue) -> Refused:
    what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    return Refused(Code.RESOURCE_LOCKED, f"cannot obtain exclusive access to locked {what}")


def _check_ends(binding: Binding) -> None:
    if not binding.source or not (binding.to.is_queue or binding.to.name):
        raise Refused(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
