"""Floods: the cheapest bytes that make a server work, by protocol. :mod:`tests.hostile.cheap_frames` sends them."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from pamqp import base, commands

from tests.access.files import OTHER_TOKEN
from tests.amqp.talking import content, words

QUEUE: Final = "flooded"
"""The queue that floods name. It exists, and is empty."""
MANY_QUEUES: Final = 10_000
"""Queues of the daemon whose listings are asked for."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_AMQP: Final = b"AMQP\x00\x00\x09\x01"
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_UNIT_BYTES: Final = 64 * 1024


class Flood(NamedTuple):
    """What one connection of a flood sends.

    Attributes:
        hello: once, at its beginning.
        unit: again and again; empty for a connection that only listens.
        listener: "amqp", "http" or "tls", which is HTTP under TLS.
        needs: the daemon that it is for: "plain", "guarded" (with a users file, and the flood has no login) or
            "many" (:data:`MANY_QUEUES`, and the flood is of a user without rights).
        is_short: the connection ends with the first answer, and the next one begins.
        connections: how many, where it is not the usual number.
    """

    hello: bytes
    unit: bytes
    listener: str = "http"
    needs: str = "plain"
    is_short: bool = False
    connections: int | None = None


def _unit(*pieces: bytes) -> bytes:
    """The pieces, again and again, up to what one read takes."""
    piece = b"".join(pieces)
    return piece * max(1, _UNIT_BYTES // len(piece))


# AMQP


def amqp_session(user: str = "guest", secret: str = "guest") -> bytes:
    """The client's part of a login, all of it at once, and a channel."""
    start = commands.Connection.StartOk({"capabilities": {}}, "PLAIN", f"\0{user}\0{secret}")
    tune = commands.Connection.TuneOk(2047, 131072, 0)
    opening = (words(start, 0), words(tune, 0), words(commands.Connection.Open("/"), 0), words(commands.Channel.Open()))
    return _AMQP + b"".join(opening)


def _amqp(*methods: base.Frame | bytes, hello: bytes = b"") -> Flood:
    """Frames of a client that has logged in."""
    pieces = [each if isinstance(each, bytes) else words(each) for each in methods]
    return Flood(amqp_session() + hello, _unit(*pieces), "amqp")


def _wrong_login() -> bytes:
    start = commands.Connection.StartOk({"capabilities": {}}, "PLAIN", "\0admin\0wrong")
    return _AMQP + words(start, 0)


_BASIC: Final = commands.Basic

AMQP: Final[dict[str, Flood]] = {
    "heartbeats before login": Flood(_AMQP, _unit(_HEARTBEAT), "amqp", "guarded"),
    "connections": Flood(_AMQP, b"", "amqp", "guarded", is_short=True),
    "logins": Flood(_wrong_login(), b"", "amqp", "guarded", is_short=True),
    "heartbeats": _amqp(_HEARTBEAT),
    "basic.get of an empty queue": _amqp(_BASIC.Get(queue=QUEUE)),
    "basic.qos": _amqp(_BASIC.Qos(0, 10, False)),
    "channel.flow": _amqp(commands.Channel.Flow(True)),
    "channels opened and closed": _amqp(
        words(commands.Channel.Open(), 2), words(commands.Channel.Close(200, "", 0, 0), 2)
    ),
    "queue.declare passive": _amqp(commands.Queue.Declare(queue=QUEUE, passive=True)),
    "queue.declare": _amqp(commands.Queue.Declare(queue=QUEUE)),
    "queue.bind": _amqp(commands.Queue.Bind(queue=QUEUE, exchange="amq.direct", routing_key="k")),
    "exchange.declare": _amqp(commands.Exchange.Declare(exchange="amq.direct", passive=True)),
    "consumers": _amqp(_BASIC.Consume(queue=QUEUE, consumer_tag="c"), _BASIC.Cancel(consumer_tag="c")),
    "basic.recover": _amqp(_BASIC.Recover(True)),
    "transactions": _amqp(commands.Tx.Commit(), hello=words(commands.Tx.Select())),
    "confirm.select": _amqp(commands.Confirm.Select()),
    "unroutable messages": _amqp(words(_BASIC.Publish(routing_key="nowhere")) + content(1, b"")),
    "unroutable messages, returned": _amqp(
        words(_BASIC.Publish(routing_key="nowhere", mandatory=True)) + content(1, b"")
    ),
    "bodies in frames of 1 byte": _amqp(
        words(_BASIC.Publish(routing_key=QUEUE)) + content(1, b"x" * 4000, most=1),
    ),
}  # fmt: skip


# HTTP/1.1


def http1(line: str, *headers: str, body: bytes = b"") -> bytes:
    head = "".join(f"{each}\r\n" for each in (f"{line} HTTP/1.1", "Host: localhost", *headers))
    return head.encode() + b"\r\n" + body


def _http1(line: str, *headers: str, body: bytes = b"", needs: str = "plain") -> Flood:
    """Pipelined requests."""
    return Flood(b"", _unit(http1(line, *headers, body=body)), needs=needs)


def _sqs(action: str, body: dict[str, object]) -> Flood:
    data = json.dumps(body).encode()
    types = ("Content-Type: application/x-amz-json-1.0", f"X-Amz-Target: AmazonSQS.{action}")
    return _http1("POST /", *types, f"Content-Length: {len(data)}", body=data)


_SLOW_PATH: Final = "TE: trailers"
_CHUNKED: Final = http1(f"POST /{QUEUE}/messages", "Transfer-Encoding: chunked")
_PARTS: Final = b"--b\r\nX-Message-TTL: -\r\n\r\n\r\n" * 1000 + b"--b--\r\n"
_LINES: Final = b"{}\n" * 1000

HTTP1: Final[dict[str, Flood]] = {
    "live": _http1("GET /-/live"),
    "live, full path": _http1("GET /-/live", _SLOW_PATH),
    "not found": _http1("GET /-/nothing"),
    "not allowed": _http1("OPTIONS /"),
    "no such queue": _http1("GET /nowhere"),
    "unauthorized": _http1(f"GET /{QUEUE}", needs="guarded"),
    "logins": _http1(f"GET /{QUEUE}", "Authorization: Basic YWRtaW46d3Jvbmc=", needs="guarded"),
    "tokens": _http1(f"GET /{QUEUE}", "Authorization: Bearer wrong", needs="guarded"),
    "long heads": _http1("GET /-/live", *(f"X-{n}: {'y' * 1000}" for n in range(28))),
    "many headers": _http1("GET /-/live", *(f"X{n}:" for n in range(4000))),
    "many headers, full path": _http1("GET /-/live", _SLOW_PATH, *(f"X{n}:" for n in range(4000))),
    "empty fetches": _http1(f"GET /{QUEUE}/messages"),
    "chunks of 1 byte": Flood(_CHUNKED, _unit(b"1\r\nx\r\n")),
    "malformed parts of a batch": _http1(
        f"POST /{QUEUE}/messages/batch",
        'Content-Type: multipart/mixed; boundary="b"',
        f"Content-Length: {len(_PARTS)}",
        body=_PARTS,
    ),
    "malformed lines of a batch": _http1(
        f"POST /{QUEUE}/messages/batch",
        "Content-Type: application/jsonl",
        f"Content-Length: {len(_LINES)}",
        body=_LINES,
    ),
    "connections": Flood(http1("GET /-/live"), b"", is_short=True),
    "metrics": _http1("GET /-/metrics", needs="many"),
    "openapi.json": _http1("GET /-/openapi.json"),
    "queues": _http1("GET /-/queues", needs="many"),
    "stats": _http1("GET /-/stats", needs="many"),
    "rates": _http1("GET /-/rates?sort=published&max=1000", needs="many"),
    "SQS ListQueues": _sqs("ListQueues", {}),
    "SQS ReceiveMessage": _sqs("ReceiveMessage", {"QueueUrl": f"http://localhost/{QUEUE}"}),
    "SQS unknown action": _sqs("Nothing", {}),
    "event streams": Flood(
        http1("GET /-/events?seconds=60", f"Authorization: Bearer {OTHER_TOKEN}"),
        b"",
        needs="many-guarded",
        connections=100,
    ),
}


# HTTP/2


def frames(*given: Frame) -> bytes:
    return b"".join(each.serialize() for each in given)


def _block(path: str = "/-/live", method: str = "GET") -> bytes:
    """A header block that needs no table, so that it can be repeated."""
    headers = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    return Encoder().encode([(*each, True) for each in headers], huffman=False)  # type: ignore[misc]


def _requests(count: int, block: bytes, *flags: str, behind: Iterable[type[Frame]] = ()) -> bytes:
    """Requests on streams of their own. A connection has only so many, so it is opened anew behind them."""
    request = [HeadersFrame(1, block, flags=["END_HEADERS", *flags]), *(kind(1) for kind in behind)]
    pieces = [frame.serialize() for frame in request]
    # Requests differ in the number of their stream alone: the last four bytes of a frame's header of nine.
    return b"".join(piece[:5] + stream.to_bytes(4) + piece[9:] for stream in range(1, 2 * count, 2) for piece in pieces)


def _blocks(block: bytes) -> bytes:
    """Requests with that header block."""
    flags = ["END_HEADERS", "END_STREAM"]
    return b"".join(HeadersFrame(stream, block, flags=flags).serialize() for stream in range(1, 99, 2))


_OPENING: Final = PREFACE + frames(SettingsFrame(0))
_POST: Final = _block(f"/{QUEUE}/messages", "POST")
_OPEN: Final = HeadersFrame(1, _POST, flags=["END_HEADERS"]).serialize()
_GET_ALL: Final = _requests(100, _block("/-/openapi.json"), "END_STREAM")


def _http2(*unit: Frame | bytes, hello: bytes = b"", needs: str = "guarded") -> Flood:
    pieces = [each if isinstance(each, bytes) else each.serialize() for each in unit]
    return Flood(_OPENING + hello, _unit(*pieces), needs=needs)


_NO_WINDOW: Final = PREFACE + frames(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))

HTTP2: Final[dict[str, Flood]] = {
    "WINDOW_UPDATE": _http2(WindowUpdateFrame(0, window_increment=1)),
    "WINDOW_UPDATE with 100 answers": Flood(
        _NO_WINDOW + _GET_ALL, _unit(frames(WindowUpdateFrame(0, window_increment=1)))
    ),
    "WINDOW_UPDATE of a stream, 1 byte each": Flood(
        _NO_WINDOW + _GET_ALL, _unit(frames(WindowUpdateFrame(1, window_increment=1)))
    ),
    "empty DATA": _http2(DataFrame(1), hello=_OPEN, needs="plain"),
    "DATA of 1 byte": _http2(DataFrame(1, b"x"), hello=_OPEN, needs="plain"),
    "PING": _http2(PingFrame(0)),
    "SETTINGS": _http2(SettingsFrame(0)),
    "SETTINGS of windows": _http2(
        SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1}),
        SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 2}),
    ),
    "PRIORITY": _http2(PriorityFrame(1, depends_on=3)),
    "PRIORITY of many streams": _http2(frames(*(PriorityFrame(n, depends_on=n - 2) for n in range(3, 1999, 2)))),
    "RST_STREAM": _http2(RstStreamFrame(1), hello=_OPEN),
    "CONTINUATION": _http2(ContinuationFrame(1, b""), hello=HeadersFrame(1, b"").serialize()),
    "empty HEADERS": Flood(_OPENING, _requests(2000, b"")),
    "rapid resets": Flood(_OPENING, _requests(2000, _block(), "END_STREAM", behind=[RstStreamFrame])),
    "requests": Flood(_OPENING, _requests(20_000, _block(), "END_STREAM")),
    "requests, no login": Flood(_OPENING, _requests(20_000, _block(f"/{QUEUE}"), "END_STREAM"), needs="guarded"),
    "HPACK table sizes": Flood(_OPENING, _blocks(b"\x20" * 16_000)),
    "HPACK Huffman codes": Flood(_OPENING, _blocks(b"\x00\x01x\xff\x81\x7c" + b"\x1c" * 16_000)),
}  # fmt: skip


# TLS


def client_hello() -> bytes:
    """The first bytes of a TLS client: all that it needs for the server's costly part."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


TLS: Final[dict[str, Flood]] = {
    "handshakes": Flood(client_hello(), b"", "tls", "tls", is_short=True),
    "bytes that are no TLS": Flood(b"GET / HTTP/1.1\r\n\r\n", b"", "tls", "tls", is_short=True),
}

FLOODS: Final[dict[str, Flood]] = {
    f"{protocol}: {name}": flood
    for protocol, named in (("AMQP", AMQP), ("HTTP/1.1", HTTP1), ("HTTP/2", HTTP2), ("TLS", TLS))
    for name, flood in named.items()
}
"""All floods, by protocol and name."""
