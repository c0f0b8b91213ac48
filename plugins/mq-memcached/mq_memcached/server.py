"""What a server must be, so that a queue can live on it."""

from __future__ import annotations

from typing import Final, NamedTuple

from mq.errors import StorageUnusable
from mq.message import shorten

DEFAULT_PORT: Final = 11211
_SMALLEST_ITEM: Final = 4096
_OVERHEAD: Final = 1024
"""What a server counts towards the size of an item besides its value, and more."""


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        prefix: the beginning of every key, so that several programs fit on one server.
    """

    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """``//HOST:PORT/PREFIX`` as an address; the slashes, the port and the prefix may be missing.

    Raises:
        StorageUnusable: it is anything else.
    """
    place, _, prefix = text.removeprefix("//").partition("/")
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    good_prefix = len(prefix) <= 40 and prefix.isascii() and prefix.isprintable() and " " not in prefix
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536 or not good_prefix:
        raise StorageUnusable(f"invalid server address: {shorten(text)}. Use an address such as 127.0.0.1:11211")
    return Address(host, int(port), prefix)


class Limits(NamedTuple):
    """How much a server takes.

    Attributes:
        value: the longest value that is sure to fit one item, in bytes.
    """

    value: int


def limits_of(settings: dict[str, str], address: Address) -> Limits:
    """What ``stats settings`` says, if a queue can live there.

    Raises:
        StorageUnusable: the server throws away what it has no room for, or its items are too small.
    """
    if settings.get("evictions") != "off":
        raise StorageUnusable(
            f"the memcached server at {address} evicts messages when it is full: start the server with -M"
        )
    try:
        value = int(settings["item_size_max"]) - _OVERHEAD
    except (KeyError, ValueError) as error:
        raise StorageUnusable(f"the server at {address} does not report its limits (stats settings)") from error
    if value < _SMALLEST_ITEM:
        raise StorageUnusable(
            f"the item size limit of the memcached server at {address} is too low: start the server with -I 1m"
        )
    return Limits(value)
