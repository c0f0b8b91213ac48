"""One vhost: what is declared in it, indexed by what it is looked up by. It checks nothing."""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import TypeVar

from mq.amqp.declared import Binding, Destination, Exchange, Queue
from mq.amqp.routing import Matcher, matcher

Key = TypeVar("Key", bound=Hashable)


class Vhost:
    """The exchanges, queues and bindings of a vhost.

    Attributes:
        name: of the vhost.
        exchanges, queues: by name.
        bindings: all of them.
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
        """Those that lead away from an exchange."""
        return self._from.get(exchange, frozenset())

    def bindings_to(self, target: Destination) -> Set[Binding]:
        """Those that lead to a queue or an exchange."""
        return self._to.get(target, frozenset())

    def add_exchange(self, exchange: Exchange) -> None:
        """One more exchange."""
        self.exchanges[exchange.name] = exchange
        self.matchers[exchange.name] = matcher(exchange.kind)

    def drop_exchange(self, exchange: Exchange) -> None:
        """One less. Its bindings have been dropped before."""
        self.exchanges.pop(exchange.name, None)
        self.matchers.pop(exchange.name, None)

    def add_binding(self, binding: Binding) -> None:
        """One more binding. Its source is there."""
        self.bindings.add(binding)
        self.matchers[binding.source].add(binding)
        self._from.setdefault(binding.source, set()).add(binding)
        self._to.setdefault(binding.to, set()).add(binding)

    def drop_binding(self, binding: Binding) -> None:
        """One less."""
        self.bindings.discard(binding)
        self.matchers[binding.source].remove(binding)
        _discard(self._from, binding.source, binding)
        _discard(self._to, binding.to, binding)


def _discard(index: dict[Key, set[Binding]], key: Key, binding: Binding) -> None:
    index[key].discard(binding)
    if not index[key]:
        del index[key]
