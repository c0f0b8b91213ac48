"""What the channels of a connection share: who it is, where it looks, its limits, and the two ways out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from pamqp import base

from mq.access import Right, User
from mq.amqp.errors import Code, Refused
from mq.amqp.frames import SMALLEST_FRAME_MAX, encode_content, encode_method
from mq.amqp.names import DEFAULT_VHOST, encode
from mq.amqp.outbox import Outbox
from mq.amqp.topology import Topology

MESSAGE_OVERHEAD: Final = 1024
"""Bytes that a message without a body is counted as, where it waits in memory."""


@dataclass(frozen=True)
class Limits:
    """How much of what a connection may ask for.

    Attributes:
        frame_max: bytes of the largest frame.
        channel_max: the highest number of a channel.
        heartbeat_seconds: what is proposed to clients.
        handshake_seconds: so long may opening a connection take, and closing one.
        body_max: bytes of the longest body.
        buffered_max: bytes of bodies that may be here unfinished, or uncommitted, over all channels.
        unsettled_max: deliveries that may be unsettled, over all channels.
        consumers_max: consumers, over all channels.
    """

    frame_max: int = 131_072
    channel_max: int = 2047
    heartbeat_seconds: int = 60
    handshake_seconds: float = 10.0
    body_max: int = 128 * 1024 * 1024
    buffered_max: int = 160 * 1024 * 1024
    unsettled_max: int = 262_144
    consumers_max: int = 4096


@dataclass
class Session:
    """What the channels of a connection share.

    Attributes:
        topology: of the whole daemon.
        owner: told apart from every other connection by this.
        limits: of the connection.
        vhost: where it works, once it is open.
        user: who it is; None may do everything.
        frame_max: bytes of the largest frame that was agreed on.
        capabilities: what the client says that it understands.
        outbox: commands.
        send: bytes for the client.
        buffered: bytes that count for ``buffered_max``.
        unsettled: deliveries that count for ``unsettled_max``.
        consumers: how many there are.
    """

    topology: Topology
    owner: Hashable
    limits: Limits
    send: Callable[[bytes], None]
    outbox: Outbox = field(default_factory=Outbox)
    vhost: str = DEFAULT_VHOST
    user: User | None = None
    frame_max: int = SMALLEST_FRAME_MAX
    capabilities: frozenset[str] = frozenset()
    buffered: int = 0
    unsettled: int = 0
    consumers: int = 0

    def send_method(self, channel: int, method: type[base.Frame], **values: Any) -> None:
        """Send a method. Fields that are not given are zero, empty or false."""
        self.send(encode_method(channel, method, **values))

    def send_content(self, channel: int, properties: bytes, body: bytes) -> None:
        """Send the content that belongs to the method just sent."""
        self.send(encode_content(channel, properties, body, self.frame_max))

    def buffer(self, size: int) -> None:
        """So many bytes more wait in memory; less, if it is below zero.

        Raises:
            Refused: 506; that is too much.
        """
        self.buffered += size
        if size > 0 and self.buffered > self.limits.buffered_max:
            raise Refused(Code.RESOURCE_ERROR, "too many bytes of unfinished or uncommitted messages")

    def demand(self, right: Right, what: str, name: str | None) -> None:
        """Whether the user may do that.

        Args:
            right: which right.
            what: ``queue`` or ``exchange``, for the text.
            name: of it; None for "every queue".

        Raises:
            Refused: 403.
        """
        if self.user is None or self.user.may(right, None if name is None else encode(self.vhost, name)):
            return
        shown = "every queue" if name is None else f"{what} '{name}' in vhost '{self.vhost}'"
        raise Refused(Code.ACCESS_REFUSED, f"access to {shown} refused for user '{self.user.name}': no {right} right")

    def demand_any(self, what: str, name: str) -> None:
        """Whether the user may do anything with it.

        Raises:
            Refused: 403.
        """
        if self.user is None or self.user.may_something(encode(self.vhost, name)):
            return
        shown = f"{what} '{name}' in vhost '{self.vhost}'"
        raise Refused(Code.ACCESS_REFUSED, f"access to {shown} refused for user '{self.user.name}'")
