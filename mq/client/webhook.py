"""A webhook: the server to which ``mq receive --to`` posts messages."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import httpx

from mq.client.codec import ATTRIBUTE, TRACE_NAMES
from mq.client.errors import Requeue
from mq.client.sync_client import Client, Stream

_NAMES: Final = {"user-agent": "mq", "accept-encoding": "identity"}
_LARGEST_ANSWER: Final = 64 * 1024
"""Bytes of an answer's body that are read and dropped: then its connection can be used again."""


class Webhook:
    """Posts bodies, and removes what was answered with 2xx. Close it, or use it as a context manager.

    Args:
        url: where to.
        timeout: seconds that connecting, sending and the answer may take each, none longer than `max_handling`.
        max_handling: seconds after which the lease is renewed no more.
        retry_delay: seconds until a message whose work failed comes back; None for as long as its queue says.
        transport: another way to connect (tests).

    Raises:
        ValueError: no URL that can be posted to.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        max_handling: float,
        retry_delay: float | None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!a:.80} is not a valid webhook URL. Use http://HOST:PORT/PATH or https://HOST/PATH")
        if parts.username is not None:
            raise ValueError("URLs are visible to other users in process lists, so they must not contain a password")
        self._url = url
        self._max_handling = max_handling
        self._retry_delay = retry_delay
        self._timeout = min(timeout, max_handling)
        self._http = httpx.Client(timeout=self._timeout, headers=_NAMES, trust_env=False, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def post(self, client: Client, stream: Stream) -> str:
        """Post a message; remove it when the answer is 2xx, else give it back.

        Returns:
            Why it was given back; empty when it was not.

        Raises:
            LeaseLost, NotFound: it was posted, and another consumer may have it, too.
        """
        why = ""
        with client.handling(stream.message, max_handling=self._max_handling):
            why = self._sent(stream)
            if why:
                raise Requeue(self._retry_delay, why)
        return why

    def _sent(self, stream: Stream) -> str:
        """Why the webhook did not take the message; empty when it did. A redirection (3xx) is a refusal."""
        message = stream.message
        said = [
            ("content-type", message.content_type),
            *([("content-encoding", message.content_encoding)] if message.content_encoding else []),
            ("x-message-queue", message.queue),
            ("x-message-id", message.id),
            ("x-message-receives", str(message.receives)),
            *((ATTRIBUTE + name, value) for name, value in message.attributes.items()),
            *((name, message.attributes[name]) for name in TRACE_NAMES if name in message.attributes),
        ]
        headers = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in said]
        body = b"".join(stream)
        try:
            with self._http.stream("POST", self._url, content=body, headers=headers) as answer:
                self._drop_body(answer)
                status = answer.status_code
        except httpx.HTTPError as error:
            return f"no response: {' '.join(str(error).split()) or type(error).__name__}"
        return "" if 200 <= status < 300 else f"the webhook returned status {status}"

    def _drop_body(self, answer: httpx.Response) -> None:
        """Read the body of an answer, if it is short and comes soon. Its status has said all there is to say."""
        size, until = 0, time.monotonic() + self._timeout
        with contextlib.suppress(httpx.HTTPError):
            for piece in answer.iter_raw():
                size += len(piece)
                if size > _LARGEST_ANSWER or time.monotonic() > until:
                    break  # the connection is closed, and not used again
