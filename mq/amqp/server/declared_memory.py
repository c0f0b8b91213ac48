"""The memory of exchanges, bindings and queues that do not last: reserved before they are declared.

They outlive their connection, or are as many as a client likes. So each is counted as what it takes in memory, for the
client that declared it, until it is deleted. Queues that last are limited by number (:mod:`mq.access.user_limits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from mq import turns
from mq.amqp.model.declared import Binding, Exchange, ExchangeType, Queue
from mq.amqp.model.routing import words
from mq.amqp.model.topology import Topology
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.wire.errors import Code, Refusal
from mq.doors.budget import Budget, ClientMemory, Room
from mq.errors import BodyTooLarge, OverBudget

EXCHANGE_BYTES: Final = 1536
BINDING_BYTES: Final = 1536
QUEUE_BYTES: Final = 6144
WORD_BYTES: Final = 480
"""What a word of a topic's pattern takes, or a header that a binding is found by."""
_CHARACTER_BYTES: Final = 3
"""What a character of arguments takes: they are there decoded, and as text."""
_ELSEWHERE: Final = ""
"""In place of a client: who declared it is not known."""


class DeclaredMemory:
    """Counts what is declared."""

    def __init__(self, budget: Budget, topology: Topology) -> None:
        self._budget = budget
        self._topology = topology
        self._rooms: dict[str, Room] = {}
        self._counted: dict[Hashable, tuple[str, int]] = {}

    def reserve(self, change: TopologyChange, client: ClientMemory) -> None:
        """Reserve memory for what a client is about to add.

        Raises:
            Refusal: 406; there is not enough.
        """
        added = list(self._added(change))
        if not added:
            return
        name = client.user or client.name
        room = self._room(name)
        try:
            room.cover_strictly(room.size + sum(size for _, size in added))
        except (BodyTooLarge, OverBudget) as error:
            raise Refusal(
                Code.PRECONDITION_FAILED, f"cannot declare more queues, exchanges or bindings: {error}"
            ) from error
        finally:
            self._forget_if_empty(name)
        self._counted |= {thing: (name, size) for thing, size in added}

    def take(self, change: TopologyChange) -> None:
        """Count what is added, however much there is, unless it was reserved."""
        added = list(self._added(change))
        if added:
            room = self._room(_ELSEWHERE)
            room.take(room.size + sum(size for _, size in added))
            self._counted |= {thing: (_ELSEWHERE, size) for thing, size in added}

    def cancel(self, change: TopologyChange) -> None:
        """Give back what was reserved for what is not added after all."""
        self._give_back([*change.exchanges, *change.bindings, *change.queues])

    async def give_back(self, change: TopologyChange) -> None:
        """Give back the memory of what is deleted."""
        lost = [*change.lost_exchanges, *change.lost_bindings, *change.lost_queues]
        async for some in turns.slices(lost, turns.LIGHT):
            self._give_back(some)

    def _give_back(self, things: Iterable[Hashable]) -> None:
        freed = Counter[str]()
        for thing in things:
            name, size = self._counted.pop(thing, (_ELSEWHERE, 0))
            freed[name] += size
        for name, size in freed.items():
            if size:
                room = self._rooms[name]
                room.shrink(room.size - size)
                self._forget_if_empty(name)

    def _room(self, name: str) -> Room:
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = self._budget.declarations_of(name)
        return room

    def _forget_if_empty(self, name: str) -> None:
        if not self._rooms[name].size:
            del self._rooms[name]

    def _added(self, change: TopologyChange) -> Iterator[tuple[Exchange | Binding | Queue, int]]:
        """What is not counted yet, with its bytes."""
        kinds = {exchange.name: exchange.kind for exchange in change.exchanges}
        for exchange in change.exchanges:
            if exchange not in self._counted:
                yield exchange, EXCHANGE_BYTES + _CHARACTER_BYTES * _length(exchange.arguments)
        for binding in change.bindings:
            if binding not in self._counted:
                kind = kinds.get(binding.source) or self._topology.exchange(binding.vhost, binding.source).kind
                yield binding, _binding_bytes(binding, kind)
        for queue in change.queues:
            if not queue.is_lasting and queue not in self._counted:
                yield queue, QUEUE_BYTES + _CHARACTER_BYTES * _length(queue.arguments)


def _binding_bytes(binding: Binding, kind: ExchangeType) -> int:
    size = BINDING_BYTES + 2 * len(binding.routing_key) + _CHARACTER_BYTES * len(binding.identity)
    if kind is ExchangeType.TOPIC:
        return size + WORD_BYTES * len(words(binding.routing_key))
    return size + WORD_BYTES * len(binding.arguments) if kind is ExchangeType.HEADERS else size


def _length(arguments: object) -> int:
    return len(repr(arguments)) if arguments else 0
