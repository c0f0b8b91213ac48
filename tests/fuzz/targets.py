"""What is fuzzed: every place where mq reads bytes that it did not write. A target takes any bytes and raises nothing.

Beside "it does not crash" each of them holds what its parser has read to what would be written again.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import h11
import trio

from mq.access.users_file import check_user_name, parse_users
from mq.broker import Draft
from mq.errors import BatchTooLarge, InvalidId, InvalidName, InvalidRequest, InvalidSetting
from mq.lifecycle import State
from mq.message import BytesBody, Message, MessageId, Properties, QueueName, encode_attributes, with_checksum
from mq.settings import LINES, Settings, load_settings
from mq.storage.files.fake import FakeCalls, make_calls
from mq.storage.files.layout import (
    Senseless,
    Sum,
    decode_attributes,
    decode_side,
    encode_side,
    flat_name,
    is_queue_name,
    leaf_name,
    parse_flat,
    parse_leaf,
)
from mq.storage.files.records import Records
from mq.web.authorizer import _basic, find_rule
from mq.web.batches import FORMATS, BatchEntry, BatchParser, draft_entries, preferred, removal_entries
from mq.web.endpoints import OPERATIONS, join_path, split_path
from mq.web.exchange import Request
from mq.web.hypercorn_server import FrameCounter
from mq.web.parameters import read_header, read_query
from mq.web.refusals import check_head
from tests.fuzz import amqp_targets
from tests.web.talking import stream
from tests.web.test_anything import is_name, talk
from tests.web.written import encode_entries

ID: Final = b"4ad814ab-213e-11e3-a9a3-0025904f6e08"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CUTS: Final = (1, 7, 9, 1000)


class Target(NamedTuple):
    """One thing that is fuzzed.

    Attributes:
        try_one: takes any bytes.
    """

    try_one: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _name(data: bytes) -> None:
    """What is read from a name is written as that name."""
    name = _text(data)
    entry = parse_flat(name, State.DELAYED)
    assert entry is None or flat_name(entry.queue, entry.id, entry.meta) == name
    entry = parse_leaf(name, "q", State.READY)
    assert entry is None or leaf_name(entry.id, entry.meta) == name


def _queue(data: bytes) -> None:
    """The domain and the store agree on what a queue may be called, and such a name is a safe file name."""
    name = _text(data)
    assert is_name(name) is is_queue_name(name)
    with contextlib.suppress(InvalidName):
        assert not set(QueueName(name)) & set("/:,\0\n") and name not in (".", "..")  # noqa: PT018


def _id(data: bytes) -> None:
    """An id is a UUID of version 1, and its key leads back to it."""
    with contextlib.suppress(InvalidId):
        id = MessageId(_text(data))
        assert MessageId.from_key(id.key) == id
        assert (UUID(id).version, UUID(id).time, str(UUID(id))) == (1, id.time, id)


def _sum(data: bytes) -> None:
    with contextlib.suppress(Senseless):
        found = Sum.decode(data)
        assert found is not None
        assert found.encode() == data


def _attributes(data: bytes) -> None:
    """What was read comes back; compared as text, since a NaN is not equal to itself."""
    with contextlib.suppress(Senseless):
        found = decode_attributes(with_checksum(data))
        text = encode_attributes(found)
        assert not found or encode_attributes(decode_attributes(with_checksum(text))) == text


def _side(data: bytes) -> None:
    with contextlib.suppress(Senseless):
        found = decode_side(with_checksum(data))
        assert encode_side(decode_side(encode_side(found))) == encode_side(found)


def _lay(calls: FakeCalls, path: str, content: bytes) -> None:
    fd = calls.open(path, 0o101)
    calls.write(fd, content)
    calls.close(fd)


def _record(data: bytes) -> None:
    """A record is there only when it says its own name; any other file is passed over."""
    calls = make_calls()
    calls.mkdir("/records")
    records = Records(calls, "/records")
    records.put("kind", "mine", {"whole": True})
    _lay(calls, "/records/kind/kother.7", data)
    _lay(calls, "/records/kind/kother.6", with_checksum(data))
    found = records.all("kind")
    assert found["mine"] == {"whole": True}
    assert found.keys() <= {"mine", "other"}


def _settings_toml(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        Path(file.name).write_bytes(data)
        with contextlib.suppress(InvalidSetting):
            assert isinstance(load_settings({"config": file.name}, {}), Settings)


def _users(data: bytes) -> None:
    """Whoever is read from a file of users has a name, and rights that can be asked for."""
    with contextlib.suppress(InvalidSetting):
        for account in parse_users(data.decode("utf-8", "replace"), "users.toml"):
            check_user_name(account.user.name)
            account.user.may_something("q")


def _gate(data: bytes) -> None:
    """One line each: a path and what follows Basic. A path that was judged reads the same when it is read again."""
    path, _, given = data.partition(b"\n")
    segments = split_path(path)
    if segments:
        written = join_path(segments)
        assert split_path(written) == segments
        assert re.fullmatch(rb"(/[A-Za-z0-9._~%-]*)+", written)
    find_rule("GET", segments)
    name, _ = _basic(given.decode("latin-1"))
    assert ":" not in name


def _settings_flags(data: bytes) -> None:
    text = _text(data)
    for line in LINES:
        with contextlib.suppress(InvalidSetting):
            load_settings({line.name: text}, {})


def _read(entries: BatchParser[Any], data: bytes) -> list[Any]:
    """In two pieces."""
    entries.feed(data[: len(data) // 2])
    entries.feed(data[len(data) // 2 :])
    return entries.end()


def _batch(data: bytes) -> None:
    """The first line is the content type. What was read is written in the same way by whoever fetches it."""
    content_type, _, body = data.partition(b"\n")
    with contextlib.suppress(InvalidRequest, BatchTooLarge):
        for draft in _read(draft_entries(content_type.decode("latin-1")), body):
            if isinstance(draft, Draft) and isinstance(draft.body, bytes):
                kept = Properties(len(draft.body), None, draft.attributes)
                entry = BatchEntry(
                    Message("q", MessageId(ID.decode()), BytesBody(draft.body), kept, 1, "r"), draft.body
                )
                for accept in ("", "multipart/mixed"):
                    written_as, written = encode_entries(accept, [entry])
                    [again] = _read(draft_entries(written_as), written)
                    assert isinstance(again, Draft) or accept == ""
                    if isinstance(again, Draft):
                        assert again.body == draft.body
    with contextlib.suppress(InvalidRequest, BatchTooLarge):
        _read(removal_entries(content_type.decode("latin-1")), body)


def _parameters(data: bytes) -> None:
    """One line each: a query, an Accept, a header."""
    query, accept, header = ([*data.split(b"\n", 2), b"", b""])[:3]
    parameters = [parameter for operation in OPERATIONS for parameter in operation.query]
    with contextlib.suppress(InvalidRequest, InvalidSetting):
        for value in read_query(query, parameters).values():
            assert value is None or value == value  # not a NaN
    assert preferred(accept.decode("latin-1"), FORMATS) in FORMATS
    for parameter in (parameter for operation in OPERATIONS for parameter in operation.headers):
        with contextlib.suppress(InvalidRequest, InvalidSetting):
            read_header({parameter.name.lower(): header.decode("latin-1")}, parameter)


def _request(data: bytes) -> None:
    """One line each: the method, the path, the content type; the rest is the body."""
    lines = [*data.split(b"\n", 3), b"", b"", b""]
    headers = {"content-type": lines[2].decode("latin-1")} if lines[2] else {}
    reply, queues = trio.run(
        talk, Request(lines[0].decode("latin-1"), lines[1], b"", headers, stream(), None), lines[3] or b"x"
    )
    assert 200 <= reply.status < 300 or 400 <= reply.status < 500
    assert all(map(is_name, queues))
    for name, value in reply.headers:
        assert name == name.lower()
        assert not set("\r\n\0") & set(value)


def _is_flood(reads: list[bytes]) -> bool:
    counter = FrameCounter()
    for read in reads:
        assert b"".join(piece for piece, _ in counter.cut(read, 0.0)) == read
    return counter.error is not None


def _frames(data: bytes) -> None:
    """However the bytes are cut, they are too much or they are not."""
    data = PREFACE + data
    whole = _is_flood([data])
    for size in CUTS:
        assert _is_flood([data[at : at + size] for at in range(0, len(data), size)]) is whole


def _head(data: bytes) -> None:
    """What the check lets pass has no line that h11 and a proxy could read in two ways."""
    with contextlib.suppress(h11.RemoteProtocolError):
        check_head(data)
        head = data.partition(b"\r\n\r\n")[0]
        assert head.count(b"\n") == head.count(b"\r\n")
        assert not any(line[:1] in (b" ", b"\t") for line in head.split(b"\n")[1:])


TARGETS: Final = {
    "name": Target(_name, (b"q:" + ID, ID + b",d1795263792565,r1,cb3356cbdd8c1b59d,o12,e9", b"q:" + ID + b",r0")),
    "queue": Target(_queue, (b"orders", b"a.b@c-d_9", b"..", b"-", b"q" * 101)),
    "id": Target(_id, (ID, ID.upper(), ID[:-1])),
    "sum": Target(_sum, (b"5:3610a686:a", b"0:00000000", b"05:00000000:f")),
    "attributes": Target(_attributes, (b'{"content_type":"text/plain"}', b'{"a":[1,null,1e9,"\\ud800"]}', b"[" * 3000)),
    "side": Target(_side, (b'{"size":4,"crc32":255,"attributes":{"a":1}}', b'{"size":1e999}', b"[" * 3000)),
    "record": Target(
        _record, (b'{"key": "other", "value": {"created": 1}}', b'{"key": "mine", "value": {}}', b"[" * 3000)
    ),
    "settings file": Target(
        _settings_toml,
        (
            b"port = 8080\npeers = 1\n",
            b'root = "/tmp/x"\nvisibility = 1.5',
            b"a = " + b"[" * 3000,
            b"visibility = " + b"9" * 400,
        ),
    ),
    "users file": Target(
        _users,
        (
            b'[users.a]\ntokens = ["sha256:' + b"0" * 64 + b'"]\npublish = ["q*"]',
            b'[users."a@b"]\npassword = "scrypt:2:1:1:' + b"0" * 32 + b":" + b"f" * 64 + b'"',
            b"users = " + b"[" * 3000,
        ),
    ),
    "gate": Target(_gate, (b"/q/messages\nYTpi", b"http://mq/%71%2f//..\nOg==", b"*\n!", b"//\n/////w==")),
    "settings": Target(_settings_flags, (b"8080", b"1.5", b"64 MiB", b"true", b"nan", b"1e999")),
    "request": Target(
        _request, (b"GET\n/q/messages\na\rb", b"POST\n/q/messages\ntext/plain\nhi", b"PUT\n/%2e%2e\n\n", b"HEAD\n/q")
    ),
    "batch": Target(
        _batch,
        (
            b'\n{"body": "x", "delay": 1, "attributes": {"a": "b"}}\n{"base64": "eA=="}',
            b"multipart/mixed; boundary=b\n--b\r\nX-Message-Delay: 1\r\n\r\nx\r\n--b--\r\n",
            b'\n{"id": "' + ID + b'", "receipt": "r"}',
            b'\n{"body": "x", "attributes": {"a": "\\ud800"}}',
        ),
    ),
    "parameters": Target(
        _parameters,
        (b'wait=1&max=2.5&visibility=1e3\nmultipart/mixed;q=0.5, */*\nW/"r"', b"state=ready&after=" + ID + b"\n\n*"),
    ),
    "frames": Target(_frames, (b"\0\0\4\3\0\0\0\0\1\0\0\0\0" * 20, b"\0\0\1\1\4\0\0\0\1x", b"\0\0\10\6\0\0\0\0\0")),
    "amqp begin": Target(amqp_targets.try_begin, (b"AMQP\0\0\x09\x01", b"GET / HTTP/1.1")),
    "amqp frames": Target(amqp_targets.try_frames, (*amqp_targets.SPOKEN, b"\x08\0\0\0\0\0\0\xce")),
    "amqp properties": Target(
        amqp_targets.try_properties, (b"\0\0", b"\xb1\0\x01a\0\0\0\x04\x01at\x01\x02\x02\x0160", b"\x01\0\x0160")
    ),
    "amqp table": Target(
        amqp_targets.try_table,
        (b"\0\0\0\x04\x01at\x01", b"\0\0\0\x0d\x01aA\0\0\0\x06S\0\0\0\x01x", b"\0\0\0\x0b\x01aT" + b"\0" * 8),
    ),
    "amqp name": Target(amqp_targets.try_name, (b"orders", b"_@blue@@a@20b", b"blue\0a b", b"_@@@_@40")),
    "amqp connection": Target(amqp_targets.try_connection, amqp_targets.SPOKEN),
    "head": Target(_head, (b"GET / HTTP/1.1\r\nHost: mq\r\n\r\n", b"GET / HTTP/1.1\nA: b\r\n c\r\n")),
}
"""By name."""
