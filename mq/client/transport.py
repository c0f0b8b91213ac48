"""What the two clients tell httpx, and what its errors mean."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from mq.client.calls import Answer, Call
from mq.client.errors import ClientError, Interrupted, Unreachable, connection_reason
from mq.client.values import Duration, duration

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The address of a daemon, and the user.

    Attributes:
        url: its address, with a path where a proxy puts it under one.
        token: for ``Authorization: Bearer``; "" for none.
        user: name and password for ``Authorization: Basic``; None for none.
        ca: a PEM file of the authorities to trust; None for the system's.
        certificate: a PEM file with the client's own certificate and its key, for a daemon that asks for one.
        timeout: how long to wait for a connection, for room to send, and, beyond what was asked for, for an answer.

    Raises:
        TypeError: the timeout is neither a number nor text.
        ValueError: the URL or the timeout is not valid, or there are two kinds of credentials; in :meth:`options`, a
            PEM file cannot be used.
    """

    url: str = DEFAULT_URL
    token: str = field(default="", repr=False)
    user: tuple[str, str] | None = field(default=None, repr=False)
    ca: str | Path | None = None
    certificate: str | Path | None = None
    timeout: Duration = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme in ("amqp", "amqps"):
            raise ValueError(f"{self.url!a:.80} is an AMQP URL: use the HTTP URL, such as {DEFAULT_URL}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{self.url!a:.80} is not a valid daemon URL. Use http://HOST:PORT or https://HOST:PORT")
        if parts.username is not None:
            raise ValueError(
                "URLs appear in logs, so they must not contain credentials. Pass the credentials separately"
            )
        if self.token and self.user:
            raise ValueError("use either a token or a user name and password")
        object.__setattr__(self, "timeout", duration("timeout", self.timeout))

    def options(self) -> dict[str, Any]:
        """Arguments of an httpx client. Proxies and passwords from the environment are left alone.

        Raises:
            ValueError: a PEM file cannot be used.
        """
        headers = {"user-agent": "mq-client", "accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        return {
            "base_url": self.url,
            "headers": headers,
            "auth": None if self.user is None else httpx.BasicAuth(*self.user),
            "verify": self._tls() if self.url.startswith("https:") else False,
            "trust_env": False,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        }

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate)
        except OSError as error:  # a file that is not there, or holds something else (ssl.SSLError)
            raise ValueError(f"cannot use the file {self.certificate or self.ca} for TLS: {error}") from error
        return context

    def request(self, call: Call[Any], content: Any) -> dict[str, Any]:
        """Arguments of httpx's ``build_request``."""
        seconds = float(self.timeout) if call.timeout is None else call.timeout
        return {
            "method": call.method,
            "url": call.target,
            "headers": [(name.encode(), value.encode()) for name, value in call.headers],
            "content": content,
            "timeout": httpx.Timeout(seconds, read=seconds + call.wait),
        }


def answer_of(response: httpx.Response, body: bytes, time: float) -> Answer:
    """A response that came at a `time` of the client's clock, as an answer; without a body that is still to be read."""
    return Answer(response.status_code, _text_headers(response), body, time)


def is_sent(error: httpx.RequestError) -> bool:
    """Whether a part of the request may have reached the daemon."""
    return not isinstance(error, _NOT_SENT)


def translated(error: httpx.RequestError, url: str, *, perhaps_served: bool = False) -> ClientError:
    """An error of httpx as one of ours.

    Args:
        error: of the last try.
        perhaps_served: whether a try before may have been served.
    """
    reason = connection_reason(error)
    if isinstance(error, _NOT_SENT) and perhaps_served:
        return Interrupted(
            f"cannot connect to {url}: {reason}. An earlier attempt to send the request may have succeeded"
        )
    if isinstance(error, _NOT_SENT):
        return Unreachable(f"cannot connect to {url}: {reason}")
    return Interrupted(f"the connection to {url} was lost: {reason}. The request may have been executed")


def _text_headers(response: httpx.Response) -> Mapping[str, str]:
    """Headers by name in small letters, as UTF-8 where they are that."""
    found = {}
    for name, value in response.headers.raw:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        found[name.decode("latin-1").lower()] = text
    return found
