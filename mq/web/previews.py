"""Previews: the beginnings of messages, so that a page of large ones stays small."""

from __future__ import annotations

import base64
import codecs
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from mq.broker import Seen
from mq.broker.bodies import close
from mq.errors import CorruptMessage
from mq.message import Body, BytesBody
from mq.web.parameters import content_type_of, group_of, texts_of

PREVIEW_BYTES: Final = 200
"""Of a body that are shown."""
LONGEST_TEXT: Final = 1000
"""Characters of an attribute that are shown."""


async def previews_of(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """What is shown of messages. Their bodies are closed.

    Raises:
        StorageError: they cannot be read.
    """
    try:
        return [await _preview(each) for each in seen]
    finally:
        await close([each.message for each in seen])


async def _preview(seen: Seen) -> dict[str, Any]:
    message = seen.message
    shown: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "state": seen.state,
        "receives": message.receives,
        "published_ms": message.id.published_ns // 1_000_000,
        "size": message.body.size,
        "content_type": content_type_of(message),
        "attributes": {name: text[:LONGEST_TEXT] for name, text in texts_of(message).items()},
        "deaths": list(message.deaths),
    }
    if (group := group_of(message)) is not None:
        shown["group"] = group
    try:
        beginning = await _beginning(message.body)
    except CorruptMessage as error:
        return shown | {"damage": str(error)}
    return shown | _written(beginning, is_whole=len(beginning) == message.body.size)


async def _beginning(body: Body) -> bytes:
    if type(body) is BytesBody:
        return body.data[:PREVIEW_BYTES]
    found = b""
    chunks = aiter(body)
    try:
        async for chunk in chunks:
            found += chunk
            if len(found) >= PREVIEW_BYTES:
                break
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
    return found[:PREVIEW_BYTES]


def _written(beginning: bytes, *, is_whole: bool) -> dict[str, str]:
    try:
        return {"text": codecs.getincrementaldecoder("utf-8")().decode(beginning, is_whole)}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(beginning).decode()}
