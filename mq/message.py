"""What a message is: its queue's name, its id, its body and what is known of it.

Values only: frozen, without I/O, importable anywhere. Clocks are injected.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from mq.errors import CorruptMessage, InvalidId, InvalidName, NoSuchQueue

QUEUE_NAME_BYTES: Final = 100
"""The longest queue name, in bytes. With the id's 36 it leaves 118 of a file name's 255 for the suffix."""

LONGEST_GROUP: Final = 128
"""Characters of a message group's name."""

QUEUE_NAME_PATTERN: Final = "[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}"
"""What a queue may be called."""
MESSAGE_ID_PATTERN: Final = "[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
"""A UUID of version 1, in small letters."""

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
CODINGS: Final = re.compile(rf"(?=.{{1,255}}\Z){_TOKEN}(?:[ \t]*,[ \t]*{_TOKEN})*")
"""What a Content-Encoding may be (RFC 9110, section 8.4)."""
"""What a Content-Encoding may be (RFC 9110, section 8.4)."""
_NO_CODING: Final = re.compile(
    r"(?i)(?:utf|us-|ascii|iso|latin|cp|windows|binary|identity|[78]bit|base64|quoted|none).*"
)
"""Texts that AMQP clients write as content_encoding, such as Celery's utf-8: they name a charset, or nothing."""

_QUEUE_NAME = re.compile(QUEUE_NAME_PATTERN)
_MESSAGE_ID = re.compile(MESSAGE_ID_PATTERN)

_GREGORIAN_TO_UNIX_TICKS: Final = 0x01B21DD213814000
"""100 ns ticks between 1582-10-15, where UUID time begins, and 1970-01-01 (RFC 9562, section 5.1)."""
_NODE: Final = (1 << 48) - 1
OF_A_PROCESS: Final = 1 << 40
"""The multicast bit of an id's node: set where the node stands for a process (RFC 9562, section 6.10), not set where it
is the number of a message group."""
_LAST_FOLLOWED_TICKS: Final = 1 << 59
"""No clock shows the year 3409: an id from then on was made by hand. Ids have room until 5236."""


class QueueName(str):
    """A queue's name: ``[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}``.

    Raises:
        InvalidName: the text is outside that grammar.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> QueueName:
        if type(text) is cls:
            return text
        if _QUEUE_NAME.fullmatch(text) is None:
            raise InvalidName(
                f"invalid queue name: {shorten(text)}. Use 1 to 100 characters: letters, digits and any of . _ @ - "
                "(the first must be a letter, a digit or _)"
            )
        return super().__new__(cls, text)


class MessageId(str):
    """A message's id: a UUID of version 1 in standard, lower-case text form.

    Ids order by :attr:`key`, that is by time first; their *text* does not order by time.

    Raises:
        InvalidId: the text is anything else.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> MessageId:
        if type(text) is cls:
            return text
        if _MESSAGE_ID.fullmatch(text) is None:
            raise InvalidId(
                f"invalid message ID: {shorten(text)}. Use the value of the X-Message-Id header in the response to a "
                "publish or fetch request"
            )
        return super().__new__(cls, text)

    @property
    def time(self) -> int:
        """When the id was made, in 100 ns ticks since 1582-10-15 (UUID time)."""
        return int(self[15:18] + self[9:13] + self[0:8], 16)

    @property
    def key(self) -> int:
        """The integer by which ids are ordered: time, then clock sequence, then node. Unique to the id."""
        return int(self[15:18] + self[9:13] + self[0:8] + self[19:23] + self[24:36], 16)

    @property
    def published_ns(self) -> int:
        """When the id was made, in nanoseconds since 1970."""
        return (int(self[15:18] + self[9:13] + self[0:8], 16) - _GREGORIAN_TO_UNIX_TICKS) * 100

    @staticmethod
    def group_in(key: int) -> int | None:
        """The number of the message group of the message with that :attr:`key`; None for no group."""
        return None if key & OF_A_PROCESS else key & _NODE

    @staticmethod
    def time_ns(ticks: int) -> int:
        """UUID time as nanoseconds since 1970."""
        return (ticks - _GREGORIAN_TO_UNIX_TICKS) * 100

    @classmethod
    def from_key(cls, key: int) -> MessageId:
        """The id whose :attr:`key` is `key`."""
        digits = key.to_bytes(16).hex()
        return str.__new__(cls, f"{digits[8:16]}-{digits[4:8]}-1{digits[1:4]}-{digits[16:20]}-{digits[20:]}")


class MessageIds:
    """Makes ids whose time strictly increases, whatever the clock does.

    Args:
        clock_ns: wall clock, nanoseconds since 1970.
        node: 48 random bits that tell this process from others; drawn when not given.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns, node: int | None = None) -> None:
        if node is None:
            node = secrets.randbits(48) | OF_A_PROCESS  # so it is not a network card's address, either
        clock_sequence = 0x8000 | (node ^ node >> 16) & 0x3FFF
        self._clock_ns = clock_ns
        self._process = f"{clock_sequence:04x}"
        self._tail = f"{self._process}-{node:012x}"
        self._last = 0

    def new(self, group: str | None = None, now_ns: int | None = None) -> MessageId:
        """The next id: of a message of that group, or of none.

        Args:
            now_ns: what the clock shows now; None to read it.
        """
        # The id tells the group, so an index knows it without a look at the message. Ids stay apart: their times differ
        # within a process, their clock sequences between processes.
        tail = self._tail if group is None else f"{self._process}-{group_number(group):012x}"
        ticks = (self._clock_ns() if now_ns is None else now_ns) // 100 + _GREGORIAN_TO_UNIX_TICKS
        if ticks <= self._last:
            ticks = self._last + 1
        self._last = ticks
        digits = f"{ticks:015x}"
        return str.__new__(MessageId, f"{digits[7:]}-{digits[3:7]}-1{digits[:3]}-{tail}")

    @property
    def last(self) -> int:
        """When the last id was made, or what was observed: every later id is younger. In UUID ticks."""
        return self._last

    def observe(self, ticks: int) -> None:
        """Make every later id younger than `ticks`: what stood in the store before comes out first.

        However far the clock was set back since: only a time from the year 3409 on is taken for a foreign id and not
        followed.
        """
        if self._last < ticks < _LAST_FOLLOWED_TICKS:
            self._last = ticks


@lru_cache(maxsize=4096)
def group_number(name: str) -> int:
    """The number by which ids name a message group: 47 bits of a hash. Two groups of one number are served as one."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest) & ~OF_A_PROCESS


_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)  # json.dumps makes one at each call


def encode_json(value: Mapping[str, Any]) -> bytes:
    """JSON that json.loads reads back exactly, half characters (lone surrogates) included."""
    return _JSON.encode(value).encode("utf-8", "surrogatepass")


class SharedAttributes(dict[str, Any]):
    """Attributes, or another JSON object, that never change: they are measured and encoded once.

    Attributes:
        json: as :func:`encode_attributes` gives them, once it has done so; empty before.
        length: the characters of its texts, once :func:`length_of` has counted them; -1 before.
    """

    __slots__ = ("json", "length")

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        super().__init__(attributes)
        self.json = b""
        self.length = -1

    def encoded(self) -> bytes:
        """As :func:`encode_json` gives them."""
        if not self.json:
            self.json = encode_json(self)
        return self.json


def encode_attributes(attributes: Mapping[str, Any]) -> bytes:
    """Attributes as JSON; empty for none."""
    if not attributes:
        return b""
    return attributes.encoded() if isinstance(attributes, SharedAttributes) else encode_json(dict(attributes))


def length_of(attributes: Mapping[str, Any]) -> int:
    """The characters of the texts of attributes, names included: about what they take in memory."""
    if not isinstance(attributes, SharedAttributes):
        return _length(attributes)
    if attributes.length < 0:
        attributes.length = _length(attributes)
    return attributes.length


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + _length(its) for name, its in value.items())
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 8


class Properties(NamedTuple):
    """What is fixed when a message is written.

    Attributes:
        checksum: CRC-32 of the body (zlib's), or None where the medium did not keep one.
        attributes: what the publisher said of it, as JSON values by name (``content_type``, ...).
    """

    size: int
    checksum: int | None
    attributes: Mapping[str, Any] = {}


class Body(Protocol):
    """A message's bytes, wherever they are. Read it once, then close it."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    async def read(self) -> bytes:
        """All of it.

        Raises:
            CorruptMessage: the bytes are not those that were published.
        """

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunk by chunk; raises CorruptMessage at the end at the latest."""

    async def aclose(self) -> None:
        """Give back what it holds (an open file)."""


class BytesBody:
    """A body that is in memory."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    async def read(self) -> bytes:
        """All of it."""
        return self.data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All of it in one chunk."""
        if self.data:
            yield self.data

    async def aclose(self) -> None:
        """Nothing to give back."""


class DamagedBody:
    """A body whose bytes are known to be damaged: reading it raises the error."""

    __slots__ = ("reason", "size")

    def __init__(self, size: int, reason: str) -> None:
        self.size = size
        self.reason = reason

    async def read(self) -> bytes:
        """Raises CorruptMessage."""
        raise CorruptMessage(self.reason)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises CorruptMessage."""
        yield await self.read()

    async def aclose(self) -> None:
        """Nothing to give back."""


class Message(NamedTuple):
    """A message as a fetch hands it out.

    Attributes:
        properties: what was fixed when it was published.
        receives: how often it has been handed out, this time included.
        receipt: unique to this delivery.
        dead_letter_history: how it came from queue to queue as a dead letter, the latest first.
        lease: seconds for which this delivery holds it; 0 where it is no lease.
    """

    queue: str
    id: MessageId
    body: Body
    properties: Properties
    receives: int
    receipt: str
    dead_letter_history: tuple[Mapping[str, Any], ...] = ()
    lease: float = 0.0


checksum: Final = zlib.crc32
"""CRC-32 of some bytes, going on from a second argument, that of the bytes before them."""


_CHECKSUM_LENGTH: Final = 9
"""Bytes that :func:`with_checksum` adds."""


def with_checksum(content: bytes) -> bytes:
    """A block of JSON, a space, and the CRC-32 of the JSON in hexadecimal."""
    return b"%s %08x" % (content, checksum(content))


def without_checksum(block: bytes) -> bytes:
    """The content that :func:`with_checksum` was given.

    Raises:
        ValueError: the block has no checksum, or another content's.
    """
    content = block[:-_CHECKSUM_LENGTH]
    if block[-_CHECKSUM_LENGTH:] != b" %08x" % checksum(content):
        raise ValueError("the content does not match its checksum")
    return content


def content_codings(text: str) -> str | None:
    """The content codings of a body, as Content-Encoding has them (RFC 9110, section 8.4): ``gzip``, or ``br, gzip``.
    None for a text that names none."""
    text = text.strip(" \t")
    return text if CODINGS.fullmatch(text) and not _NO_CODING.fullmatch(text) else None


def no_such_queue(queue: str) -> NoSuchQueue:
    """The refusal of a request for a queue that does not exist, in one text for all protocols' callers."""
    return NoSuchQueue(f"queue {shorten(queue)} does not exist. Create it with PUT /{queue}")


def shorten(text: str, limit: int = 60) -> str:
    """`text` as an error line may show it: escaped, in quotes, cut at `limit` characters."""
    shown = ascii(text if len(text) <= limit else text[:limit] + "...")
    return '"' + shown[1:-1] + '"'
