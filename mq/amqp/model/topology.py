"""The topology: exchanges, queues and bindings by vhost, their consumers, and the route of a message.

A change is planned, made durable by the caller, and then applied::

    change = topology.declare_queue(queue)  # checks, and changes nothing
    ...  # keep change.puts(), drop change.drops()
    topology.apply(change)

Plan, keep and apply one change before the next is planned. Nothing here waits, and nothing here knows of messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mq.amqp.model import arguments as queue_arguments
from mq.amqp.model import declared
from mq.amqp.model.arguments import check_same
from mq.amqp.model.declared import Binding, Destination, DurableRecord, Exchange, ExchangeType, Queue
from mq.amqp.model.names import DEFAULT_VHOST, SERVER_NAMED, encode
from mq.amqp.model.routing import Headers, check_binding
from mq.amqp.model.vhost import NOTHING, Cascade, TopologyChange, Vhost, is_lasting
from mq.amqp.wire.errors import Code, Refusal
from mq.message import QueueName

RESERVED: Final = "amq."
"""The prefix of names that no client may choose."""
PREDECLARED: Final[Mapping[str, ExchangeType]] = {
    "amq.direct": ExchangeType.DIRECT,
    "amq.fanout": ExchangeType.FANOUT,
    "amq.topic": ExchangeType.TOPIC,
    "amq.headers": ExchangeType.HEADERS,
    "amq.match": ExchangeType.HEADERS,
}
"""The exchanges that every vhost has, beside the default one."""


def server_named() -> str:
    """A new name for a queue that was declared without one."""
    return f"{SERVER_NAMED}{secrets.token_urlsafe(16)}"


class Topology:
    """All vhosts.

    Args:
        vhosts: their names; ``/`` is there anyway.
        has_queue: whether mq has a queue of that name, not declared over AMQP. It is taken for a durable one.
        may_have: whether mq may have one that is not known here.
        is_caught_up: whether the bindings that other nodes have made are known here.

    Attributes:
        looked_at: bindings compared with messages so far, and queues found for them, for a caller that takes turns.
        stranded: bindings in the store that are not in effect, for they have lost an exchange. A deleted exchange
            leaves none; a damaged record does. They are in effect again after a restart, once that is declared.
    """

    def __init__(
        self,
        vhosts: Iterable[str] = (),
        has_queue: Callable[[QueueName], bool] = lambda name: False,
        may_have: Callable[[QueueName], bool] = lambda name: False,
        is_caught_up: Callable[[], bool] = lambda: True,
    ) -> None:
        self.consumers = ConsumerRegistry()
        self.looked_at = 0
        self.stranded: list[Binding] = []
        self._has_queue = has_queue
        self._may_have = may_have
        self._is_caught_up = is_caught_up
        self._exclusive: dict[Hashable, dict[str, Queue]] = {}  # by the connection that owns them
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
            Refusal: 404.
        """
        found = self._vhosts[vhost].exchanges.get(name)
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")
        return found

    def queue(self, vhost: str, name: str, owner: Hashable | None = None) -> Queue:
        """A queue, as a connection may use it.

        Raises:
            Refusal: 404; or 405, it is another connection's own.
        """
        found = self._find_queue(vhost, name)
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")
        if found.owner is not None:
            _check_owner(found, owner)
        return found

    def vhosts(self) -> Iterator[Vhost]:
        """Each of them, by name."""
        return iter([self._vhosts[name] for name in sorted(self._vhosts)])

    def queues(self) -> Iterator[Queue]:
        """Every queue that was declared over AMQP."""
        for vhost in self._vhosts.values():
            yield from vhost.queues.values()

    def queues_by_name(self, vhost: str) -> Mapping[str, Queue]:
        """The queues of a vhost that were declared over AMQP, as they are at each time."""
        return self._vhosts[vhost].queues

    def route(
        self, vhost: str, exchange: str, routing_key: str, headers: Headers, copied_to: Sequence[str] = ()
    ) -> list[Queue]:
        """The queues that a message comes to, each once, by name. Unsure queues are among them: the store decides
        whether they exist.

        Args:
            headers: returns its headers. Only called where an exchange routes by them.

        Raises:
            Refusal: 404, there is no such exchange; 502, the headers are malformed.
        """
        if not exchange and not copied_to:
            queue = self._target(vhost, routing_key)
            return [] if queue is None else [queue]
        if exchange:
            self.exchange(vhost, exchange)
        keys = (routing_key, *copied_to)
        place = self._vhosts[vhost]
        names: set[str] = set()
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            found = set(self._targets(place, waiting.pop(), keys, headers))
            names |= {target.name for target in found if target.is_queue}
            further = {target.name for target in found if not target.is_queue} - seen
            seen |= further
            waiting += further
        self.looked_at += len(names)
        queues = (self._target(vhost, name) for name in sorted(names))
        return [queue for queue in queues if queue is not None]

    def is_unrouted(self, vhost: str, exchange: str) -> bool:
        """Whether it is not known just now where an exchange leads: other nodes of a cluster may have bound it."""
        place = self._vhosts[vhost]
        found = place.exchanges.get(exchange)
        if found is None or self._is_caught_up():
            return False
        leads_on = found.alternate is not None or any(not each.to.is_queue for each in place.bindings_from(exchange))
        return found.is_shareable or leads_on

    def _targets(
        self, place: Vhost, exchange: str, routing_keys: Sequence[str], headers: Headers
    ) -> Iterator[Destination]:
        if not exchange:
            yield from (Destination(True, key) for key in routing_keys if self._target(place.name, key))
            return
        matcher = place.matchers[exchange]
        keys = routing_keys if matcher.looks_at_keys else routing_keys[:1]
        before = matcher.looked_at
        fitting = [binding for key in keys for binding in matcher.match(key, headers)]
        self.looked_at += matcher.looked_at - before + len(fitting)
        yield from (binding.to for binding in fitting)
        alternate = place.exchanges[exchange].alternate
        if not fitting and alternate is not None and (not alternate or alternate in place.exchanges):
            yield Destination(False, alternate)

    def unsure(self, vhost: str, name: str) -> Queue | None:
        """A queue that is not known here, and may be there all the same."""
        if not name or name in self._vhosts[vhost].queues:
            return None
        if self._find_queue(vhost, name) is not None or not self._may_have(encode(vhost, name)):
            return None
        return Queue(vhost, name, durable=True, is_unsure=True)

    def _target(self, vhost: str, name: str) -> Queue | None:
        return self._find_queue(vhost, name) or self.unsure(vhost, name)

    def _find_queue(self, vhost: str, name: str) -> Queue | None:
        found = self._vhosts[vhost].queues.get(name)
        if found is None and vhost == DEFAULT_VHOST and self._has_queue(encode(vhost, name)):
            return Queue(vhost, name, durable=True)
        return found

    # Exchanges

    def declare_exchange(self, exchange: Exchange) -> TopologyChange:
        """Plan an exchange; nothing when it is there as it is declared.

        Raises:
            Refusal: 403, the name is reserved; 406, it is there and another one.
        """
        place = self._vhosts[exchange.vhost]
        if not exchange.name:
            raise Refusal(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
        current = place.exchanges.get(exchange.name)
        if current is None:
            _check_name("exchange", exchange.vhost, exchange.name)
            alternate = exchange.alternate
            if alternate is not None and not isinstance(alternate, str):
                raise Refusal(
                    Code.PRECONDITION_FAILED,
                    f"invalid arg 'alternate-exchange': {alternate!r} is not a valid exchange name",
                )
            return TopologyChange(exchanges=(exchange,))
        what = f"exchange '{exchange.name}' in vhost '{exchange.vhost}'"
        check_same(what, _traits(exchange), _traits(current), ("type", "durable", "auto_delete", "internal"))
        check_same(what, exchange.arguments, current.arguments, ("alternate-exchange",))
        return NOTHING

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> TopologyChange:
        """Plan that an exchange goes, with its bindings; nothing when it is not there.

        Raises:
            Refusal: 403, it belongs to the server; 406, it has bindings, and must not.
        """
        place = self._vhosts[vhost]
        if not name:
            raise Refusal(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
        if name.startswith(RESERVED):
            raise Refusal(
                Code.ACCESS_REFUSED, f"exchange '{name}' in vhost '{vhost}' is predefined and cannot be deleted"
            )
        if name not in place.exchanges:
            return NOTHING
        if if_unused and place.bindings_from(name):
            raise Refusal(Code.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{vhost}' is in use")
        return Cascade(place).plan(exchanges=[name])

    # Queues

    def declare_queue(self, queue: Queue) -> TopologyChange:
        """Plan a queue; nothing when it is there as it is declared. One without a name gets a new one.

        Raises:
            Refusal: 403, the name is reserved; 405, it is a connection's own; 406, it is there and another one, or an
                argument is wrong.
        """
        what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
        current = self._find_queue(queue.vhost, queue.name)
        if current is not None:
            if current.owner != queue.owner:
                raise _locked(current)
            check_same(what, _traits(queue), _traits(current), ("durable", "auto_delete"))
            queue_arguments.check_same_queue(what, queue.arguments, current.arguments)
            return NOTHING
        if queue.name:
            _check_name("queue", queue.vhost, queue.name)
        queue = replace(queue, name=queue.name or server_named())
        queue_arguments.check(queue)
        return TopologyChange(queues=(queue,))

    def delete_queue(
        self, vhost: str, name: str, owner: Hashable | None = None, *, if_unused: bool = False
    ) -> TopologyChange:
        """Plan that a queue goes, with its bindings; nothing when it is not there. That it is empty, the caller checks.

        Raises:
            Refusal: 405, it is another connection's own; 406, it has consumers, and must not.
        """
        queue = self._find_queue(vhost, name)
        if queue is None:
            return NOTHING
        _check_owner(queue, owner)
        if if_unused and self.consumers.count(queue.key):
            raise Refusal(Code.PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost}' is in use")
        return Cascade(self._vhosts[vhost]).plan(queues=[queue])

    def gone(self, vhost: str, name: str) -> TopologyChange:
        """Plan the removals that follow from a queue's deletion by another protocol, such as its bindings."""
        place = self._vhosts[vhost]
        return Cascade(place).plan(queues=[place.queues.get(name) or Queue(vhost, name, durable=True)])

    def left(self, vhost: str, name: str) -> TopologyChange:
        """Plan the end of an auto-delete queue whose last consumer has left it."""
        queue = self._vhosts[vhost].queues.get(name)
        if queue is None or not queue.auto_delete or self.consumers.count(queue.key):
            return NOTHING
        return Cascade(self._vhosts[vhost]).plan(queues=[queue])

    def has_exclusive_queues(self, owner: Hashable) -> bool:
        """Whether a connection has exclusive queues."""
        return owner in self._exclusive

    def disconnect(self, vhost: str, owner: Hashable) -> TopologyChange:
        """Plan that all exclusive queues of a connection go."""
        return Cascade(self._vhosts[vhost]).plan(queues=list(self._exclusive.get(owner, {}).values()))

    # Bindings

    def bind(self, binding: Binding, owner: Hashable | None = None) -> TopologyChange:
        """Plan a binding; nothing when it is there.

        Raises:
            Refusal: 403, one end is the default exchange; 404, one end is not there; 405, the queue is another
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
        lasting = frozenset({binding.way} if is_lasting(place, binding.way) else ())
        return TopologyChange(bindings=(binding,), lasting_ways=lasting)

    def unbind(self, binding: Binding, owner: Hashable | None = None) -> TopologyChange:
        """Plan that a binding goes; nothing when it, or one of its ends, is not there.

        Raises:
            Refusal: 403, one end is the default exchange; 405, the queue is another connection's own.
        """
        _check_ends(binding)
        queue = self._find_queue(binding.vhost, binding.to.name) if binding.to.is_queue else None
        if queue is not None:
            _check_owner(queue, owner)
        place = self._vhosts[binding.vhost]
        return Cascade(place).plan(bindings=[binding]) if binding in place.bindings else NOTHING

    # What the nodes of a cluster share

    def shared(self, record: DurableRecord) -> TopologyChange:
        """Plan an exchange or a binding that another node has declared; nothing where it is there, or an end of the
        binding is not.

        Raises:
            ValueError, KeyError, TypeError: the record is not one that mq has written.
        """
        if record.kind == declared.EXCHANGE:
            exchange = Exchange.stored(record.value)
            is_known = not self.has_vhost(exchange.vhost) or exchange.name in self._vhosts[exchange.vhost].exchanges
            return NOTHING if is_known else TopologyChange(exchanges=(exchange,))
        binding = Binding.stored(record.value)
        if not self.has_vhost(binding.vhost) or binding in self._vhosts[binding.vhost].bindings:
            return NOTHING
        return TopologyChange(bindings=(binding,)) if self._has_ends(binding) else NOTHING

    def unshared(self, record: DurableRecord) -> TopologyChange:
        """Plan what goes with an exchange or a binding that another node has deleted; nothing where it is not there."""
        if record.kind == declared.EXCHANGE:
            exchange = Exchange.stored(record.value)
            place = self._vhosts.get(exchange.vhost)
            is_there = place is not None and place.exchanges.get(exchange.name) == exchange
            return Cascade(place).plan(exchanges=[exchange.name]) if is_there and place else NOTHING
        binding = Binding.stored(record.value)
        place = self._vhosts.get(binding.vhost)
        return Cascade(place).plan(bindings=[binding]) if place and binding in place.bindings else NOTHING

    def everything(self) -> TopologyChange:
        """All that is declared, as if it were added, apart from the exchanges that each vhost has."""
        places = self._vhosts.values()
        return TopologyChange(
            tuple(
                exchange
                for place in places
                for exchange in place.exchanges.values()
                if exchange.name and not exchange.name.startswith(RESERVED)
            ),
            tuple(queue for place in places for queue in place.queues.values()),
            tuple(binding for place in places for binding in place.bindings),
        )

    # Changing

    def apply(self, change: TopologyChange) -> None:
        """Apply the change that was planned last."""
        for _ in self.applying(change):
            pass

    def applying(self, change: TopologyChange) -> Iterator[None]:
        """Apply the change that was planned last, step by step: with a queue or an exchange go all of its bindings."""
        for binding in change.lost_bindings:
            self._vhosts[binding.vhost].drop_binding(binding)
            yield
        for queue in change.lost_queues:
            self._vhosts[queue.vhost].queues.pop(queue.name, None)
            self._forget_exclusive(queue)
            yield
        for exchange in change.lost_exchanges:
            self._vhosts[exchange.vhost].drop_exchange(exchange)
            yield
        for exchange in change.exchanges:
            self._vhosts[exchange.vhost].add_exchange(exchange)
            yield
        for queue in change.queues:
            self._vhosts[queue.vhost].queues[queue.name] = queue
            if queue.owner is not None:
                self._exclusive.setdefault(queue.owner, {})[queue.name] = queue
            yield
        for binding in change.bindings:
            self._vhosts[binding.vhost].add_binding(binding)
            yield

    def _forget_exclusive(self, queue: Queue) -> None:
        queues = self._exclusive.get(queue.owner, {})
        queues.pop(queue.name, None)
        if not queues:
            self._exclusive.pop(queue.owner, None)

    def load(self, records: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[DurableRecord]:
        """Take up what is in the store, once, at the start.

        Args:
            records: values by kind. Records of a vhost that is not served now stay in the store: it may come back.

        Returns:
            The bindings that have lost a queue. The caller must drop them: else they would come back unasked for, once
            that queue is declared again. Those that have lost an exchange are :attr:`stranded`.

        Raises:
            ValueError, KeyError, TypeError: a value that mq has not written.
        """
        exchanges = (Exchange.stored(value) for value in records.get(declared.EXCHANGE, ()))
        queues = (Queue.stored(value) for value in records.get(declared.QUEUE, ()))
        self.apply(
            TopologyChange(
                tuple(exchange for exchange in exchanges if exchange.vhost in self._vhosts),
                tuple(queue for queue in queues if queue.vhost in self._vhosts),
            )
        )
        lost: list[DurableRecord] = []
        for binding in map(Binding.stored, records.get(declared.BINDING, ())):
            if binding.vhost not in self._vhosts:
                continue
            if self._has_ends(binding):
                self._vhosts[binding.vhost].add_binding(binding)
            elif self._has_exchanges(binding):
                lost.append(binding.record())
            else:
                self.stranded.append(binding)
        return lost

    def _has_exchanges(self, binding: Binding) -> bool:
        exchanges = self._vhosts[binding.vhost].exchanges
        return binding.source in exchanges and (binding.to.is_queue or binding.to.name in exchanges)

    def _has_ends(self, binding: Binding) -> bool:
        if not self._has_exchanges(binding):
            return False
        return not binding.to.is_queue or self._find_queue(binding.vhost, binding.to.name) is not None


def _traits(thing: Exchange | Queue) -> dict[str, Any]:
    """The traits that must be the same when it is declared again, by their names in error texts."""
    traits: dict[str, Any] = {"durable": thing.durable, "auto_delete": thing.auto_delete}
    if isinstance(thing, Exchange):
        traits |= {"type": thing.kind.value, "internal": thing.internal}
    return traits


def _check_name(what: str, vhost: str, name: str) -> None:
    if name.startswith(RESERVED):
        text = f"{what} name '{name}' in vhost '{vhost}' contains the reserved prefix '{RESERVED}*'"
        raise Refusal(Code.ACCESS_REFUSED, text)


def _check_owner(queue: Queue, owner: Hashable | None) -> None:
    if queue.owner is not None and queue.owner != owner:
        raise _locked(queue)


def _locked(queue: Queue) -> Refusal:
    what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    return Refusal(Code.RESOURCE_LOCKED, f"cannot obtain exclusive access to locked {what}")


def _check_ends(binding: Binding) -> None:
    if not binding.source or not (binding.to.is_queue or binding.to.name):
        raise Refusal(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")


class ConsumerRegistry:
    """The consumers of all queues."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueName, dict[Hashable, int]] = {}  # with their priorities
        self._active: dict[QueueName, Hashable] = {}
        self._exclusive: set[QueueName] = set()

    def add(self, queue: Queue, consumer: Hashable, *, exclusive: bool = False, priority: int = 0) -> None:
        """Add a consumer of a queue.

        Args:
            exclusive: whether no other may consume while it does.
            priority: see :meth:`active`.

        Raises:
            Refusal: 403, another consumer is exclusive, or this one wants to be and is not the first.
        """
        there = self._by_queue.get(queue.key, {})
        if queue.key in self._exclusive or (exclusive and there):
            raise Refusal(Code.ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{queue.vhost}' is in exclusive use")
        if not there:
            self._by_queue[queue.key] = there
            self._active[queue.key] = consumer
        there[consumer] = priority
        if exclusive:
            self._exclusive.add(queue.key)

    def remove(self, queue: QueueName, consumer: Hashable) -> bool:
        """Remove a consumer. Returns False when its queue went before it."""
        there = self._by_queue.get(queue, {})
        if there.pop(consumer, None) is None:
            return False
        self._exclusive.discard(queue)
        if self._active.get(queue) == consumer:
            del self._active[queue]
        if not there:
            del self._by_queue[queue]
        return True

    def take(self, queue: QueueName) -> list[Hashable]:
        """Remove all consumers of a queue, and return them, oldest first."""
        self._exclusive.discard(queue)
        self._active.pop(queue, None)
        return list(self._by_queue.pop(queue, ()))

    def active(self, queue: QueueName) -> Hashable | None:
        """The consumer that gets the messages where only one may. It is the first that came; after its end, the oldest
        of the highest priority."""
        there = self._by_queue.get(queue)
        if there and queue not in self._active:  # not at a removal: all may be on their way out
            self._active[queue] = max(there, key=there.__getitem__)  # of equal ones the first, which is the oldest
        return self._active.get(queue)

    def of(self, queue: QueueName) -> list[Hashable]:
        """All consumers of a queue, oldest first."""
        return list(self._by_queue.get(queue, ()))

    def count(self, queue: QueueName) -> int:
        """How many there are."""
        return len(self._by_queue.get(queue, ()))
