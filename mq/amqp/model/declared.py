"""Exchanges, queues and bindings as clients declare them: frozen values, and their durable records."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from mq.amqp.model.names import encode
from mq.amqp.wire.tables import from_json, to_json
from mq.message import QueueName

EXCHANGE: Final = "amqp-exchange"
"""The kind of record that makes an exchange."""
QUEUE: Final = "amqp-queue"
"""The kind of record that says how a queue was declared. The queue itself is the broker's record."""
BINDING: Final = "amqp-binding"
"""The kind of record that makes a binding."""
SHARED: Final = "cluster-record"
"""The kind of record that repeats an exchange or a binding shared by all nodes of a cluster."""
ELSEWHERE: Final = "cluster-queue"
"""The kind of record that marks a queue as the cluster's: all nodes have it, and no root of its own."""


class ExchangeType(StrEnum):
    """The types of exchange."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class DurableRecord(NamedTuple):
    """A durable record: its kind, its key, and JSON."""

    kind: str
    key: str
    value: Mapping[str, Any]


class Destination(NamedTuple):
    """Where a binding leads."""

    is_queue: bool
    name: str


class Way(NamedTuple):
    """The ends of bindings: the name of an exchange, and where messages go from there."""

    source: str
    to: Destination


def _frozen(arguments: Mapping[str, Any]) -> str:
    return json.dumps(to_json(dict(arguments)), sort_keys=True)


@dataclass(frozen=True)
class Exchange:
    """An exchange.

    Attributes:
        vhost, name: what it is called; the default exchange has no name and is never declared.
        auto_delete: whether it goes with its last binding.
    """

    vhost: str
    name: str
    kind: ExchangeType
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def alternate(self) -> str | None:
        """The exchange that gets the messages without a matching binding of this one."""
        return self.arguments.get("alternate-exchange")

    @property
    def is_shareable(self) -> bool:
        """Whether all nodes of a cluster have it: not one that goes with its last binding, for no node knows the
        others' own bindings."""
        return self.durable and not self.auto_delete

    def record(self) -> DurableRecord:
        """The durable record of it."""
        value = {"vhost": self.vhost, "name": self.name, "kind": self.kind.value, "auto_delete": self.auto_delete}
        value |= {"internal": self.internal, "arguments": to_json(dict(self.arguments))}
        return DurableRecord(EXCHANGE, encode(self.vhost, self.name), value)

    @classmethod
    def stored(cls, value: Mapping[str, Any]) -> Exchange:
        """The exchange of a record's value.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        return cls(
            str(value["vhost"]),
            str(value["name"]),
            ExchangeType(value["kind"]),
            True,
            bool(value["auto_delete"]),
            bool(value["internal"]),
            from_json(value["arguments"]),
        )


@dataclass(frozen=True)
class Queue:
    """A queue as AMQP knows it.

    Attributes:
        auto_delete: whether it goes with its last consumer.
        owner: the connection that owns it: the queue is exclusive to it and ends with it; None for a queue open to all.
        is_unsure: whether this node does not know if it exists. A store that knows decides when a message is stored.
    """

    vhost: str
    name: str
    durable: bool = False
    auto_delete: bool = False
    owner: Hashable | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    is_unsure: bool = False

    @functools.cached_property
    def key(self) -> QueueName:
        """Its name in mq."""
        return encode(self.vhost, self.name)

    @functools.cached_property
    def is_unrouted(self) -> bool:
        """Whether it is none, and stands for the queues of a message that cannot be routed yet."""
        return not self.name

    @functools.cached_property
    def is_lasting(self) -> bool:
        """Whether it survives a restart. An exclusive queue never does: its connection ends before."""
        return self.durable and self.owner is None

    def record(self) -> DurableRecord:
        """The durable record of it."""
        value = {"vhost": self.vhost, "name": self.name, "auto_delete": self.auto_delete}
        return DurableRecord(QUEUE, self.key, value | {"arguments": to_json(dict(self.arguments))})

    @classmethod
    def stored(cls, value: Mapping[str, Any]) -> Queue:
        """The queue of a record's value.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        names = str(value["vhost"]), str(value["name"])
        return cls(*names, True, bool(value["auto_delete"]), None, from_json(value["arguments"]))


@dataclass(frozen=True)
class Binding:
    """A binding. Two are the same when all of their attributes are.

    Attributes:
        routing_key: what for depends on the type of the exchange.
        arguments: of importance to a headers exchange; elsewhere they only tell bindings apart.
    """

    vhost: str
    source: str
    to: Destination
    routing_key: str
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)
    identity: str = field(init=False, repr=False)
    way: Way = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", _frozen(self.arguments))
        object.__setattr__(self, "way", Way(self.source, self.to))
        object.__setattr__(self, "_hash", hash((self.vhost, self.source, self.to, self.routing_key, self.identity)))

    def __hash__(self) -> int:
        return self._hash  # an exchange has thousands, and each is looked up several times when they go

    @property
    def queue(self) -> QueueName | None:
        """The name in mq of the queue that the binding leads to; None where it leads to an exchange."""
        return encode(self.vhost, self.to.name) if self.to.is_queue else None

    def record(self) -> DurableRecord:
        """The durable record of it."""
        value = {"vhost": self.vhost, "source": self.source, "is_queue": self.to.is_queue, "to": self.to.name}
        value |= {"routing_key": self.routing_key, "arguments": to_json(dict(self.arguments))}
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
        return DurableRecord(BINDING, digest.hexdigest(), value)

    @classmethod
    def stored(cls, value: Mapping[str, Any]) -> Binding:
        """The binding of a record's value.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        to = Destination(bool(value["is_queue"]), str(value["to"]))
        key = str(value["routing_key"])
        return cls(str(value["vhost"]), str(value["source"]), to, key, from_json(value["arguments"]))
