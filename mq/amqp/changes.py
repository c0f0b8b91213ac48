"""A change of what is declared, planned and not yet made: what comes, what goes, what of that the store has to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from mq.amqp.declared import Binding, Destination, Exchange, Queue, Record
from mq.amqp.vhost import Vhost


@dataclass(frozen=True)
class Change:
    """What a plan comes to.

    Attributes:
        exchanges, queues, bindings: what is new.
        lost_exchanges, lost_queues, lost_bindings: what goes. The queues' messages go with them, and
            their consumers are told.
        lasting_bindings: those of `bindings` and `lost_bindings` that survive a restart: both ends do.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    lost_exchanges: tuple[Exchange, ...] = ()
    lost_queues: tuple[Queue, ...] = ()
    lost_bindings: tuple[Binding, ...] = ()
    lasting_bindings: frozenset[Binding] = frozenset()

    def puts(self) -> Iterator[Record]:
        """What the store has to keep before the change is applied, in this order."""
        yield from (exchange.record() for exchange in self.exchanges if exchange.durable)
        yield from (queue.record() for queue in self.queues if queue.is_lasting)
        yield from (binding.record() for binding in self.bindings if binding in self.lasting_bindings)

    def drops(self) -> Iterator[Record]:
        """What the store has to forget before the change is applied, in this order: no binding is
        left whose ends are gone."""
        yield from (binding.record() for binding in self.lost_bindings if binding in self.lasting_bindings)
        yield from (queue.record() for queue in self.lost_queues if queue.is_lasting)
        yield from (exchange.record() for exchange in self.lost_exchanges if exchange.durable)


NOTHING: Final = Change()
"""What is asked for is so already."""


def is_lasting(vhost: Vhost, binding: Binding) -> bool:
    """Whether a binding survives a restart. A queue that only mq knows does."""
    source = vhost.exchanges[binding.source]
    if not binding.to.is_queue:
        return source.durable and vhost.exchanges[binding.to.name].durable
    queue = vhost.queues.get(binding.to.name)
    return source.durable and (queue is None or queue.is_lasting)


class Removal:
    """Collects what goes when something goes: bindings with either of their ends, exchanges that are to go with their
    last binding, and so on."""

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: dict[Binding, None] = {}
        self._left: Counter[str] = Counter()

    def plan(
        self, *, exchanges: Iterable[str] = (), queues: Iterable[Queue] = (), bindings: Iterable[Binding] = ()
    ) -> Change:
        """What goes with these."""
        lost_queues = tuple(queues)
        for name in exchanges:
            self._lose_exchange(self._vhost.exchanges[name])
        ends = (self._vhost.bindings_to(Destination(True, queue.name)) for queue in lost_queues)
        self._lose_bindings([*bindings, *chain.from_iterable(ends)])
        lasting = frozenset(binding for binding in self._bindings if is_lasting(self._vhost, binding))
        return Change(
            lost_exchanges=tuple(self._exchanges.values()),
            lost_queues=lost_queues,
            lost_bindings=tuple(self._bindings),
            lasting_bindings=lasting,
        )

    def _lose_exchange(self, exchange: Exchange) -> None:
        self._exchanges[exchange.name] = exchange
        into = self._vhost.bindings_to(Destination(False, exchange.name))
        self._lose_bindings([*self._vhost.bindings_from(exchange.name), *into])

    def _lose_bindings(self, bindings: Iterable[Binding]) -> None:
        """Without recursion, since a client chooses how long the chain of exchanges is."""
        waiting = list(bindings)
        while waiting:
            binding = waiting.pop()
            if binding in self._bindings:
                continue
            self._bindings[binding] = None
            source = self._vhost.exchanges[binding.source]
            self._left[source.name] += 1
            if source.auto_delete and self._left[source.name] == len(self._vhost.bindings_from(source.name)):
                self._exchanges[source.name] = source
                into = self._vhost.bindings_to(Destination(False, source.name))
                waiting += into
