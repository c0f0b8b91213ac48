"""Exchanges for other protocols (:mod:`mq.doors.exchanges`): what is declared, and publishing to one of them.

A message that is published here becomes one of AMQP, is routed, and stored in each queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mq import turns
from mq.amqp.model.arguments import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY, OVERFLOW
from mq.amqp.model.declared import Destination, Queue
from mq.amqp.model.names import encode
from mq.amqp.model.topology import Topology
from mq.amqp.model.vhost import Vhost
from mq.amqp.server.copies import Copies, Copy
from mq.amqp.server.dead_letters import DeadLetterRouter, Reason
from mq.amqp.server.message_codec import Publication, properties_of
from mq.amqp.wire.errors import Refusal
from mq.broker import Draft
from mq.doors.exchanges import (
    DeadLetterWay,
    Declared,
    DeclaredBinding,
    DeclaredExchange,
    InternalExchange,
    NoSuchExchange,
)
from mq.errors import MQError, NoSuchQueue, QueueFull, StorageUnsure


async def declared(topology: Topology) -> Declared:
    """Everything that is declared, by name. Predeclared exchanges are left out unless something is bound to them."""
    exchanges: list[DeclaredExchange] = []
    bindings: list[DeclaredBinding] = []
    ways: list[DeadLetterWay] = []
    for vhost in topology.vhosts():
        for name, exchange in sorted(vhost.exchanges.items()):
            if not name.startswith("amq.") or vhost.bindings_from(name) or vhost.bindings_to(Destination(False, name)):
                exchanges.append(DeclaredExchange(vhost.name, name, exchange.kind.value, exchange.durable))
        bindings += await _bindings(vhost)
        ways += await _ways(vhost)
    return Declared(tuple(exchanges), tuple(bindings), tuple(ways))


async def _bindings(vhost: Vhost) -> list[DeclaredBinding]:
    # Very many texts are sorted ten times as fast as tuples, and a sort is one step.
    shown: dict[str, DeclaredBinding] = {}
    async for each in turns.in_turns(list(vhost.bindings), turns.LIGHT):
        target = None if each.to.is_queue else each.to.name
        place = "\0".join((each.source, str(each.to.is_queue), each.to.name, each.routing_key, each.identity))
        shown[place] = DeclaredBinding(vhost.name, each.source, target, each.queue, each.routing_key)
    return [shown[place] for place in sorted(shown)]


async def _ways(vhost: Vhost) -> list[DeadLetterWay]:
    targets: dict[str, tuple[str, ...]] = {}  # of an exchange, as many queues may have the same one
    found: dict[str, DeadLetterWay] = {}
    async for queue in turns.in_turns(list(vhost.queues.values()), turns.LIGHT):
        exchange = queue.arguments.get(DEAD_LETTER_EXCHANGE)
        if exchange is None:
            continue
        key = queue.arguments.get(DEAD_LETTER_ROUTING_KEY)
        if not exchange:
            to: tuple[str, ...] = (encode(vhost.name, key),) if key else ()
        elif exchange in targets:
            to = targets[exchange]
        else:
            to = targets[exchange] = await _targets(vhost, exchange)
        found[queue.key] = DeadLetterWay(queue.key, vhost.name, exchange, key, to)
    return [found[name] for name in sorted(found)]


async def _targets(vhost: Vhost, exchange: str) -> tuple[str, ...]:
    """The queues that the dead letters may come to, over any binding: each letter decides which of them fits."""
    found: set[str] = set()
    seen, waiting = {exchange}, [exchange]
    while waiting:
        async for binding in turns.in_turns(list(vhost.bindings_from(waiting.pop())), turns.LIGHT):
            if binding.queue is not None:
                found.add(binding.queue)
            elif binding.to.name not in seen:
                seen.add(binding.to.name)
                waiting.append(binding.to.name)
    return tuple(sorted(found))


class TopologyPublisher:
    """As :class:`mq.doors.exchanges.ExchangePublisher`.

    Args:
        dead_letters: gets the refusals of full queues that dead-letter them.
    """

    def __init__(self, topology: Topology, copies: Copies, dead_letters: DeadLetterRouter) -> None:
        self._topology = topology
        self._copies = copies
        self._dead_letters = dead_letters

    def name_of(self, vhost: str, exchange: str) -> str:
        """The name on which the rights are."""
        return encode(vhost, exchange)

    async def publish(
        self, vhost: str, exchange: str, routing_key: str, drafts: Sequence[Draft]
    ) -> list[bool | MQError]:
        """Route and store messages, those of each queue in their order."""
        self._check(vhost, exchange)
        await self._copies.catch_up(vhost, exchange)
        copies: list[Copy] = []
        for number, draft in enumerate(drafts):
            assert isinstance(draft.body, bytes), "an upload lasts for one queue alone"
            properties = properties_of(draft)
            publication = Publication(exchange, routing_key, properties, draft.body, properties.expiration_ms)
            copies += [
                Copy(publication, queue, asked=_of_queue(draft, queue, exchange, routing_key), number=number)
                for queue in self._topology.route(vhost, exchange, routing_key, properties.headers)
            ]
        found: list[list[MQError | None]] = [[] for _ in drafts]
        for copy, error in await self._copies.store(copies) if copies else ():
            if isinstance(error, QueueFull) and copy.queue.arguments.get(OVERFLOW) == "reject-publish-dlx":
                await self._dead_letters.send(copy.queue, copy.publication, Reason.MAXLEN)
            if not isinstance(error, NoSuchQueue):  # deleted just now
                found[copy.number].append(error)
        return [_outcome(errors) for errors in found]

    def _check(self, vhost: str, exchange: str) -> None:
        try:
            if not self._topology.has_vhost(vhost):
                raise NoSuchExchange(f"vhost '{vhost}' does not exist")
            if self._topology.exchange(vhost, exchange).internal:
                raise InternalExchange(
                    f"exchange '{exchange}' in vhost '{vhost}' is internal and only accepts messages from "
                    "other exchanges"
                )
        except Refusal as refusal:
            raise NoSuchExchange(f"{refusal}. Declare the exchange over AMQP") from refusal


def _of_queue(draft: Draft, queue: Queue, exchange: str, routing_key: str) -> Draft:
    """The draft for one of its queues. A key is one message's: each queue has its own."""
    if draft.key is None:
        return draft
    written = "\0".join((queue.key, exchange, routing_key, draft.key))
    return draft._replace(key=hashlib.sha256(written.encode()).hexdigest())


def _outcome(errors: Sequence[MQError | None]) -> bool | MQError:
    """Whether a queue has taken the message; an error where one of them has not."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return bool(errors)
    if len(failed) == len(errors):
        return failed[0]
    return StorageUnsure(
        f"only {len(errors) - len(failed)} of {len(errors)} queues stored the message; the first error was: {failed[0]}"
    )
