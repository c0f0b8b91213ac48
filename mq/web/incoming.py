"""A request's body, as the endpoints read it: whole and small, streamed, or as JSON."""

from __future__ import annotations

import json
from typing import Any, Final

from mq.errors import BodyIncomplete, BodyTooLarge, InvalidRequest
from mq.web.arriving import Whole
from mq.web.exchange import Request

IN_MEMORY_BYTES: Final = 64 * 1024
"""Bodies up to this size are held in memory; longer ones stream to and from the store."""
LARGEST_JSON_BYTES: Final = 256 * 1024
"""Of what asks for something, and is no message."""


class Incoming:
    """A request's body: never longer than the limit, never shorter than announced.

    Args:
        request: whose body it is.
        limit: in bytes.

    Raises:
        BodyTooLarge: before anything is read, where the announced length says so already.
    """

    def __init__(self, request: Request, limit: int) -> None:
        if request.content_length is not None and request.content_length > limit:
            raise BodyTooLarge(f"the body has {request.content_length} bytes, the limit is {limit}")
        self._chunks = aiter(request.body)
        self._is_whole = isinstance(request.body, Whole)
        self._announced = request.content_length
        self._limit = limit
        self._size = 0
        self._held = b""

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> bytes:
        if self._held:
            held, self._held = self._held, b""
            return held
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            if self._announced not in (None, self._size):
                raise BodyIncomplete(f"the body ended after {self._size} of {self._announced} bytes") from None
            raise
        self._size += len(chunk)
        if self._size > self._limit:
            raise BodyTooLarge(f"the body is over the limit of {self._limit} bytes")
        return chunk

    async def read_small(self) -> bytes | None:
        """All of it, or None when it is not small: then iterate."""
        if self._is_whole and (self._announced or 0) <= IN_MEMORY_BYTES:
            return await anext(self, b"")
        start = bytearray()
        async for chunk in self:
            start += chunk
            if len(start) > IN_MEMORY_BYTES:
                self._held = bytes(start)
                return None
        return bytes(start)

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self])


async def read_object(request: Request) -> dict[str, Any]:
    """A body that is a JSON object; none at all is an empty one.

    Raises:
        InvalidRequest: it is anything else.
        BodyTooLarge: it is longer than anybody needs.
    """
    body = await Incoming(request, LARGEST_JSON_BYTES).read()
    return parse_object(body) if body else {}


_decode: Final = json.JSONDecoder().decode


def _decode_oddly(text: bytes) -> Any:
    """JSON with a byte order mark, or with half characters."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("this is not JSON") from None


def parse_object(text: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InvalidRequest: it is anything else.
    """
    try:
        value = _decode(text.decode())
    except ValueError:
        value = _decode_oddly(text)
    except RecursionError:
        raise InvalidRequest("this is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequest('this is not a JSON object: write {"name": value}')
    return value
