"""One vhost: its exchanges, queues and bindings, indexed for look-ups; and planned changes of it.

A :class:`Vhost` checks nothing. A :class:`TopologyChange` is planned and not yet made: it lists
additions and removals, and the records that the store has to keep or forget for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from mq.amqp.model.declared import Binding, Destination, DurableRecord, Exchange, Queue, Way
from mq.amqp.model.routing import Matcher, matcher

Key = TypeVar("Key", bound=Hashable)


class Vhost:
    """The exchanges, queues and bindings of a vhost.

    Attributes:
        matchers: the bindings of each exchange, as its type looks at them, by the exchange's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.bindings: set[Binding] = set()
        self.matchers: dict[str, Matcher] = {}
        self._from: dict[str, set[Binding]] = {}
        self._to: dict[Destination, set[Binding]] = {}

    def bindings_from(self, exchange: str) -> Set[Binding]:
        """The bindings that lead away from an exchange."""
        return self._from.get(exchange, frozenset())

    def bindings_to(self, target: Destination) -> Set[Binding]:
        """The bindings that lead to a queue or an exchange."""
        return self._to.get(target, frozenset())

    def add_exchange(self, exchange: Exchange) -> None:
        """Add an exchange."""
        self.exchanges[exchange.name] = exchange
        self.matchers[exchange.name] = matcher(exchange.kind)

    def drop_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange. Its bindings have been dropped before."""
        self.exchanges.pop(exchange.name, None)
        self.matchers.pop(exchange.name, None)

    def add_binding(self, binding: Binding) -> None:
        """Add a binding. Its source is there."""
        self.bindings.add(binding)
        self.matchers[binding.source].add(binding)
        self._from.setdefault(binding.source, set()).add(binding)
        self._to.setdefault(binding.to, set()).add(binding)

    def drop_binding(self, binding: Binding) -> None:
        """Remove a binding."""
        self.bindings.discard(binding)
        self.matchers[binding.source].remove(binding)
        _discard(self._from, binding.source, binding)
        _discard(self._to, binding.to, binding)


def _discard(index: dict[Key, set[Binding]], key: Key, binding: Binding) -> None:
    index[key].discard(binding)
    if not index[key]:
        del index[key]


@dataclass(frozen=True)
class TopologyChange:
    """What a planned change adds and removes.

    Attributes:
        lost_exchanges, lost_queues, lost_bindings: what goes. The queues' messages go with them, and their consumers
            are told.
        lasting_ways: the ends of those of `bindings` and `lost_bindings` that survive a restart: both ends do.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    lost_exchanges: tuple[Exchange, ...] = ()
    lost_queues: tuple[Queue, ...] = ()
    lost_bindings: tuple[Binding, ...] = ()
    lasting_ways: frozenset[Way] = frozenset()

    def puts(self) -> Iterator[DurableRecord]:
        """What the store has to keep before the change is applied, in this order."""
        yield from (exchange.record() for exchange in self.exchanges if exchange.durable)
        yield from (queue.record() for queue in self.queues if queue.is_lasting)
        yield from (binding.record() for binding in self.bindings if binding.way in self.lasting_ways)

    def drops(self) -> Iterator[DurableRecord]:
        """What the store has to forget before the change is applied. Bindings come first, so that a crash in between
        leaves no binding without its ends."""
        yield from (binding.record() for binding in self.lost_bindings if binding.way in self.lasting_ways)
        yield from (queue.record() for queue in self.lost_queues if queue.is_lasting)
        yield from (exchange.record() for exchange in self.lost_exchanges if exchange.durable)


NOTHING: Final = TopologyChange()
"""The change that does nothing: the topology is already as asked."""


def is_lasting(vhost: Vhost, way: Way) -> bool:
    """Whether a binding survives a restart. A queue that was not declared over AMQP counts as durable."""
    source, to = vhost.exchanges[way.source], way.to
    if not to.is_queue:
        return source.durable and vhost.exchanges[to.name].durable
    queue = vhost.queues.get(to.name)
    return source.durable and (queue is None or queue.is_lasting)


class Cascade:
    """Collects everything that has to go with a removal: a binding goes with either of its ends, an auto-delete
    exchange with its last binding, and so on."""

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: dict[Binding, None] = {}
        self._left: Counter[str] = Counter()

    def plan(
        self, *, exchanges: Iterable[str] = (), queues: Iterable[Queue] = (), bindings: Iterable[Binding] = ()
    ) -> TopologyChange:
        """The change that removes these, and everything that goes with them."""
        lost_queues = tuple(queues)
        for name in exchanges:
            self._lose_exchange(self._vhost.exchanges[name])
        self._lose_bindings(bindings)
        for queue in lost_queues:
            self._lose_bindings(self._vhost.bindings_to(Destination(True, queue.name)))
        ways = {binding.way for binding in self._bindings}
        return TopologyChange(
            lost_exchanges=tuple(self._exchanges.values()),
            lost_queues=lost_queues,
            lost_bindings=tuple(self._bindings),
            lasting_ways=frozenset(way for way in ways if is_lasting(self._vhost, way)),
        )

    def _lose_exchange(self, exchange: Exchange) -> None:
        self._exchanges[exchange.name] = exchange
        self._lose_bindings(self._vhost.bindings_from(exchange.name))
        self._lose_bindings(self._vhost.bindings_to(Destination(False, exchange.name)))

    def _lose_bindings(self, bindings: Iterable[Binding]) -> None:
        # In one step: as little as possible is done for each of perhaps thousands of bindings. A set has their hashes.
        waiting = [bindings]  # no recursion: a client chooses how long the chain of exchanges is
        while waiting:
            lost = dict.fromkeys(waiting.pop())
            for known in self._bindings.keys() & lost.keys() if self._bindings else ():
                del lost[known]
            self._bindings |= lost
            for binding in lost:
                source = self._vhost.exchanges[binding.source]
                if not source.auto_delete:
                    continue
                self._left[source.name] += 1
                if self._left[source.name] == len(self._vhost.bindings_from(source.name)):
                    self._exchanges[source.name] = source
                    waiting.append(self._vhost.bindings_to(Destination(False, source.name)))
