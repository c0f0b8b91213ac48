"""Batches in both formats, in and out: nothing of a body is lost, and one bad entry spoils no other."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mq.broker import Broker, Draft
from mq.errors import BatchTooLarge, InvalidRequest, MQError
from mq.message import BytesBody, Message, MessageId, MessageIds, Properties
from mq.turns import FRAMES_A_TURN
from mq.web.batches import (
    FORMATS,
    MULTIPART,
    PIECE_BYTES,
    BatchEntry,
    BatchParser,
    _line,
    draft_entries,
    preferred,
    removal_entries,
)
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from mq.web.multipart import Part, Parts
from mq.web.parameters import LARGEST_BATCH
from tests.cases import for_each
from tests.web.talking import MAX_BODY, ask, detail, publish, stream, whole
from tests.web.written import encode_entries, write_parts

LINES = "application/x-ndjson"
PARTS = 'multipart/mixed; boundary="b"'
BODIES = (
    b"",
    b"text",
    b"\xff\x00\r\n",
    b"--b",
    b"\r\n--",
    b"\r\n--c\r\n",
    "caf\u00e9 \U0001f600".encode(),
    b"\n",
    b"\r",
)
IDS = MessageIds()


def line(**members: Any) -> bytes:
    return json.dumps(members).encode() + b"\n"


def outcomes(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(each) for each in body.splitlines()]


async def post(endpoints: Endpoints, rest: str, body: bytes, content_type: str = LINES, **more: Any) -> Any:
    return await ask(endpoints, "POST", f"/q/{rest}", body, headers={"content-type": content_type}, **more)


async def fetch(endpoints: Endpoints, most: int = LARGEST_BATCH, accept: str = "", wait: int = 0) -> Any:
    headers = {"accept": accept} if accept else {}
    return await whole(
        await endpoints.handle(
            Request("GET", b"/q/messages", f"max={most}&wait={wait}".encode(), headers, stream(), None)
        )
    )


def read_parts(boundary: str, body: bytes) -> list[Part]:
    found: list[Part] = []
    parts = Parts(boundary, found.append)
    parts.feed(body)
    parts.end()
    return found


def decoded_drafts(content_type: str, body: bytes, piece: int = 1 << 16) -> list[Draft | MQError]:
    """The entries of a batch that comes in pieces of such a size."""
    entries = draft_entries(content_type)
    for start in range(0, len(body), piece):
        entries.feed(body[start : start + piece])
    return entries.end()


def body_of(value: Mapping[str, Any]) -> bytes:
    return value["body"].encode() if "body" in value else base64.b64decode(value["base64"])


@pytest.fixture
async def endpoints(broker: Broker) -> Endpoints:
    await broker.create_queue("q")
    return Endpoints(broker, MAX_BODY)


# In


async def test_lines_go_in_and_come_out(endpoints: Endpoints) -> None:
    sent = b"".join(line(base64=base64.b64encode(body).decode()) for body in BODIES)
    answers = outcomes((await post(endpoints, "messages/batch", sent)).body)
    assert [answer["status"] for answer in answers] == [201] * len(BODIES)
    reply = await fetch(endpoints)
    assert dict(reply.headers)["content-type"] == LINES
    got = outcomes(reply.body)
    assert [body_of(value) for value in got] == list(BODIES)
    assert [value["id"] for value in got] == [answer["id"] for answer in answers]
    assert ["body" in value for value in got] == [body != BODIES[2] for body in BODIES]  # base64 only where it must be


async def test_a_part_with_an_unknown_header_is_refused_and_no_other(endpoints: Endpoints) -> None:
    sent = write_parts("c", [([("X-Message-Dealy", "5")], b"a"), ([("X-Message-Delay", "5")], b"b")])
    answers = outcomes((await post(endpoints, "messages/batch", sent, "multipart/mixed; boundary=c")).body)
    assert [answer["status"] for answer in answers] == [400, 201]
    assert 'unknown header "x-message-dealy"' in answers[0]["detail"]


async def test_parts_go_in_and_come_out(endpoints: Endpoints) -> None:
    sent = write_parts(
        "c",
        [
            ([("Content-Type", "a/b"), ("X-Message-Attribute-N", str(n))], body)
            for n, body in enumerate(BODIES)
            if b"--c" not in body
        ],
    )
    kept = [body for body in BODIES if b"--c" not in body]
    answers = outcomes((await post(endpoints, "messages/batch", sent, "multipart/mixed; boundary=c")).body)
    assert [answer["status"] for answer in answers] == [201] * len(kept)
    reply = await fetch(endpoints, accept="multipart/mixed")
    headers = dict(reply.headers)
    parsed = BytesParser(policy=HTTP).parsebytes(
        b"Content-Type: " + headers["content-type"].encode() + b"\r\n\r\n" + reply.body
    )
    assert len(list(parsed.iter_parts())) == len(kept)  # another parser finds the parts, too
    boundary = headers["content-type"].partition('boundary="')[2].rstrip('"')
    parts = read_parts(boundary, reply.body)
    assert [bytes(part.body) for part in parts] == kept
    assert [part.headers["x-message-attribute-n"] for part in parts] == [
        str(n) for n, body in enumerate(BODIES) if b"--c" not in body
    ]
    assert {part.headers["content-type"] for part in parts} == {"a/b"}
    assert [part.headers["x-message-id"] for part in parts] == [answer["id"] for answer in answers]
    assert all(part.headers["etag"].startswith('"') for part in parts)


async def test_no_content_type_is_lines(endpoints: Endpoints) -> None:
    reply = await ask(endpoints, "POST", "/q/messages/batch", line(body="x"))
    assert outcomes(reply.body)[0]["status"] == 201


@for_each(
    "entry, why",
    [
        (b"nonsense\n", "invalid JSON"),
        (b"[1]\n", "expected a JSON object"),
        (b"\xff\n", "invalid JSON"),
        (b"[" * 3000 + b"\n", "invalid JSON"),
        (line(), '"body"'),
        (line(body="x", base64="eA=="), '"body"'),
        (line(body=7), '"body"'),
        (line(base64="%"), "base64"),
        (line(base64="eA"), "base64"),
        (line(base64=["eA=="]), "base64"),
        (line(base64="\u20ac"), "base64"),
        (line(body="x", delay=-1), "delay"),
        (line(body="x", delay="1y"), "delay"),
        (line(body="x", delay=315_576_001), "delay"),
        (line(body="x", delay=True), "delay"),
        (b'{"body": "x", "delay": NaN}\n', "delay"),
        (line(body="x", ttl=0), "ttl"),
        (line(body="x", ttl=1e12), "ttl"),
        (line(body="x", key=""), "key"),
        (line(body="x", key="a b"), "key"),
        (line(body="x", key="k" * 256), "key"),
        (line(body="x", key=7), "key"),
        (line(body="x", content_type=7), "content_type"),
        (line(body="x", content_type="a\r\nb: c"), "content_type"),
        (line(body="x", content_type=" a"), "content_type"),
        (line(body="x", attributes=[]), "attributes"),
        (line(body="x", attributes=False), "attributes"),
        (line(body="x", attributes={"a": 7}), "attribute a"),
        (line(body="x", attributes={"a": "b\nc"}), "attribute a"),
        (line(body="x", attributes={"a": " b"}), "attribute a"),
        (line(body="x", attributes={"a": "\ud800"}), "attribute a"),
        (line(body="x", attributes={"a b": "c"}), "invalid attribute name"),
        (line(body="x", attributes={"": "c"}), "invalid attribute name"),
        (line(body="x", attributes={"a": "x" * 16_384}), "16384"),
        (line(body="x", attributes={f"a{n}": "" for n in range(65)}), "64"),
        (line(body="x", boody="y"), "boody"),
    ],
)
async def test_one_bad_entry_says_why_and_spoils_no_other(endpoints: Endpoints, entry: bytes, why: str) -> None:
    reply = await post(endpoints, "messages/batch", line(body="before") + entry + line(body="after"))
    assert reply.status == 200
    before, bad, after = outcomes(reply.body)
    assert (before["status"], bad["status"], after["status"]) == (201, 400, 201)
    assert why in bad["detail"]
    assert bad["detail"].isprintable()
    assert [value["body"] for value in outcomes((await fetch(endpoints)).body)] == ["before", "after"]


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([("X-Message-Delay", "x")], "X-Message-Delay"),
        ([("X-Message-TTL", "0")], "X-Message-TTL"),
        ([("Idempotency-Key", "a b")], "Idempotency-Key"),
        ([("X-Message-Delay", "1"), ("X-Message-Delay", "2")], "X-Message-Delay"),
        ([("X-Message-Attribute-", "x")], "invalid attribute name"),
    ],
)
async def test_one_bad_part_says_why_and_spoils_no_other(
    endpoints: Endpoints, headers: list[tuple[str, str]], why: str
) -> None:
    body = write_parts("b", [([], b"before"), (headers, b"bad"), ([], b"after")])
    before, bad, after = outcomes((await post(endpoints, "messages/batch", body, PARTS)).body)
    assert (before["status"], bad["status"], after["status"]) == (201, 400, 201)
    assert why in bad["detail"]


async def test_what_a_line_says_counts(endpoints: Endpoints) -> None:
    sent = line(body="now", content_type="a/b", attributes={"Name": "caf\u00e9"}, ttl=100, key="k", delay=None) + line(
        body="later", delay=60
    )
    first, second = outcomes((await post(endpoints, "messages/batch", sent)).body)
    again = outcomes((await post(endpoints, "messages/batch", line(body="other", key="k"))).body)
    assert again == [{"status": 200, "id": first["id"]}]
    [value] = outcomes((await fetch(endpoints)).body)
    assert (value["content_type"], value["attributes"], value["receives"]) == ("a/b", {"name": "caf\u00e9"}, 1)
    assert json.loads((await ask(endpoints, "GET", "/q")).body)["delayed"] == 1
    assert second["status"] == 201


@for_each(
    "content_type, body, why",
    [
        (LINES, b"", "empty"),
        (LINES, b"\n \r\n\n", "empty"),
        ("text/plain", b"x", "multipart/mixed"),
        ("text/csv", b"x", "multipart/mixed"),
        ("multipart/form-data; boundary=b", b"--b--\r\n", "multipart/mixed"),
        ("multipart/mixed", b"--b--\r\n", "boundary"),
        ('multipart/mixed; boundary=""', b"----\r\n", "boundary"),
        ("multipart/mixed; boundary=" + "b" * 71, b"", "boundary"),
        ('multipart/mixed; boundary="b "', b"", "boundary"),
        ("multipart/mixed; boundary*=utf-8''%E2%82%AC", b"--b--\r\n", "boundary"),
        (PARTS, b"", "is incomplete"),
        (PARTS, b"--b--\r\n", "empty"),
        (PARTS, b"--b\r\n\r\nhalf", "is incomplete"),
        (PARTS, b"--b\r\n\r\nx\r\n--b", "is incomplete"),
        (PARTS, b"--b\n\nx\n--b--\n", "is malformed"),
        (PARTS, b"--b\r\nno colon\r\n\r\nx\r\n--b--\r\n", "is malformed"),
        (PARTS, b"--other\r\n\r\nx\r\n--other--\r\n", "is malformed"),
    ],
)
async def test_a_batch_that_is_none_is_400(endpoints: Endpoints, content_type: str, body: bytes, why: str) -> None:
    reply = await post(endpoints, "messages/batch", body, content_type)
    assert reply.status == 400
    assert why in detail(reply)
    assert (await ask(endpoints, "GET", "/q/messages")).status == 204


@pytest.mark.parametrize("size", [LARGEST_BATCH, LARGEST_BATCH + 1])
async def test_a_batch_has_at_most_so_many_entries(endpoints: Endpoints, size: int) -> None:
    for body, content_type in (
        (line(body="x") * size, LINES),
        (write_parts("b", [([], b"x")] * size), PARTS),
    ):
        reply = await post(endpoints, "messages/batch", body, content_type)
        assert reply.status == (200 if size == LARGEST_BATCH else 413)
        if reply.status == 413:
            assert str(LARGEST_BATCH) in detail(reply)
    removed = await post(endpoints, "messages/delete", line(id=IDS.new()) * size)
    assert removed.status == (200 if size == LARGEST_BATCH else 413)
    left = json.loads((await ask(endpoints, "GET", "/q")).body)["ready"]
    assert left == (2 * LARGEST_BATCH if size == LARGEST_BATCH else 0)


async def test_a_batch_has_at_most_as_many_bytes_as_a_body(endpoints: Endpoints) -> None:
    for rest in ("messages/batch", "messages/delete"):
        reply = await post(endpoints, rest, bytes(MAX_BODY), content_length=MAX_BODY + 1)
        assert reply.status == 413
        assert (await post(endpoints, rest, bytes(MAX_BODY), b"x".decode())).status in (400, 413)


def test_a_batch_of_nothing_but_entries_too_many_is_given_up_early() -> None:
    """A body of 64 MiB has room for tens of millions of them: they must not all be looked at, or kept."""

    entries = removal_entries(LINES)
    entries.feed(b"{}\n" * LARGEST_BATCH)
    with pytest.raises(BatchTooLarge):
        entries.feed(b"{}\n")
    with pytest.raises(BatchTooLarge):
        decoded_drafts(PARTS, b"--b\r\n\r\n\r\n" * 2000)


async def test_odd_ends_of_lines(endpoints: Endpoints) -> None:
    body = b'\r\n{"body": "a"}\r\n\n  {"body": "b"}  \n{"body": "c"}'
    assert len(outcomes((await post(endpoints, "messages/batch", body)).body)) == 3
    body = b"preamble\r\n--b\r\nA: b\r\n\r\nx\r\n\r\n--b  \r\n\r\ny\r\n--b--\r\nepilogue"
    assert len(outcomes((await post(endpoints, "messages/batch", body, PARTS)).body)) == 2
    assert [body_of(value) for value in outcomes((await fetch(endpoints)).body)] == [b"a", b"b", b"c", b"x\r\n", b"y"]


# Removals


async def test_removals_have_their_outcomes(endpoints: Endpoints) -> None:
    for _ in range(3):
        await publish(endpoints, "q", b"x")
    first, second, third = outcomes((await fetch(endpoints)).body)
    unknown = IDS.new()
    body = (
        line(id=first["id"])
        + line(id=second["id"], receipt=second["receipt"])
        + line(id=third["id"], receipt=first["receipt"])
        + line(id=unknown)
        + line(id="no id")
        + line(id=7)
        + line(receipt="x")
        + line(id=third["id"], more=1)
        + b"x\n"
    )
    reply = await post(endpoints, "messages/delete", body)
    assert [each["status"] for each in outcomes(reply.body)] == [202, 202, 412, 404, 404, 400, 400, 400, 400]
    assert json.loads((await ask(endpoints, "GET", "/q")).body)["leased"] == 1


async def test_removals_are_lines(endpoints: Endpoints) -> None:
    assert (await post(endpoints, "messages/delete", b"--b--", PARTS)).status == 400
    assert (await post(endpoints, "messages/delete", b"")).status == 400
    assert (await ask(endpoints, "POST", "/q/messages/delete", line(id=IDS.new()))).status == 200


# Out


async def test_what_does_not_fit_is_given_back(endpoints: Endpoints) -> None:
    for _ in range(5):
        await publish(endpoints, "q", bytes(MAX_BODY // 2))
    assert len(outcomes((await fetch(endpoints)).body)) == 2
    rest: list[dict[str, Any]] = []
    while len(rest) < 3:
        got = outcomes((await fetch(endpoints, wait=10)).body)
        assert 1 <= len(got) <= 2
        rest += got
    assert {value["receives"] for value in rest} == {1}  # as if they had not been handed out


async def test_a_fetch_of_many_takes_no_more_than_asked_for(endpoints: Endpoints) -> None:
    for number in range(5):
        await publish(endpoints, "q", b"%d" % number)
    assert [value["body"] for value in outcomes((await fetch(endpoints, 3)).body)] == ["0", "1", "2"]
    assert [value["body"] for value in outcomes((await fetch(endpoints, 3)).body)] == ["3", "4"]
    assert (await fetch(endpoints, 3)).status == 204


@for_each(
    "accept, wanted",
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        ("multipart/mixed", True),
        ("Multipart/Mixed", True),
        ("multipart/*", True),
        ("multipart/mixed, */*", True),
        ("application/x-ndjson, multipart/mixed", False),
        ("application/jsonl, multipart/mixed", False),
        ("multipart/mixed, application/x-ndjson", True),
        ("application/x-ndjson;q=0.5, multipart/mixed", True),
        ("multipart/mixed;q=0.5, application/x-ndjson", False),
        ("multipart/mixed;q=0", False),
        ("multipart/mixed;q=0, */*", False),
        ("multipart/mixed; level=1; q=0.1, */*;q=0.2", False),
        ("multipart/mixed;q=nonsense", False),
        ("application/*;q=0.9, multipart/mixed;q=0.8", False),
        (",,;q=,", False),
    ],
)
def test_what_a_client_would_rather_have(accept: str, wanted: bool) -> None:
    assert (preferred(accept, FORMATS) == MULTIPART) is wanted


def message(body: bytes, attributes: Mapping[str, Any]) -> BatchEntry:
    kept = Properties(len(body), None, attributes)
    return BatchEntry(Message("q", IDS.new(), BytesBody(body), kept, 1, "0123456789abcdef"), body, "ready")


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=10)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=10)
bodies = st.one_of(
    st.binary(max_size=50), st.lists(st.sampled_from([b"--b", b"\r\n", b"--", b"\r", b"\n", b"x"])).map(b"".join)
)


@given(st.lists(st.tuples(bodies, st.dictionaries(names, texts, max_size=3)), min_size=1, max_size=5))
def test_what_comes_out_as_lines_goes_in_again(sent: list[tuple[bytes, dict[str, str]]]) -> None:
    entries = [message(body, {"content_type": "a/b", "attributes": texts}) for body, texts in sent]
    content_type, out = encode_entries("", entries)
    kept = ("body", "base64", "content_type", "attributes")
    lines = [{name: value for name, value in each.items() if name in kept} for each in outcomes(out)]
    drafts = decoded_drafts(content_type, b"".join(line(**each) for each in lines))
    assert_same(drafts, sent)


@given(st.lists(st.tuples(bodies, st.dictionaries(names, texts, max_size=3)), min_size=1, max_size=5))
def test_what_comes_out_as_parts_goes_in_again(sent: list[tuple[bytes, dict[str, str]]]) -> None:
    entries = [message(body, {"content_type": "a/b", "attributes": texts}) for body, texts in sent]
    content_type, out = encode_entries("multipart/mixed", entries)
    assert_same(decoded_drafts(content_type, out), sent)


@given(st.lists(st.tuples(bodies, st.booleans(), st.booleans()), max_size=5))
def test_what_is_written_by_hand_is_what_json_writes(said: list[tuple[bytes, bool, bool]]) -> None:
    entries = []
    for body, has_receipt, is_looked_at in said:
        entry = message(body, {})
        receipt = entry.message.receipt if has_receipt else ""
        entries.append(
            entry._replace(message=entry.message._replace(receipt=receipt), state="ready" if is_looked_at else "")
        )
    _, out = encode_entries("", entries)
    assert out == b"".join(json.dumps(_line(entry)).encode() + b"\n" for entry in entries)


def assert_same(drafts: list[Draft | MQError], sent: list[tuple[bytes, dict[str, str]]]) -> None:
    assert [draft.body for draft in drafts if isinstance(draft, Draft)] == [body for body, _ in sent]
    for draft, (_, texts) in zip(drafts, sent, strict=True):
        assert isinstance(draft, Draft)
        assert draft.attributes == {"content_type": "a/b"} | ({"attributes": texts} if texts else {})


@given(st.binary(max_size=200), st.text(max_size=30))
def test_any_bytes_are_a_batch_or_are_refused(body: bytes, boundary: str) -> None:
    for content_type in (LINES, PARTS, f"multipart/mixed; boundary={boundary}", boundary):
        try:
            drafts = decoded_drafts(content_type, body)
        except (InvalidRequest, BatchTooLarge):
            continue
        assert drafts
        assert all(isinstance(draft, Draft | MQError) for draft in drafts)


def test_a_state_is_told_in_both_formats() -> None:
    entry = message(b"x", {})
    assert json.loads(encode_entries("", [entry])[1])["state"] == "ready"
    assert b"x-message-state: ready\r\n" in encode_entries("multipart/mixed", [entry])[1]
    assert MessageId(json.loads(encode_entries("", [entry])[1])["id"]) == entry.message.id


class EntriesPerStep(trio.abc.Instrument):
    """Counts the entries that are read in each step of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.now = self.all = 0
        take = BatchParser._take

        def count(parser: BatchParser[Any], given: Any) -> None:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
            take(parser, given)

        monkeypatch.setattr(BatchParser, "_take", count)
        trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.now = 0


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"{}\n" * LARGEST_BATCH, LINES), (b"--b\r\n\r\n\r\n" * LARGEST_BATCH + b"--b--\r\n", PARTS)],
    ids=["lines", "parts"],
)
async def test_many_empty_entries_are_read_in_many_steps(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, body: bytes, content_type: str
) -> None:
    counted = EntriesPerStep(monkeypatch)
    await ask(endpoints, "PUT", "/q")
    request = Request("POST", b"/q/messages/batch", b"", {"content-type": content_type}, body, len(body))
    assert (await endpoints.handle(request)).status in (200, 207)
    assert counted.all == LARGEST_BATCH
    # As many bytes as are parsed before their entries are counted may have a turn's entries and more.
    assert counted.most <= FRAMES_A_TURN + PIECE_BYTES // len(b"{}\n")
