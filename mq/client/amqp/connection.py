"""Connecting: an address, TLS, a login, and the client for the length of a block."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from mq.client.amqp.client import AmqpClient
from mq.client.amqp.link import Link
from mq.client.amqp.protocol import Login, Protocol
from mq.client.amqp.values import Role
from mq.client.errors import Unreachable, connection_reason
from mq.client.values import Duration, duration

PORTS: Final = {"amqp": 5672, "amqps": 5671}
LARGEST_BODY: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Address:
    """A server and a vhost of it.

    Attributes:
        vhost: ``/`` where the URL has no path.
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
    if parts.scheme in ("http", "https"):
        raise ValueError(f"{url!a:.80} is an HTTP URL: use an AMQP URL, such as amqp://127.0.0.1:{PORTS['amqp']}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("URLs appear in logs, so they must not contain credentials. Use user=(NAME, SECRET) instead")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment or port == -1:
        raise ValueError(f"{url!a:.80} is not a valid AMQP URL. Use amqp://HOST:PORT/VHOST or amqps://HOST:PORT/VHOST")
    vhost = unquote(parts.path.removeprefix("/")) or "/"
    return Address(parts.hostname, port or PORTS[parts.scheme], vhost, parts.scheme == "amqps")


def tls_context(ca: str | Path | None, certificate: str | Path | None) -> ssl.SSLContext:
    """The context of TLS connections.

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
        raise ValueError(f"cannot use the file {certificate or ca} for TLS: {error}") from error
    return context


@asynccontextmanager
async def connect(
    url: str,
    *,
    role: Role | str = Role.BOTH,
    user: tuple[str, str] = ("guest", "guest"),
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    timeout: Duration = 30.0,  # noqa: ASYNC109 - of the opening alone
    heartbeat: Duration = 60,
) -> AsyncIterator[AmqpClient]:
    """A connection to a server, for the length of the block. At its end the server requeues what it holds.

    Args:
        url: ``amqp://HOST:PORT/VHOST``, or ``amqps://`` for TLS; without a path the vhost is ``/``.
        role: what the connection is for. A producer cannot consume, nor a consumer publish.
        ca: a PEM file of the authorities to trust; None for the system's.
        certificate: a PEM file with the client's own certificate and its key, for a server that asks for one.
        timeout: how long the connection, TLS and the login may take together.
        heartbeat: interval of heartbeats, both ways, in whole seconds; the server may ask for a shorter one, and 0
            disables them. A server that is silent for two intervals counts as dead.

    Raises:
        Unreachable: no server answers in time.
        NotAllowed: the server refuses this user, or this user in this vhost.
        UnexpectedResponse: the peer does not speak AMQP 0-9-1.
        TypeError: a duration is neither a number nor text.
        ValueError: the URL, the role, a duration or a PEM file is not valid.
    """
    role = Role(role)
    async with connect_link(
        url,
        role=role.value,
        user=user,
        ca=ca,
        certificate=certificate,
        timeout=duration("timeout", timeout),
        heartbeat=round(duration("heartbeat", heartbeat)),
    ) as link:
        yield AmqpClient(link, role, str(parse(url)))


@asynccontextmanager
async def connect_link(
    url: str,
    *,
    role: str,
    user: tuple[str, str],
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109 - of the opening alone
    heartbeat: int = 60,
) -> AsyncIterator[Link]:
    """As :func:`connect`, for programs that use channels as they are; its `role` is what the server is told."""
    where = parse(url)
    tls = tls_context(ca, certificate) if where.tls else None
    login = Login(
        user=user[0],
        secret=user[1],
        vhost=where.vhost,
        role=role,
        heartbeat_seconds=heartbeat,
        max_body=LARGEST_BODY,
    )
    with anyio.move_on_after(timeout) as patience:
        stream = await _open(where, tls)
    if patience.cancelled_caught:
        raise Unreachable(f"{where} did not respond within {timeout:g} seconds")
    async with _linked(stream, login, patience.deadline) as link:
        yield link


@asynccontextmanager
async def connected(stream: ByteStream, login: Login, role: Role, deadline: float) -> AsyncIterator[AmqpClient]:
    """A connection over a stream, which is closed at the end of the block.

    Args:
        stream: bytes both ways.
        deadline: when the login has to be done, by the event loop's clock.

    Raises:
        Unreachable, NotAllowed, UnexpectedResponse: as :func:`connect`.
    """
    async with _linked(stream, login, deadline) as link:
        yield AmqpClient(link, role)


@asynccontextmanager
async def _linked(stream: ByteStream, login: Login, deadline: float) -> AsyncIterator[Link]:
    link = Link(stream, Protocol(login, anyio.current_time))
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        try:
            with anyio.CancelScope(deadline=deadline) as waiting:
                await link.opened()
            if waiting.cancelled_caught:
                link.end("the server did not respond in time")
                raise Unreachable("the server did not complete the AMQP handshake in time")
            yield link
        except Exception as error:  # noqa: BLE001 - the caller's own: it leaves as it came, not wrapped in a group
            failure = error
        await link.aclose()
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _open(where: Address, tls: ssl.SSLContext | None) -> ByteStream:
    """A stream to the server, over TLS where that is wanted.

    Raises:
        Unreachable: the server does not answer, or not with TLS.
    """
    try:
        stream: ByteStream = await anyio.connect_tcp(where.host, where.port)
    except OSError as error:
        raise Unreachable(f"cannot connect to {where}: {connection_reason(_cause(error))}") from error
    if tls is None:
        return stream
    try:
        # AMQP says goodbye by itself: TLS's own goodbye would be one more wait for the server.
        return await TLSStream.wrap(stream, hostname=where.host, ssl_context=tls, standard_compatible=False)
    except BaseException as error:
        await anyio.aclose_forcefully(stream)
        if isinstance(error, anyio.BrokenResourceError | anyio.EndOfStream | ssl.SSLError):
            cause = _cause(error)
            reason = connection_reason(cause) if str(cause) else "the server closed the connection"
            raise Unreachable(f"TLS handshake with {where} failed: {reason}") from error
        raise


def _cause(error: BaseException) -> BaseException:
    """The root of an error; of several, that at the first of a host's addresses."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause or error
