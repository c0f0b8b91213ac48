"""What is declared over AMQP, for those who look on at another door: exchanges, bindings, ways of dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class DeclaredExchange(NamedTuple):
    """An exchange.

    Attributes:
        vhost, name: what it is called.
        kind: how it routes: ``direct``, ``fanout``, ``topic`` or ``headers``.
        durable: whether it survives a restart.
    """

    vhost: str
    name: str
    kind: str
    durable: bool


class DeclaredBinding(NamedTuple):
    """A way that messages take from an exchange.

    Attributes:
        vhost, exchange: where it begins.
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
        queue: its name in mq.
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
    """All of it."""

    exchanges: tuple[DeclaredExchange, ...] = ()
    bindings: tuple[DeclaredBinding, ...] = ()
    dead_letters: tuple[DeadLetterWay, ...] = ()


class Exchanges:
    """What the AMQP door tells of what is declared there; nothing where it is not open."""

    def __init__(self) -> None:
        self._tell: Callable[[], Declared] = Declared

    def told_by(self, tell: Callable[[], Declared]) -> None:
        """From now on this tells."""
        self._tell = tell

    def now(self) -> Declared:
        """What is declared now."""
        return self._tell()
