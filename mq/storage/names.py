"""How an entry is written as a file name, and read back: one grammar, one codec.

    new/, delay/, remove/       queue ":" leaf
    queues/<queue>/             leaf

    leaf    = id [ "," "d" deadline ] [ "," "r" receives ] [ "," "c" claim ] [ "," "o" order ] [ "," "e" expiry ]

A message that was never leased, and has neither a delay nor a time to live, is just its id. Numbers are decimal
without leading zeros, the claim is 16 hexadecimal digits; each field stands at most once and in this order, so that an
entry has exactly one name. Whatever does not fit the grammar is not mq's.

The longest name: 100 (queue) + 1 + 36 (id) + 17 + 11 + 18 + 21 + 17 = 221 of the 255 bytes that a name may have.
"""

from __future__ import annotations

import re
from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import FRESH, Entry, Meta

_QUEUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}")
_NUMBER = r"(0|[1-9][0-9]{0,%d})"
_LEAF: Final = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    rf"(?:,d{_NUMBER % 14})?(?:,r([1-9][0-9]{{0,8}}))?(?:,c([0-9a-f]{{16}}))?(?:,o{_NUMBER % 18})?(?:,e{_NUMBER % 14})?"
)
_BARE_ID_LENGTH: Final = 36


def leaf(id: MessageId, meta: Meta = FRESH) -> str:
    """The name inside a queue's folder, and what follows the colon everywhere else."""
    if meta is FRESH:
        return id
    deadline_ms, receives, claim, order, expires_ms = meta
    name: str = id
    if deadline_ms is not None:
        name += f",d{deadline_ms}"
    if receives:
        name += f",r{receives}"
    if claim is not None:
        name += f",c{claim}"
    if order is not None:
        name += f",o{order}"
    if expires_ms is not None:
        name += f",e{expires_ms}"
    return name


def flat(queue: str, id: MessageId, meta: Meta = FRESH) -> str:
    """The name in new/, delay/ and remove/."""
    return f"{queue}:{leaf(id, meta)}"


def parse_leaf(name: str, queue: str, state: State) -> Entry | None:
    """The entry whose leaf is `name`; None when it is not one of mq's names."""
    match = _LEAF.fullmatch(name)
    if match is None:
        return None
    if len(name) == _BARE_ID_LENGTH:
        return Entry(queue, str.__new__(MessageId, name), state)
    id, deadline, receives, claim, order, expiry = match.groups()
    meta = Meta(
        int(deadline) if deadline is not None else None,
        int(receives) if receives is not None else 0,
        claim,
        int(order) if order is not None else None,
        int(expiry) if expiry is not None else None,
    )
    return Entry(queue, str.__new__(MessageId, id), state, meta)


def parse_flat(name: str, state: State) -> Entry | None:
    """The entry whose flat name is `name`; None when it is not one of mq's names."""
    queue, colon, rest = name.partition(":")
    if not colon or not is_queue(queue):
        return None
    return parse_leaf(rest, queue, state)


def is_queue(name: str) -> bool:
    """Whether a folder of that name in queues/ is a queue."""
    return _QUEUE.fullmatch(name) is not None
