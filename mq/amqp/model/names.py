"""Names of AMQP, any text of at most 255 bytes in any vhost, as names of mq's grammar, and back.

A plain name of the vhost ``/`` stays as it is, so HTTP and AMQP mean the same queue by it. Anything else begins with
``_@``, which no plain name may:

* ``_@VHOST@@NAME``, where each byte that is not a letter, a digit or one of ``. _ -`` is ``@`` and two hexadecimal
  digits, and the vhost ``/`` is left out;
* ``_@@.DIGEST`` where that is over 100 bytes: a SHA-256, which leads nowhere. The record of such a queue has its name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from mq.message import QUEUE_NAME_BYTES, QUEUE_NAME_PATTERN, QueueName

DEFAULT_VHOST: Final = "/"
SERVER_NAMED: Final = "amq.gen-"
"""The prefix of names that the server gives to queues declared without one. Clients may not choose such a name."""

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""A client consumes from this name, and gives it as ``reply-to``, to get replies without a queue of its own. Each
channel that does so gets a queue with a name from the server."""

_RESERVED: Final = "_@"
_SEPARATOR: Final = "@@"
_DIGEST: Final = "_@@."
_PLAIN: Final = re.compile(QUEUE_NAME_PATTERN)
_PLAIN_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_ESCAPED: Final = re.compile(rb"@([0-9a-f]{2})")


def encode(vhost: str, name: str) -> QueueName:
    """The name in mq of the queue or exchange `name` in `vhost`. No two pairs share one, as long as no vhost has an
    empty name."""
    if vhost == DEFAULT_VHOST and _PLAIN.fullmatch(name) and not name.startswith(_RESERVED):
        return QueueName(name)
    written = f"{_RESERVED}{'' if vhost == DEFAULT_VHOST else _escape(vhost)}{_SEPARATOR}{_escape(name)}"
    if len(written) > QUEUE_NAME_BYTES:
        whole = vhost.encode() + b"\0" + len(name.encode()).to_bytes(2) + name.encode()
        written = _DIGEST + hashlib.sha256(whole).hexdigest()
    return QueueName(written)


def decode(name: str) -> tuple[str, str] | None:
    """The (vhost, name) that :func:`encode` turned into `name`; None for a digest, or a name it never returns."""
    if not name.startswith(_RESERVED):
        return DEFAULT_VHOST, name
    vhost, separator, rest = name[len(_RESERVED) :].partition(_SEPARATOR)
    if not separator:
        return None
    try:
        found = (_unescape(vhost) or DEFAULT_VHOST, _unescape(rest))
    except UnicodeDecodeError:
        return None
    return found if encode(*found) == name else None


def is_server_named(name: str) -> bool:
    """Whether a queue in mq has a name that the server chose."""
    found = decode(name)
    return found is not None and found[1].startswith(SERVER_NAMED)


def _escape(text: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN_BYTES else f"@{byte:02x}" for byte in text.encode())


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text.encode()).decode()
