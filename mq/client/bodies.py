"""What a caller may give as a body, as what a request holds: bytes, or a source of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Final, NamedTuple

from mq.client.calls import Source

SyncBody = bytes | str | Iterable[bytes] | Callable[[], Iterable[bytes]]
"""Bytes, text, chunks (sent once), or a function that begins the chunks anew for every try."""
AsyncBody = SyncBody | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]]
"""The same for the Trio client, whose chunks may be asynchronous. Plain ones are taken in the event loop: they should
not block."""

_TEXT: Final = "text/plain; charset=utf-8"


class Given(NamedTuple):
    """A body as it is published.

    Attributes:
        data: all of it, or b"" where there is a source.
        source: where a long one comes from.
        content_type: what it is when the caller says nothing.
    """

    data: bytes
    source: Source | None = None
    content_type: str | None = None


def given(body: AsyncBody) -> Given:
    """The body that a caller gave."""
    if isinstance(body, str):
        return Given(body.encode(), None, _TEXT)
    if isinstance(body, bytes | bytearray | memoryview):
        return Given(bytes(body))
    if callable(body):
        return Given(b"", Source(body, is_repeatable=True))
    return Given(b"", Source(lambda: body, is_repeatable=False))


async def asynchronous(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Plain chunks as the Trio client sends them."""
    for chunk in chunks:
        yield chunk
