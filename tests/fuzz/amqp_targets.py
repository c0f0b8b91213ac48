"""What is fuzzed of AMQP: frames, tables and properties, names, and a whole connection with a server behind it."""

from __future__ import annotations

import contextlib
from typing import Final

from pamqp import commands as methods
from pamqp import frame

from mq.amqp.model.names import decode, encode
from mq.amqp.protocol.connection import ConnectionState
from mq.amqp.wire import tables
from mq.amqp.wire.errors import Refusal, WrongProtocol
from mq.amqp.wire.frames import PROTOCOL_HEADER, Frame, FrameReader, MethodFrame
from mq.amqp.wire.properties import BasicProperties
from tests.amqp.talking import Peer, content, publish, words

CUTS: Final = (1, 3, 7, 8, 100)
MOST_BUFFERED: Final = 50_000


def _read(pieces: list[bytes]) -> tuple[list[str], int | None]:
    """The frames, and the code of the error after them."""
    reader, found = FrameReader(), []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (one := reader.read()) is not None:
                found.append(_shown(one))
    except Refusal as refusal:
        return found, refusal.code
    return found, None


def _shown(one: Frame) -> str:
    return f"{one.channel} {one.method.name} {dict(one.method)}" if isinstance(one, MethodFrame) else repr(one)


def try_frames(data: bytes) -> None:
    """However the bytes are cut, they are the same frames; and pamqp agrees on each method that is read."""
    whole = _read([data])
    for size in CUTS:
        assert _read([data[at : at + size] for at in range(0, len(data), size)]) == whole
    reader = FrameReader()
    reader.feed(data)
    with contextlib.suppress(Refusal):
        while (one := reader.read()) is not None:
            size = 8 + int.from_bytes(data[3:7])
            if isinstance(one, MethodFrame) and one.method.index != methods.Basic.RecoverAsync.index:
                _, channel, theirs = frame.unmarshal(data[:size])
                assert f"{channel} {theirs.name} {dict(theirs)}" == _shown(one)
            data = data[size:]


def try_begin(data: bytes) -> None:
    """A connection begins with AMQP 0-9-1, or is told so."""
    reader = FrameReader()
    reader.feed(data)
    try:
        assert not reader.begin() or data.startswith(PROTOCOL_HEADER)
    except WrongProtocol:
        assert not PROTOCOL_HEADER.startswith(data[: len(PROTOCOL_HEADER)])


def try_properties(data: bytes) -> None:
    """Properties that are changed keep everything else; what is read of them does not depend on that."""
    with contextlib.suppress(Refusal):
        properties = BasicProperties(data)
        properties.text("user_id")
        changed = properties.changed({"x-new": 1}, frozenset({"expiration"}))
        for name in ("content_type", "reply_to", "app_id"):
            assert changed.text(name) == properties.text(name)
        assert (changed.is_persistent, changed.priority) == (properties.is_persistent, properties.priority)
        assert changed.expiration_ms is None
        assert changed.headers() == changed.headers() or "nan" in repr(changed.headers())


def try_table(data: bytes) -> None:
    """What is decoded is JSON and comes back; compared as text, since a NaN is not equal to itself."""
    with contextlib.suppress(Refusal):
        values = tables.decoded(data)
        assert repr(tables.from_json(tables.to_json(values))) == repr(values)
        assert {entry.key.decode() for entry in tables.entries(data)} == set(values)


def try_name(data: bytes) -> None:
    """What leads back to a name is what that name is written as."""
    text = data.decode("utf-8", "replace")
    found = decode(text)
    assert found is None or encode(*found) == text or not text.startswith("_@")
    vhost, _, name = text.partition("\0")
    written = encode(vhost or "/", name)
    assert decode(written) in (None, (vhost or "/", name))


class _Server(Peer):
    """Reads what it says itself with our own reader, since pamqp reads no strings that are not UTF-8."""

    def flush(self) -> None:
        reader = FrameReader()
        reader.frame_max = 10_000_000
        reader.feed(self.connection.outgoing())
        while reader.read() is not None:
            pass


def _server() -> _Server:
    peer = _Server(body_max=20_000, buffered_max=MOST_BUFFERED, unsettled_max=50)
    peer.send(PROTOCOL_HEADER)
    peer.log_in()
    peer.say(methods.Connection.TuneOk(10, 4096, 0), methods.Connection.Open("/"), channel=0)
    peer.say(methods.Channel.Open())
    assert peer.connection.state is ConnectionState.OPEN
    return peer


def try_connection(data: bytes) -> None:
    """Whatever a client sends once it is in, the connection goes on or ends, holds little and gives everything back."""
    peer = _server()
    for at in range(0, len(data), 1000):
        peer.send(data[at : at + 1000])
    session = peer.connection.session
    assert 0 <= session.buffered <= MOST_BUFFERED
    assert 0 <= session.unsettled <= 50
    peer.connection.end()
    peer.work()
    assert session.buffered == session.unsettled == 0
    assert not [queue for queue in peer.topology.queues() if peer.topology.consumers.count(queue.key)]


SPOKEN: Final = (
    words(methods.Queue.Declare(queue="q", arguments={"x-max-length": 3})) + publish("q", b"a") + publish("q", b"b"),
    words(methods.Queue.Declare(queue="q"))
    + words(methods.Basic.Consume(queue="q", consumer_tag="t"))
    + publish("q", b"x")
    + words(methods.Basic.Ack(1)),
    words(methods.Tx.Select()) + publish("q") + words(methods.Tx.Commit()) + words(methods.Tx.Rollback()),
    words(methods.Exchange.Declare(exchange="x", exchange_type="topic"))
    + words(methods.Exchange.Bind(destination="x", source="amq.topic", routing_key="#.a"))
    + publish("a.b", exchange="x", mandatory=True),
    words(methods.Channel.Close(200, "", 0, 0)) + words(methods.Connection.Close(200, "", 0, 0), 0),
    words(methods.Confirm.Select()) + content(1, b"x"),
)
"""What a client may say on channel 1."""
