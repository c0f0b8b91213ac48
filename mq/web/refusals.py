"""Refusals of an HTTP/1.1 request that no endpoint ever sees."""

from __future__ import annotations

import re
from typing import Final

import h11

from mq.web.exchange import Reply, problem

_AMBIGUOUS: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")

_DETAILS: Final = {
    400: "this is not a well-formed HTTP/1.1 request",
    408: "the request line and the headers did not arrive in time",
    431: "the request line and the headers are too long",
    501: "no transfer coding but chunked is known here",
}


def check_head(received: bytes) -> None:
    """Check what has come of a request's head, and maybe more. h11 takes a bare LF for the end of a line, and a line
    that begins with a space for more of the one before. A proxy that does not would see other requests than we do (RFC
    9112, sections 2.2 and 5.2).

    Raises:
        h11.RemoteProtocolError: a line of it ends in a bare LF, or begins with a space.
    """
    end = received.find(b"\r\n\r\n")
    if _AMBIGUOUS.search(received, 0, len(received) if end < 0 else end):
        raise h11.RemoteProtocolError("a line ends in a bare LF or begins with a space", error_status_hint=400)


def refusal(status: int) -> Reply:
    """The reply that ends the connection."""
    return problem(status, _DETAILS.get(status, "the request cannot be served"), ("connection", "close"))
