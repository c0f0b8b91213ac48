"""Replies with messages and with the state of queues, shared by several operations.

Many messages are read as far as there is memory, and written piece by piece. A client that does not read holds up no
more than its own reply: at most :data:`LARGEST_PAGE`, or one message, of the shared budget. Memory is given back as it
is sent. Such replies are JSON Lines, multipart or columns (:mod:`mq.web.columns`).
"""

from __future__ import annotations

import base64
import codecs
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from types import TracebackType
from typing import Any, Final

import trio

from mq.broker import QueueStatus, Seen
from mq.broker.bodies import close
from mq.broker.columns import LONGEST_COLUMNS, BrowsedColumns
from mq.broker.settings import VISIBILITY
from mq.doors.budget import ClientMemory, Room, Use
from mq.errors import CorruptMessage, MQError
from mq.message import BytesBody, Message
from mq.web.batches import FORMATS, JSON_LINES, MULTIPART, BatchEntry, part_headers, preferred, said_of, written_line
from mq.web.columns import COLUMNS, PIECE, Block, block_of_columns, block_of_entries, cut, write_columns
from mq.web.exchange import NOT_CACHED, Reply
from mq.web.json_answer import JsonAnswer
from mq.web.multipart import begin_part, end_parts
from mq.web.operations import RequestContext, Schema
from mq.web.parameters import GROUP, ID, headers_of
from mq.web.request_body import IN_MEMORY_BYTES

STORED: Final = (
    NOT_CACHED,
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "sandbox; default-src 'none'"),
)
"""Headers of published bodies. A browser takes such a body for nothing but its content type, and runs no script of it
in our origin."""

MESSAGE_HEADERS: Final[Mapping[str, tuple[str, Schema]]] = {
    "X-Message-Id": ("the message's id", ID.schema),
    "ETag": ("the receipt of this delivery, in quotes", {"type": "string"}),
    "X-Message-Receives": ("number of deliveries, including this one", {"type": "integer", "minimum": 0}),
    "X-Message-Lease": ("length of the lease in seconds", VISIBILITY.schema),
    "X-Message-Group": ("the message group, if any", GROUP.schema),
    "X-Message-Dead-Letter-History": ("the dead-letter history as JSON, latest entry first", {"type": "string"}),
    "traceparent": ("the trace context of the publish, if any", {"type": "string"}),
    "tracestate": ("vendor data of the trace context", {"type": "string"}),
}
"""The headers of a reply with one message; a batch has none of them."""


def outcomes_reply(lines: Sequence[str]) -> Reply:
    """A line for each entry of a batch."""
    body = "".join(lines).encode("ascii")
    return Reply(200, (("content-type", JSON_LINES[0]), ("content-length", str(len(body)))), body)


async def message_reply(message: Message) -> Reply:
    """One message as its body; a large one is streamed."""
    reply = message_reply_now(message)
    if reply is not None:
        return reply
    headers = (*headers_of(message), *STORED)
    if message.body.size > IN_MEMORY_BYTES:
        return Reply(200, headers, message.body)
    return Reply(200, headers, await read_body(message))


def message_reply_now(message: Message) -> Reply | None:
    """As :func:`message_reply`, of a small body in memory; None where it is not."""
    body = message.body
    if type(body) is not BytesBody or body.size > IN_MEMORY_BYTES:
        return None
    return Reply(200, (*headers_of(message), *STORED), body.data)  # there is nothing to close


async def read_body(message: Message) -> bytes:
    """A message's body, which is closed in any case."""
    if type(message.body) is BytesBody:
        return message.body.data  # there is nothing to close
    try:
        return await message.body.read()
    finally:
        await close([message])


async def without_body(reply: Reply) -> Reply:
    """A reply to HEAD: the same, with nothing left to send or to close."""
    if not isinstance(reply.body, bytes):
        with trio.CancelScope(shield=True):
            await reply.body.aclose()
    return reply._replace(body=b"")


def shown_queue(status: QueueStatus, consumers: int) -> dict[str, Any]:
    """What a queue is and holds, by its JSON names.

    Args:
        status: of the queue.
    """
    return {
        "name": status.name,
        **status.settings.values(),
        "ready": status.ready,
        "leased": status.leased,
        "delayed": status.delayed,
        "oldest_seconds": age_of(status),
        "consumers": consumers,
        "store": status.store,
    }


def age_of(status: QueueStatus) -> float | None:
    """How long its oldest ready message has been in a queue, in seconds."""
    return None if status.oldest_ns is None else round(max(0.0, (time.time_ns() - status.oldest_ns) / 1e9), 3)


QUEUE_BYTES: Final = 512
"""What the status of a queue takes in memory."""


async def all_queues(context: RequestContext, answer: JsonAnswer) -> Sequence[QueueStatus]:
    """The status of every queue, by name, with the memory for them reserved until they are written.

    Raises:
        NoMemory: others have that memory.
    """
    statuses = await context.broker.queues()
    answer.cover(QUEUE_BYTES * len(statuses))
    return statuses


# Many messages


logger = logging.getLogger("mq.web")

OFFERED: Final = (*FORMATS, COLUMNS)
"""The formats of answers that may be columns."""
LARGEST_PAGE: Final = 8 << 20
"""Bytes of the bodies of one answer with more than one message; and as much again for everything beside them."""
LONGEST_SLICE: Final = 500
"""Messages that are opened at a time."""
SHORTEST_SLICE: Final = 16
"""Messages that are opened at a time where memory is short, or columns have just stopped."""
_FREE_SHARE: Final = 8
"""The part of the free memory that one slice may take: other requests open messages at the same time."""
_OF_THREE: Final = 48 * 1024
"""Bytes that base64 turns into one piece: a multiple of three."""
_ENTRY_BYTES: Final = 512
_COLUMNS_BYTES: Final = 1 << 20
"""Bytes of bodies and attributes that are read at a time in columns."""
_BESIDE_IN_COLUMNS: Final = 128
"""Bytes that a message takes in columns beside its body and its attributes."""
_WRITTEN: Final = 4
"""How much memory a byte of attributes may take, with what it is written in."""


def messages_together(most: int, free: int) -> int:
    """How many of `most` messages may be opened at a time, where so many bytes are free."""
    return min(most, max(SHORTEST_SLICE, min(LONGEST_SLICE, free // _FREE_SHARE // IN_MEMORY_BYTES)))


class MessagePage:
    """The messages of one answer. Use it in a ``with`` block, which gives their memory back if no reply is made.

    Args:
        longest: bytes that their bodies may have together, but for a single longer one.

    Attributes:
        entries: the messages read one by one, since the last ones read in columns.
        is_full: no more fit.
    """

    def __init__(self, memory: ClientMemory, longest: int) -> None:
        self.entries: list[BatchEntry] = []
        self.is_full = False
        self._memory = memory
        self._room = memory.reserve(Use.ANSWER)
        self._used = 0
        self._left = min(longest, LARGEST_PAGE)
        self._left_beside = LARGEST_PAGE
        self._blocks: list[Block] = []
        self._before = 0

    def __enter__(self) -> MessagePage:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._room.give_back()

    def slice(self, most: int) -> int:
        """How many of `most` messages may be opened now: small bodies come with them. Their memory is reserved until
        they are added."""
        free = self._room.free
        count = messages_together(most, free)
        self._room.cover(self._used + min(free, count * IN_MEMORY_BYTES))
        return count

    async def add(self, seen: Sequence[Seen]) -> Sequence[Seen]:
        """Read the first messages that fit, one at the least, and return the others, closed. Of those that have one
        sequence all fit, or none: the next page begins behind it. A damaged message is passed over.

        Raises:
            NoMemory: others have the memory for them; all are closed.
            BodyTooLarge: one takes more than all the memory there is; so are they.
        """
        before: int | None = None
        for position, (message, state, sequence, at_ms, _) in enumerate(seen):
            size, beside = message.body.size, _beside(message)
            self._left -= size
            self._left_beside -= beside
            is_apart, before = sequence is None or sequence != before, sequence
            if (self._left < 0 or self._left_beside < 0) and (self.entries or self._blocks) and is_apart:
                self.is_full = True
                rest = seen[position:]
                await close([each.message for each in rest])
                return rest
            try:
                self._used += size + beside
                self._room.cover(self._used)
                body = message.body.data if type(message.body) is BytesBody else await read_body(message)
            except CorruptMessage as error:
                logger.error("cannot deliver message %s from queue %s: %s", message.id, message.queue, error)
            except MQError:
                await close([each.message for each in seen[position:]])
                raise
            else:
                self.entries.append(BatchEntry(message, body, state, sequence, at_ms))
        self._trim()
        return ()

    def room_for_columns(self) -> tuple[int, int]:
        """Reserve memory for messages in columns until they are added: how long the bodies before them are, and how
        many bytes theirs may have with the attributes."""
        self._gather()
        free = self._room.free
        most = max(0, min(_COLUMNS_BYTES, self._left, self._left_beside, free // _FREE_SHARE))
        # They are there twice for a moment: as they were read, and as bytes.
        self._room.cover(self._used + min(free, 2 * (most + _BESIDE_IN_COLUMNS * LONGEST_COLUMNS)))
        return self._before, most

    def add_columns(self, browsed: BrowsedColumns) -> None:
        """Add messages that were read in columns."""
        if browsed.columns.length:
            block = block_of_columns(browsed)
            beside = _BESIDE_IN_COLUMNS * block.length + _WRITTEN * sum(map(len, block.said.values()))
            size = len(browsed.columns.bodies)
            self._add_block(block, size)
            self._left -= size
            self._left_beside -= beside
            self._used += size + beside
        self._trim()

    def _gather(self) -> None:
        """Make a block of the messages that were read one by one."""
        if self.entries:
            entries, self.entries = self.entries, []
            self._add_block(block_of_entries(entries, self._before), sum(len(entry.body) for entry in entries))

    def _add_block(self, block: Block, size: int) -> None:
        self._blocks.append(block)
        self._before += size

    def _trim(self) -> None:
        self._room.shrink(self._used)
        self.is_full = self._left <= 0 or self._left_beside <= 0

    def reply(self, accept: str, *headers: tuple[str, str], offers_columns: bool = False) -> Reply:
        """The answer, in the format that the client prefers; in one piece where it is short."""
        format, is_short = preferred(accept, OFFERED if offers_columns else FORMATS), self._used <= IN_MEMORY_BYTES
        if format == COLUMNS:
            self._gather()
        entries, blocks = deque(self.entries), self._blocks
        self.entries, self._blocks = [], []
        room, self._room = self._room, self._memory.reserve(Use.ANSWER)
        if is_short:
            room.give_back()
        is_columns = format == COLUMNS
        content_type, pieces = (
            (COLUMNS, write_columns(blocks, room)) if is_columns else write_entries(format, entries, room)
        )
        start = ("content-type", content_type)
        if not is_short:
            return Reply(200, (start, *STORED, *headers), StreamedPage(pieces, room))
        body = b"".join(pieces)
        return Reply(200, (start, ("content-length", str(len(body))), *STORED, *headers), body)


class StreamedPage:
    """An answer that is written while it is sent, and gives its memory back as it goes."""

    def __init__(self, pieces: Iterator[bytes], room: Room) -> None:
        self._pieces = pieces
        self._room = room

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Piece by piece; others are served between two."""
        self._room.begin_sending()
        for piece in self._pieces:
            if piece:
                yield piece
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Let go of what was not sent."""
        self._pieces = iter(())
        self._room.give_back()


def _beside(message: Message) -> int:
    """About how much memory a message takes beside its body."""
    attributes, deaths = message.properties.attributes, message.dead_letter_history
    if not attributes and not deaths:
        return _ENTRY_BYTES
    return _ENTRY_BYTES + _WRITTEN * (len(json.dumps(attributes)) + len(json.dumps(deaths)))


def write_entries(format: str, entries: deque[BatchEntry], room: Room) -> tuple[str, Iterator[bytes]]:
    """The content type, and the body in pieces of about the same length; an empty one where making the next takes
    long.
    """
    if format == MULTIPART:
        boundary = secrets.token_hex(16)
        return f'{MULTIPART}; boundary="{boundary}"', _gathered(_parts(boundary, _let_go(entries, room)))
    return JSON_LINES[0], _gathered(_lines(_let_go(entries, room)))


def _let_go(entries: deque[BatchEntry], room: Room) -> Iterator[BatchEntry]:
    """The entries one after the other. Taking one frees the memory of the one before."""
    while entries:
        entry = entries.popleft()
        size = len(entry.body) + _beside(entry.message) if room.size else 0
        yield entry
        if size:
            room.shrink(room.size - size)


def _gathered(fragments: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for fragment in fragments:
        if not fragment:
            yield b""
        held.append(fragment)
        size += len(fragment)
        if size >= PIECE:
            yield b"".join(held)
            held.clear()
            size = 0
    if held:
        yield b"".join(held)


def _parts(boundary: str, entries: Iterator[BatchEntry]) -> Iterator[bytes]:
    for entry in entries:
        yield begin_part(boundary, part_headers(entry))
        yield from cut(entry.body)
        yield b"\r\n"
    yield end_parts(boundary)


def _lines(entries: Iterator[BatchEntry]) -> Iterator[bytes]:
    for entry in entries:
        if len(entry.body) <= PIECE:
            yield written_line(entry).encode("ascii")
        else:
            yield from _long_line(entry)


def _long_line(entry: BatchEntry) -> Iterator[bytes]:
    yield json.dumps(said_of(entry))[:-1].encode("ascii")
    text = codecs.getincrementaldecoder("utf-8")()
    is_text = True
    try:
        for piece in cut(entry.body):
            text.decode(piece)
            yield b""
        text.decode(b"", True)
    except UnicodeDecodeError:
        is_text = False
    if is_text:
        yield b', "body": "'
        text.reset()
        for piece in cut(entry.body):
            yield encode_basestring_ascii(text.decode(piece))[1:-1].encode("ascii")
    else:
        yield b', "base64": "'
        for piece in cut(entry.body, _OF_THREE):
            yield base64.b64encode(piece)
    yield b'"}\n'
