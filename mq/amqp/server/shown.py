"""What is declared, as other doors show it: :mod:`mq.doors.exchanges`."""

from __future__ import annotations

from mq.amqp.model.arguments import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from mq.amqp.model.declared import Destination, Queue
from mq.amqp.model.names import encode
from mq.amqp.model.topology import Topology
from mq.amqp.model.vhost import Vhost
from mq.doors.exchanges import DeadLetterWay, Declared, DeclaredBinding, DeclaredExchange


def declared(topology: Topology) -> Declared:
    """Everything, by name. Exchanges that are there by themselves only where something is bound to them."""
    exchanges: list[DeclaredExchange] = []
    bindings: list[DeclaredBinding] = []
    ways: list[DeadLetterWay] = []
    for vhost in topology.vhosts():
        for name, exchange in sorted(vhost.exchanges.items()):
            if not name.startswith("amq.") or vhost.bindings_from(name) or vhost.bindings_to(Destination(False, name)):
                exchanges.append(DeclaredExchange(vhost.name, name, exchange.kind.value, exchange.durable))
        for each in sorted(vhost.bindings, key=lambda binding: (binding.source, binding.to, binding.routing_key)):
            target = None if each.to.is_queue else each.to.name
            bindings.append(DeclaredBinding(vhost.name, each.source, target, each.queue, each.routing_key))
        ways += [_way(vhost, queue) for queue in vhost.queues.values() if DEAD_LETTER_EXCHANGE in queue.arguments]
    return Declared(tuple(exchanges), tuple(bindings), tuple(sorted(ways)))


def _way(vhost: Vhost, queue: Queue) -> DeadLetterWay:
    exchange = queue.arguments[DEAD_LETTER_EXCHANGE]
    key = queue.arguments.get(DEAD_LETTER_ROUTING_KEY)
    return DeadLetterWay(queue.key, vhost.name, exchange, key, tuple(_targets(vhost, exchange, key)))


def _targets(vhost: Vhost, exchange: str, key: str | None) -> list[str]:
    """Where the dead letters may come to: over any binding, as which one fits is up to each letter."""
    if not exchange:
        return [encode(vhost.name, key)] if key else []
    found: set[str] = set()
    seen, waiting = {exchange}, [exchange]
    while waiting:
        for binding in vhost.bindings_from(waiting.pop()):
            if binding.queue is not None:
                found.add(binding.queue)
            elif binding.to.name not in seen:
                seen.add(binding.to.name)
                waiting.append(binding.to.name)
    return sorted(found)
