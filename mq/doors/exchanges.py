"""Exchanges for other protocols than AMQP's: what is declared there, the ways of dead letters, and publishing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from mq.errors import CallerError, MQError, NoSuchQueue


class DeclaredExchange(NamedTuple):
    """An exchange.

    Attributes:
        kind: how it routes: ``direct``, ``fanout``, ``topic`` or ``headers``.
    """

    vhost: str
    name: str
    kind: str
    durable: bool


class DeclaredBinding(NamedTuple):
    """A way that messages take from an exchange.

    Attributes:
        to_exchange, to_queue: where it ends: the exchange's name, or the queue's in mq; the other one is None.
        routing_key: what for depends on the kind of the exchange.
    """

    vhost: str
    exchange: str
    to_exchange: str | None
    to_queue: str | None
    routing_key: str


class DeadLetterWay(NamedTuple):
    """The way that a queue's dead letters take by its arguments.

    Attributes:
        vhost, exchange: where they go; the default exchange has no name.
        routing_key: with which; None for that of each message.
        targets: names in mq of the queues to which they may come.
    """

    queue: str
    vhost: str
    exchange: str
    routing_key: str | None
    targets: tuple[str, ...]


class Declared(NamedTuple):
    """Everything that is declared."""

    exchanges: tuple[DeclaredExchange, ...] = ()
    bindings: tuple[DeclaredBinding, ...] = ()
    dead_letters: tuple[DeadLetterWay, ...] = ()


class NoSuchExchange(NoSuchQueue):
    """There is no such exchange, or AMQP is not served."""


class InternalExchange(CallerError):
    """The exchange takes messages from other exchanges, and from no client."""


class ExchangePublisher(Protocol):
    """Publishes to exchanges."""

    def name_of(self, vhost: str, exchange: str) -> str:
        """The name on which a user has the right to publish."""

    async def publish(self, vhost: str, exchange: str, routing_key: str, drafts: Sequence[Any]) -> list[bool | MQError]:
        """Publish messages: the broker's drafts, with bodies that are bytes.

        Returns:
            For each whether a queue takes it; an error where one refuses it, which is unsure where others have taken
            it.

        Raises:
            NoSuchExchange: there is none of that name.
            InternalExchange: it takes none from clients.
        """


class Exchanges:
    """The declarations of the AMQP server; nothing where it is not open.

    Attributes:
        publisher: publishes there; None where it is not open.
    """

    def __init__(self) -> None:
        self.publisher: ExchangePublisher | None = None
        self._tell: Callable[[], Awaitable[Declared]] = _nothing

    def told_by(self, tell: Callable[[], Awaitable[Declared]]) -> None:
        """Let :meth:`now` ask `tell` from now on."""
        self._tell = tell

    async def now(self) -> Declared:
        """What is declared now."""
        return await self._tell()


async def _nothing() -> Declared:
    return Declared()
