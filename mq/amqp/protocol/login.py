"""The login of a client, and the limits that it negotiates before it opens the connection."""

from __future__ import annotations

from typing import Final, NamedTuple

from pamqp import commands as methods

from mq.amqp.protocol.commands import Authenticate
from mq.amqp.protocol.session import ConnectionLimits
from mq.amqp.wire import tables
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.frames import SMALLEST_FRAME_MAX

MECHANISMS: Final = "PLAIN AMQPLAIN"
"""The mechanisms that every client may choose, with spaces between."""
EXTERNAL: Final = "EXTERNAL"
"""The mechanism by which the certificate of TLS gives the name."""


def mechanisms(certificate: str | None) -> str:
    """The mechanisms that a client may choose.

    Args:
        certificate: the common name of the client's; None where it gave none.
    """
    return MECHANISMS if certificate is None else f"{MECHANISMS} {EXTERNAL}"


def read_response(mechanism: str, response: str | bytes, certificate: str | None = None) -> Authenticate:
    """Read the name and the secret from a client's response.

    Args:
        response: what it sent; pamqp takes it for a text where it can. EXTERNAL ignores the name in it.
        certificate: the common name of the client's; None where it gave none.

    Raises:
        Refusal: 503, there is no such mechanism; 502, the response is malformed. No text tells the secret.
    """
    data = response.encode() if isinstance(response, str) else response
    if mechanism == EXTERNAL and certificate is not None:
        return Authenticate(certificate, "", by_certificate=True)
    if mechanism == "PLAIN":
        name, secret = _plain(data)
    elif mechanism == "AMQPLAIN":
        name, secret = _amqplain(data)
    else:
        raise Refusal(Code.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'")
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
    # surrogateescape: bytes that are no UTF-8 must not turn into those of a valid name or secret
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def _malformed() -> Refusal:
    return Refusal(Code.SYNTAX_ERROR, "the authentication response is malformed")


class Tuned(NamedTuple):
    """The numbers that were agreed on, as in :class:`~mq.amqp.protocol.session.ConnectionLimits`."""

    channel_max: int
    frame_max: int
    heartbeat_seconds: int


def negotiate(method: methods.Connection.TuneOk, limits: ConnectionLimits) -> Tuned:
    """The client's numbers, if they are within those offered. 0 is no limit, and no heartbeat.

    Raises:
        Refusal: 530.
    """
    if 0 < method.frame_max < SMALLEST_FRAME_MAX:
        text = f"the negotiated frame_max of {method.frame_max} is lower than the minimum allowed value"
        raise Refusal(Code.NOT_ALLOWED, f"{text} ({SMALLEST_FRAME_MAX})")
    for name, wanted, most in (
        ("channel_max", method.channel_max, limits.channel_max),
        ("frame_max", method.frame_max, limits.frame_max),
    ):
        if not 0 < wanted <= most:
            shown = f"{wanted}{'' if wanted else ' (no limit)'}"
            text = f"the negotiated {name} of {shown} is higher than the maximum allowed value ({most})"
            raise Refusal(Code.NOT_ALLOWED, text)
    return Tuned(method.channel_max, method.frame_max, method.heartbeat)
