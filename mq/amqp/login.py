"""Who is it? The two ways in which clients say so (RFC 4616, and RabbitMQ's AMQPLAIN)."""

from __future__ import annotations

from typing import Final

from mq.amqp import tables
from mq.amqp.commands import Authenticate
from mq.amqp.errors import Code, Refused

MECHANISMS: Final = "PLAIN AMQPLAIN"
"""What a client may choose from, with spaces between."""


def read_response(mechanism: str, response: str | bytes) -> Authenticate:
    """The name and the secret.

    Args:
        mechanism: what the client chose.
        response: what it sent, which pamqp takes for a text where it can.

    Raises:
        Refused: 503, there is no such mechanism; 502, the response is malformed. No text tells the secret.
    """
    data = response.encode() if isinstance(response, str) else response
    if mechanism == "PLAIN":
        name, secret = _plain(data)
    elif mechanism == "AMQPLAIN":
        name, secret = _amqplain(data)
    else:
        raise Refused(Code.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'")
    return Authenticate(name, secret)


def _plain(data: bytes) -> tuple[str, str]:
    parts = data.split(b"\0")
    if len(parts) != 3:
        raise _malformed()
    return _text(parts[1]), _text(parts[2])


def _amqplain(data: bytes) -> tuple[str, str]:
    values = tables.decoded(len(data).to_bytes(4) + data)
    name, secret = values.get("LOGIN"), values.get("PASSWORD")
    if not isinstance(name, str | bytes) or not isinstance(secret, str | bytes):
        raise _malformed()
    return _text(name), _text(secret)


def _text(data: str | bytes) -> str:
    """Bytes that are no UTF-8 are those of no name and of no secret; they may not look like those of one."""
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def _malformed() -> Refused:
    return Refused(Code.SYNTAX_ERROR, "malformed response of the authentication mechanism")
