"""The open connections of all protocols: their clients, their traffic, and a way to end one.

A connection is added when it begins and removed when it ends; in between nothing is recorded for this. Its status is
computed when an operator asks: from its server, and from the kernel, which counts bytes and times anyway.
"""

from __future__ import annotations

import itertools
import secrets
import socket as sockets
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import trio

SLOT_SECONDS: Final = 5
SLOTS: Final = 12
"""A minute, as the rates of queues have it."""


class RecentRate:
    """A rate a second, on average over the last minute. It takes 13 numbers, however much happens.

    Args:
        now: when counting begins, in seconds of the clock that all calls use.
    """

    __slots__ = ("_began", "_counts", "_slot", "_slot_ends")

    def __init__(self, now: float) -> None:
        self._began = now
        self._slot = 0
        self._slot_ends = now + SLOT_SECONDS
        self._counts = [0] * SLOTS

    def add(self, now: float, number: int) -> None:
        """Count `number` more."""
        if now >= self._slot_ends:
            self._advance(now)
        self._counts[self._slot % SLOTS] += number

    def per_second(self, now: float) -> float:
        """The rate now."""
        # From whole slots up to now, and not back before the beginning.
        self._advance(now)
        uptime = now - self._began
        in_slot = uptime % SLOT_SECONDS
        return sum(self._counts) / max(min((SLOTS - 1) * SLOT_SECONDS + in_slot, uptime), 1.0)

    def _advance(self, now: float) -> None:
        slot = int((now - self._began) // SLOT_SECONDS)
        for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            self._counts[passed % SLOTS] = 0
        self._slot, self._slot_ends = slot, self._began + (slot + 1) * SLOT_SECONDS


_TCP_INFO_BYTES: Final = 136
_LAST_SENT: Final = 44
_LAST_RECEIVED: Final = 52
_BYTES: Final = struct.Struct("=QQ")
_BYTES_AT: Final = 120
"""Where ``struct tcp_info`` (linux/tcp.h) has milliseconds since data went and came, and bytes: acknowledged by the
peer, and received."""


class Traffic(NamedTuple):
    """The bytes of a TCP connection, as the kernel counts them: TLS and all protocols' headers included.

    Attributes:
        received_bytes: what came.
        sent_bytes: what went, and has arrived.
        idle_seconds: since something last came or went.
    """

    received_bytes: int
    sent_bytes: int
    idle_seconds: float


def traffic_of(socket: trio.socket.SocketType) -> Traffic | None:
    """The traffic of a socket; None for a Unix socket, and for a closed one."""
    try:
        told = socket.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(told) < _TCP_INFO_BYTES:
        return None
    [sent_ms] = struct.unpack_from("=I", told, _LAST_SENT)
    [received_ms] = struct.unpack_from("=I", told, _LAST_RECEIVED)
    sent, received = _BYTES.unpack_from(told, _BYTES_AT)
    return Traffic(received, sent, min(sent_ms, received_ms) / 1000)


class ChannelStatus(NamedTuple):
    """One channel of a connection over AMQP.

    Attributes:
        unacknowledged: messages that were sent on it and are not settled.
    """

    number: int
    consumers: int
    unacknowledged: int


class ConnectionStatus(NamedTuple):
    """The status of a connection.

    Attributes:
        protocol: "http" or "amqp".
        state: over HTTP "open", or "waiting" for messages; over AMQP the state of the protocol, mostly "open".
        address: the client's, as :class:`mq.doors.connections.Peer` has it.
        port: the client's; 0 over a Unix socket.
        user: the one that logged in last; None without users, and before a login.
        vhost: over AMQP; None over HTTP.
        idle_seconds: since a byte last came or went.
        received_bytes: from the client, as :class:`Traffic` counts; None where nothing counts them.
        channels: over AMQP; none over HTTP.
    """

    protocol: str
    state: str
    address: str
    port: int
    user: str | None
    vhost: str | None
    open_seconds: float
    idle_seconds: float
    received_bytes: int | None
    sent_bytes: int | None
    channels: tuple[ChannelStatus, ...]


class ConsumerStatus(NamedTuple):
    """The status of a consumer: one over AMQP, or a request over HTTP that waits for messages.

    Attributes:
        tag: what it is called on its channel; None over HTTP.
        channel: its number; None over HTTP.
        prefetch: how many messages it may have unacknowledged; 0 for any number; None over HTTP.
        ack_required: whether it settles what it gets; else a message is removed as it is sent.
        unacknowledged: messages that it has and has not settled.
        delivered: messages that it has got.
        delivered_per_second: the same a second, on average over the last minute.
        open_seconds: how long it has consumed, or waited.
        idle_seconds: since it last got a message, or since it began.
    """

    queue: str
    tag: str | None
    channel: int | None
    prefetch: int | None
    ack_required: bool
    unacknowledged: int
    delivered: int
    delivered_per_second: float
    open_seconds: float
    idle_seconds: float


class OpenConnection(Protocol):
    """A connection, as its server has it.

    Attributes:
        protocol: "http" or "amqp".
        user: the name of the one that logged in last; None before a login, and for one who was refused a connection.
    """

    protocol: str

    @property
    def user(self) -> str | None:
        """As above."""

    def status(self) -> ConnectionStatus:
        """Its status now."""

    def consumers(self) -> Iterable[ConsumerStatus]:
        """Its consumers now. There may be thousands: their status is taken as they are iterated over."""

    def close(self, why: str) -> None:
        """End it, and tell its client why, where its protocol can."""


class OpenConnections:
    """The open connections of all protocols, each under an id. Ids of two processes differ: an operator with the id
    from one daemon cannot close a connection of the next daemon at that port.

    Attributes:
        waiting: HTTP requests that wait for messages now, by queue.
    """

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self._consumers: list[Callable[..., int]] = [self.waiting.__getitem__]
        self._by_id: dict[str, OpenConnection] = {}
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    @contextmanager
    def entry(self, connection: OpenConnection) -> Iterator[str]:
        """Have a connection among them for as long as the block runs. The block gets its id."""
        id = f"{self._prefix}-{next(self._numbers)}"
        self._by_id[id] = connection
        try:
            yield id
        finally:
            del self._by_id[id]

    def all(self) -> list[tuple[str, OpenConnection]]:
        """The connections that are open now, with their ids, the oldest first."""
        return list(self._by_id.items())

    def count_consumers_by(self, count: Callable[..., int]) -> None:
        """Add what `count` says of a queue to :meth:`consumers` from now on."""
        self._consumers.append(count)

    def consumers(self, queue: str) -> int:
        """How many consume from a queue now: consumers over AMQP, and requests that wait for messages."""
        return sum(count(queue) for count in self._consumers)

    def by_door(self) -> Counter[str]:
        """How many are open over each protocol that has some."""
        return Counter(connection.protocol for connection in self._by_id.values())

    def count(self, user: str) -> int:
        """How many a user has."""
        return sum(connection.user == user for connection in self._by_id.values())

    def find(self, id: str) -> OpenConnection | None:
        """The one of that id; None where it has ended."""
        return self._by_id.get(id)
