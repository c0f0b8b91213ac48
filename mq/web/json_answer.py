"""A large JSON answer, written part by part: memory is reserved for each part before the next one is written."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, NamedTuple

from mq import turns
from mq.doors.budget import ClientMemory, Room, Use
from mq.web.exchange import Reply

PART_BYTES: Final = 64 * 1024
"""Characters of a part; an answer up to this size is sent in one piece."""
_PASSED_OVER: Final = 32 * turns.FRAME
"""Units of work for None in place of an element: the iterator passed over many things that it does not show."""


class Entries(NamedTuple):
    """The members of an object that are written one by one."""

    items: Iterator[tuple[str, Any]]


class Members(NamedTuple):
    """An object whose members are written one by one, as :meth:`JsonAnswer.write` does."""

    value: Mapping[str, Any]


class JsonAnswer:
    """One answer. Use it in a ``with`` block, which gives its memory back if no reply is made."""

    def __init__(self, memory: ClientMemory) -> None:
        self._room = memory.reserve(Use.ANSWER)
        self._parts: deque[bytes] = deque()
        self._held: list[str] = []
        self._held_size = 0
        self._size = 0
        self._beside = 0

    def __enter__(self) -> JsonAnswer:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._room.give_back()

    def cover(self, beside: int) -> None:
        """Reserve memory for what the answer is written from, until it is written.

        Raises:
            NoMemory: it is not free just now.
        """
        self._beside = beside
        self._room.cover(self._size + self._held_size + beside)

    @property
    def free(self) -> int:
        """How many bytes more it could have now."""
        return self._room.free

    async def write(self, value: Mapping[str, Any]) -> None:
        """Write the answer, an object. A member that is an iterator becomes an array, and :class:`Entries` an object;
        their elements are written one by one, and others are served meanwhile, and where an iterator has None. A member
        that is a function is called once those before it are written.

        Raises:
            NoMemory: no memory is free for more of it.
            BodyTooLarge: it is longer than the whole budget.
        """
        await self._write(Members(value))
        self._add("\n")

    async def _write(self, value: Any) -> None:
        if isinstance(value, Members):
            before = "{"
            for name, member in value.value.items():
                self._add(f"{before}{json.dumps(name)}: ")
                before = ", "
                await self._write(member)
            self._add("}")
        elif isinstance(value, Entries):
            await self._write_many("{", "}", ((f"{json.dumps(key)}: ", each) for key, each in value.items))
        elif isinstance(value, Iterator):
            await self._write_many("[", "]", (("", each) for each in value))
        elif isinstance(value, AsyncGenerator):
            await self._write_later(value)
        else:
            self._add(json.dumps(value() if callable(value) else value))

    async def _write_many(self, start: str, end: str, elements: Iterator[tuple[str, Any]]) -> None:
        self._add(start)
        before, loop = "", turns.of_run()
        for name, element in elements:
            if loop.spend(_PASSED_OVER if element is None else turns.FRAME):
                await loop.end()
            if element is None:
                continue
            self._add(before + name)
            before = ", "
            await self._write(element)
        self._add(end)

    async def _write_later(self, elements: AsyncGenerator[Any]) -> None:
        self._add("[")
        before = ""
        async with aclosing(elements):
            async for element in elements:
                self._add(before)
                before = ", "
                await self._write(element)
        self._add("]")

    def _add(self, text: str) -> None:
        """Write some more."""
        self._held.append(text)
        self._held_size += len(text)
        if self._held_size >= PART_BYTES:
            self._end_part()
            self._room.cover(self._size + PART_BYTES + self._beside)  # the next part, before it is written

    def _end_part(self) -> None:
        part = "".join(self._held).encode("ascii")  # json.dumps escapes all else
        self._held.clear()
        self._held_size = 0
        self._size += len(part)
        self._parts.append(part)

    def reply(self, *headers: tuple[str, str]) -> Reply:
        """The reply with what was written."""
        self._end_part()
        room, self._room = self._room, self._room.client.reserve(Use.ANSWER)
        start = (("content-type", "application/json"), ("content-length", str(self._size)), *headers)
        if self._size <= PART_BYTES:
            room.give_back()
            return Reply(200, start, b"".join(self._parts))
        room.shrink(self._size)
        return Reply(200, start, SentParts(self._parts, room))


class SentParts:
    """The parts of an answer, which give their memory back as they are sent.

    Args:
        parts: are taken out as they are sent.
    """

    def __init__(self, parts: deque[bytes], room: Room) -> None:
        self._parts = parts
        self._room = room

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Part by part."""
        self._room.begin_sending()
        while self._parts:
            part = self._parts.popleft()
            yield part
            self._room.shrink(self._room.size - len(part))

    async def aclose(self) -> None:
        """Let go of what was not sent."""
        self._parts.clear()
        self._room.give_back()
