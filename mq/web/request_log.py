"""A line for each request, where that is wanted: never its query, its headers or its body, which may hold secrets."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Final

from mq.log_lines import REQUESTS, write
from mq.web.exchange import Handler, Reply, Request
from mq.web.http_connection import CONNECTION

LONGEST_PATH: Final = 300
"""Bytes of a path that are written down."""


class RequestLog:
    """Hands on every request, and writes down what became of it.

    Args:
        handler: answers.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`."""
        if not REQUESTS.isEnabledFor(logging.INFO):
            return await self._handler.handle(request)
        begun = perf_counter()
        reply = await self._handler.handle(request)
        connection = CONNECTION.get()
        write(
            REQUESTS,
            "request",
            method=request.method,
            path=request.path[:LONGEST_PATH].decode("latin-1"),
            status=reply.status,
            seconds=round(perf_counter() - begun, 6),
            address=request.address,
            user=None if connection is None else connection.user,
        )
        return reply
