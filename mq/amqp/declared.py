"""What clients declare: exchanges, queues and bindings. Values only, and how they look as durable records."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from mq.amqp.names import encode
from mq.amqp.tables import from_json, to_json
from mq.message import QueueName

EXCHANGE: Final = "amqp-exchange"
"""The kind of record that makes an exchange."""
QUEUE: Final = "amqp-queue"
"""The kind of record that says how a queue was declared. The queue itself is the broker's record."""
BINDING: Final = "amqp-binding"
"""The kind of record that makes a binding."""


class Kind(StrEnum):
    """The types of exchange."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class Record(NamedTuple):
    """What the store keeps: kind, key, and JSON."""

    kind: str
    key: str
    value: Mapping[str, Any]


class Destination(NamedTuple):
    """Where a binding leads."""

    is_queue: bool
    name: str


def _frozen(arguments: Mapping[str, Any]) -> str:
    return json.dumps(to_json(dict(arguments)), sort_keys=True)


@dataclass(frozen=True)
class Exchange:
    """An exchange.

    Attributes:
        vhost, name: what it is called; the default exchange has no name and is never declared.
        kind: how it routes.
        durable: whether it survives a restart.
        auto_delete: whether it goes with its last binding.
        internal: whether only other exchanges may publish to it.
        arguments: as declared.
    """

    vhost: str
    name: str
    kind: Kind
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what this one has no place for."""
        return self.arguments.get("alternate-exchange")

    def record(self) -> Record:
        """What is kept of it."""
        value = {"vhost": self.vhost, "name": self.name, "kind": self.kind.value, "auto_delete": self.auto_delete}
        value |= {"internal": self.internal, "arguments": to_json(dict(self.arguments))}
        return Record(EXCHANGE, encode(self.vhost, self.name), value)

    @classmethod
    def stored(cls, value: Mapping[str, Any]) -> Exchange:
        """The exchange of a record's value.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        return cls(
            str(value["vhost"]),
            str(value["name"]),
            Kind(value["kind"]),
            True,
            bool(value["auto_delete"]),
            bool(value["internal"]),
            from_json(value["arguments"]),
        )


@dataclass(frozen=True)
class Queue:
    """A queue as AMQP knows it.

    Attributes:
        vhost, name: what it is called.
        durable: whether it survives a restart.
        auto_delete: whether it goes with its last consumer.
        owner: the connection that has it to itself and with which it goes; None for a queue of everybody's.
        arguments: as declared, checked.
    """

    vhost: str
    name: str
    durable: bool = False
    auto_delete: bool = False
    owner: Hashable | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @functools.cached_property
    def key(self) -> QueueName:
        """What it is called in mq."""
        return encode(self.vhost, self.name)

    @property
    def is_lasting(self) -> bool:
        """Whether it is there again after a restart. An exclusive queue never is: its connection ends before."""
        return self.durable and self.owner is None

    def record(self) -> Record:
        """What is kept of it."""
        value = {"vhost": self.vhost, "name": self.name, "auto_delete": self.auto_delete}
        return Record(QUEUE, self.key, value | {"arguments": to_json(dict(self.arguments))})

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
        vhost: where both ends are.
        source: the exchange that messages come from.
        to: where they go.
        routing_key: what for depends on the type of the exchange.
        arguments: of importance to a headers exchange; elsewhere they only tell bindings apart.
    """

    vhost: str
    source: str
    to: Destination
    routing_key: str
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)
    identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", _frozen(self.arguments))

    def record(self) -> Record:
        """What is kept of it."""
        value = {"vhost": self.vhost, "source": self.source, "is_queue": self.to.is_queue, "to": self.to.name}
        value |= {"routing_key": self.routing_key, "arguments": to_json(dict(self.arguments))}
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
        return Record(BINDING, digest.hexdigest(), value)

    @classmethod
    def stored(cls, value: Mapping[str, Any]) -> Binding:
        """The binding of a record's value.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        to = Destination(bool(value["is_queue"]), str(value["to"]))
        key = str(value["routing_key"])
        return cls(str(value["vhost"]), str(value["source"]), to, key, from_json(value["arguments"]))
