"""Closing what nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mq.message import Message


async def close(messages: Sequence[Message]) -> None:
    """Close their bodies, whatever happens."""
    with trio.CancelScope(shield=True):
        for message in messages:
            await message.body.aclose()
