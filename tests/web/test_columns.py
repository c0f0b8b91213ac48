"""Messages as columns: who gets them, and what is in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker import Broker
from mq.doors.budget import Budget
from mq.message import BytesBody, Message, MessageIds, Properties
from mq.web.batches import FORMATS, JSON_LINES, MULTIPART, BatchEntry, preferred
from mq.web.columns import COLUMNS, block_of_entries, write_columns
from mq.web.endpoints import Endpoints
from tests.web.test_consumer_operations import get
from tests.web.written import encode_columns

IDS = MessageIds()


def entry(body: bytes, attributes: Mapping[str, Any], sequence: int = 1, receives: int = 0) -> BatchEntry:
    message = Message("q", IDS.new(), BytesBody(body), Properties(len(body), None, attributes), receives, "")
    return BatchEntry(message, body, "ready", sequence)


def decoded(data: bytes) -> tuple[list[tuple[int, int, int, str, bytes]], dict[str, Any]]:
    """Read by the description of docs/dev/storage-formats.md, without anything of mq's."""
    line, _, rest = data.partition(b"\n")
    assert (len(line) + 1) % 8 == 0
    head = json.loads(line)
    count = head["messages"]
    numbers = struct.Struct(f"<{count}q{count}q{count}i{count + 1}i")
    values = numbers.unpack_from(rest)
    ends = values[3 * count :]
    ids, bodies = rest[numbers.size : numbers.size + 36 * count], rest[numbers.size + 36 * count :]
    assert (ends[0], ends[-1]) == (0, len(bodies))
    rows = [
        (
            values[at],
            values[count + at],
            values[2 * count + at],
            ids[36 * at : 36 * at + 36].decode("ascii"),
            bodies[ends[at] : ends[at + 1]],
        )
        for at in range(count)
    ]
    return rows, head["said"]


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=20),
            st.integers(0, 2**60),
            st.integers(0, 2**31 - 1),
            st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=3)),
        )
    )
)
def test_every_message_is_in_its_row(sent: list[tuple[bytes, int, int, dict[str, str]]]) -> None:
    entries = [entry(body, {"attributes": texts} if texts else {}, place, count) for body, place, count, texts in sent]
    rows, said = decoded(encode_columns(entries))
    assert [(sequence, receives, body) for sequence, _, receives, _, body in rows] == [
        (place, count, body) for body, place, count, _ in sent
    ]
    assert [(ticks, id) for _, ticks, _, id, _ in rows] == [(each.message.id.time, each.message.id) for each in entries]
    assert {int(number): each["attributes"] for number, each in said.items()} == {
        number: texts for number, (*_, texts) in enumerate(sent) if texts
    }


def test_what_is_said_of_a_message_comes_along() -> None:
    _, said = decoded(encode_columns([entry(b"", {}), entry(b"x", {"content_type": "a/b"})]))
    assert said == {"1": {"content_type": "a/b", "attributes": {}}}


@pytest.mark.parametrize(
    "sizes", [[], [0], [65_535, 1, 65_536, 5], [200_000], [5, 200_000, 5, 70_000], [100] * 2000, [1 << 20, 1 << 20]]
)
def test_bodies_go_out_in_pieces_and_give_their_memory_back(sizes: list[int]) -> None:
    """A page is let go while it is sent; a long body is never there twice."""
    budget = Budget()
    free = budget.free
    entries = [entry(b"%d" % (number % 10) * size, {}) for number, size in enumerate(sizes)]
    sent = [each.body for each in entries]
    room = budget.reserve()
    room.cover(sum(sizes) + 512 * len(sizes))
    pieces, taken = [], []
    for piece in write_columns([block_of_entries(entries)], room):
        pieces.append(piece)
        taken.append(free - budget.free)
    assert [body for *_, body in decoded(b"".join(pieces))[0]] == sent
    columns = 70 * len(sizes) + 100  # with the head, which goes out at once
    assert max(map(len, pieces)) <= 2 * 65_536 + columns
    assert taken == sorted(taken, reverse=True)
    assert budget.free == free


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", JSON_LINES[0]),
        ("*/*", JSON_LINES[0]),
        ("application/*", JSON_LINES[0]),
        (COLUMNS, COLUMNS),
        (f"{COLUMNS};q=0", JSON_LINES[0]),
        (f"{JSON_LINES[0]};q=0.5, {COLUMNS}", COLUMNS),
        (f"{MULTIPART}, {COLUMNS}", MULTIPART),
    ],
)
def test_columns_are_for_who_asks_for_them(accept: str, wanted: str) -> None:
    assert preferred(accept, (*FORMATS, COLUMNS)) == wanted


async def test_browsing_and_claims_are_given_as_columns(endpoints: Endpoints, broker: Broker) -> None:
    await broker.create_queue("q")
    ids = [await broker.publish("q", body, {"content_type": "x/y"}) for body in (b"\xff", b"two", b"")]
    reply = await get(endpoints, "/q/browse?max=2", accept=COLUMNS)
    assert isinstance(reply.body, bytes)
    headers = dict(reply.headers)
    assert (headers["content-type"], headers["content-length"]) == (COLUMNS, str(len(reply.body)))
    assert 'rel="next"' in headers["link"]
    rows, said = decoded(reply.body)
    assert [(id, body) for *_, id, body in rows] == [(ids[0], b"\xff"), (ids[1], b"two")]
    assert said["0"]["content_type"] == "x/y"
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch)
    reply = await get(endpoints, f"/q/consumers/c/claim?batch=1&epoch={epoch}", accept=COLUMNS)
    assert isinstance(reply.body, bytes)
    assert [(receives, id) for _, _, receives, id, _ in decoded(reply.body)[0]] == [(1, id) for id in ids]


async def test_a_fetch_knows_no_columns(endpoints: Endpoints, broker: Broker) -> None:
    await broker.create_queue("q")
    await broker.publish("q", b"x")
    reply = await get(endpoints, "/q/messages?max=2", accept=COLUMNS)
    assert dict(reply.headers)["content-type"] == JSON_LINES[0]
