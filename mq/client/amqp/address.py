"""Where a server is: the URL of a connection, and TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class Address:
    """A server and a vhost of it.

    Attributes:
        host: name or address.
        port: as in the URL, else what is usual.
        vhost: ``/`` where the URL has no path.
        tls: whether TLS is spoken there.
    """

    host: str
    port: int
    vhost: str
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}"


def parse(url: str) -> Address:
    """The address that ``amqp://HOST:PORT/VHOST`` stands for, or ``amqps://`` for TLS.

    Raises:
        ValueError: it is none, or has a secret in it.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL is shown in logs and lists: give the credentials apart from it, as user=(NAME, SECRET)")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment or port == -1:
        raise ValueError(f"not a URL of AMQP: {url!a:.80}. Give amqp://HOST:PORT/VHOST or amqps://HOST:PORT/VHOST")
    vhost = unquote(parts.path.removeprefix("/")) or "/"
    return Address(parts.hostname, port or PORTS[parts.scheme], vhost, parts.scheme == "amqps")


def tls_context(ca: str | Path | None, certificate: str | Path | None) -> ssl.SSLContext:
    """What TLS is spoken with.

    Args:
        ca: a PEM file of the authorities to trust; None for the system's.
        certificate: a PEM file with the client's own certificate and its key, for a server that asks for one.

    Raises:
        ValueError: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
    except OSError as error:  # a file that is not there, or holds something else (ssl.SSLError)
        raise ValueError(f"cannot use {certificate or ca} for TLS: {error}") from error
    return context
