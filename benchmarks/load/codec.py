"""What a codec is: one connection's half of a protocol, without a socket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any

Steps = Generator[bytes, Any, Any]
"""Something that takes several answers: it yields what to send (nothing: only wait) and is sent the next answer."""


class ServerError(Exception):
    """A server answered what no good server answers here."""


class Codec(ABC):
    """One connection."""

    def __init__(self, queue: str, body: bytes) -> None:
        self.queue = queue
        self.body = body

    @abstractmethod
    def parse(self, data: bytes) -> tuple[Any, int] | None:
        """The first answer in `data` and its length in bytes; None while it is not whole.

        Raises:
            ServerError: the server refuses.
        """

    @abstractmethod
    def publish(self) -> Steps:
        """Publish the body. It ends when the server has confirmed it."""

    @abstractmethod
    def consume(self) -> Steps:
        """Fetch the next message, which is or will be there, and remove it."""

    def open(self) -> Steps:
        """What a connection says first."""
        yield from ()

    def create(self) -> Steps:
        """Make the queue."""
        yield from ()

    def subscribe(self) -> Steps:
        """What a connection that will consume says after :meth:`open`."""
        yield from ()

    def delete(self) -> Steps:
        """Take the queue away. Where a protocol has no word for that, messages stay."""
        yield from ()

    def last_words(self) -> bytes:
        """What is still to be sent before the connection ends."""
        return b""


def check(good: bool, answer: object) -> None:
    """Refuse an answer that is not as it should be."""
    if not good:
        raise ServerError(repr(answer)[:300])
