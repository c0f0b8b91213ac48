"""The names of VSQS: a number, and an extension that says in which state the message is.

    1415776871123                  ready
    1415776871123.new              being published
    1415776871123.1415776879654    handed out until that millisecond

A number is a Unix time in milliseconds: decimal, without leading zeros, at most 15 digits. Any other name is foreign.
"""

from __future__ import annotations

import re
from typing import Final

from mq.errors import InvalidId

READY: Final = -1
NEW: Final = -2
"""States beside that of a message that is handed out, whose state is its expiry in milliseconds since 1970."""

HIGHEST: Final = 10**15 - 1
"""The highest number of a message."""

_NUMBER: Final = "(0|[1-9][0-9]{0,14})"
_NAME: Final = re.compile(rf"{_NUMBER}(?:\.(?:(new)|{_NUMBER}))?")


def parse(name: str) -> tuple[int, int] | None:
    """(number, state) of a file's name; None of one that is foreign."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        return None
    number, new, expiry = matched.groups()
    return int(number), READY if name == number else NEW if new else int(expiry)


def name_of(number: int, state: int) -> str:
    """The file's name; :func:`parse` undoes it."""
    return str(number) if state == READY else f"{number}.new" if state == NEW else f"{number}.{state}"


def parse_id(id: str) -> int:
    """The number of a message's id.

    Raises:
        InvalidId: it is none; nothing but digits names a message.
    """
    parsed = parse(id) if isinstance(id, str) else None
    if parsed is None or parsed[1] != READY:
        raise InvalidId(f"{id!a:.60} is no message id: give the digits that publish or receive returned")
    return parsed[0]
