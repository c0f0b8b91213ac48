"""Ids that are UUIDs and strictly increase, the grammar of names, and bodies that are in memory."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, date, datetime
from typing import Final
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import CorruptMessage, InvalidId, InvalidName
from mq.message import BytesBody, DamagedBody, MessageId, MessageIds, QueueName, checksum, shorten
from tests.cases import for_each

ID: Final = MessageId("4ad814ab-213e-11e3-a9a3-0025904f6e08")
NOW_NS: Final = 1_700_000_000_123_456_789
DAY_TICKS: Final = 86_400 * 10_000_000

keys: Final = st.builds(
    lambda ticks, clock, node: ticks << 64 | 0x8000 << 48 | clock << 48 | node,
    st.integers(0, 2**60 - 1),
    st.integers(0, 2**14 - 1),
    st.integers(0, 2**48 - 1),
)


class Clock:
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS

    def __call__(self) -> int:
        return self.now_ns


def ticks_of(now_ns: int) -> int:
    """UUID time: 100 ns ticks since the Gregorian calendar began."""
    return now_ns // 100 + (date(1970, 1, 1) - date(1582, 10, 15)).days * DAY_TICKS


# Ids that are made


def test_id_is_a_version_1_uuid_as_the_standard_library_reads_it() -> None:
    id = MessageIds(lambda: NOW_NS, node=0x0123456789AB).new()
    uuid = UUID(id)
    assert (uuid.version, uuid.variant, uuid.node) == (1, RFC_4122, 0x0123456789AB)
    assert uuid.time == ticks_of(NOW_NS)
    assert str(uuid) == id == MessageId(id)
    assert (id.time, id.key) == (uuid.time, uuid.time << 64 | uuid.int & 2**64 - 1)


def test_id_says_when_it_was_made() -> None:
    id = MessageIds(lambda: NOW_NS).new()
    assert id.published_ns == NOW_NS // 100 * 100
    made = datetime.fromtimestamp(id.published_ns / 1e9, UTC)
    assert made.isoformat(timespec="seconds") == "2023-11-14T22:13:20+00:00"


def test_seed_id_says_when_it_was_made() -> None:
    made = datetime.fromtimestamp(ID.published_ns / 1e9, UTC)
    assert made.isoformat(timespec="seconds") == "2013-09-19T15:15:17+00:00"


def test_node_is_not_a_network_card() -> None:
    nodes = {UUID(MessageIds(lambda: NOW_NS).new()).node for _ in range(20)}
    assert len(nodes) == 20
    assert all(node >> 40 & 1 for node in nodes)


def test_ids_follow_the_real_clock() -> None:
    before = time.time_ns()
    id = MessageIds().new()
    assert before - 100 <= id.published_ns <= time.time_ns()


@given(st.lists(st.integers(-(10**12), 10**12), max_size=30))
def test_ids_increase_whatever_the_clock_does(steps: list[int]) -> None:
    clock = Clock()
    ids = MessageIds(clock)
    made = [ids.new()]
    for step in steps:
        clock.now_ns += step
        made.append(ids.new())
    assert all(one.time < other.time and one.key < other.key for one, other in itertools.pairwise(made))
    assert all(MessageId(id) == id for id in made)


def test_ids_increase_while_the_clock_stands() -> None:
    ids = MessageIds(Clock())
    first = ids.new()
    later = [ids.new() for _ in range(1000)]
    assert [id.time - first.time for id in later] == list(range(1, 1001))


def test_ids_return_to_a_clock_that_catches_up() -> None:
    clock = Clock()
    ids = MessageIds(clock)
    ids.new()
    ids.new()
    clock.now_ns += 1_000_000
    assert ids.new().time == ticks_of(clock.now_ns)


def test_ids_are_younger_than_what_was_observed() -> None:
    clock = Clock()
    ids = MessageIds(clock)
    seen = ticks_of(NOW_NS) + 5 * DAY_TICKS
    ids.observe(seen)
    assert ids.new().time == seen + 1
    clock.now_ns += 6 * 86_400 * 10**9
    assert ids.new().time == ticks_of(clock.now_ns)


def test_observing_what_is_past_changes_nothing() -> None:
    ids = MessageIds(Clock())
    ids.observe(ticks_of(NOW_NS) + 100)
    ids.observe(ticks_of(NOW_NS) + 50)
    assert ids.new().time == ticks_of(NOW_NS) + 101


@pytest.mark.parametrize("ticks", [2**59, 2**60 - 1])
def test_an_id_that_no_clock_made_is_not_followed(ticks: int) -> None:
    ids = MessageIds(Clock())
    ids.observe(ticks)
    assert ids.new().time == ticks_of(NOW_NS)


@pytest.mark.parametrize("years", [2, 60, 500])
def test_an_id_is_followed_however_far_the_clock_was_set_back(years: int) -> None:
    ids = MessageIds(Clock())
    ids.observe(ticks_of(NOW_NS) + years * 365 * DAY_TICKS)
    assert ids.new().time == ticks_of(NOW_NS) + years * 365 * DAY_TICKS + 1


def test_two_processes_do_not_make_the_same_id() -> None:
    made = {MessageIds(Clock()).new() for _ in range(100)}
    assert len(made) == 100


# Their order, and their key


def test_ids_order_by_time_and_not_by_text() -> None:
    older = MessageId("ffffffff-0000-11e3-a9a3-0025904f6e08")
    younger = MessageId("00000000-0001-11e3-a9a3-0025904f6e08")
    assert older.time < younger.time
    assert older.key < younger.key
    assert older > younger  # what sorting them as text would do


@given(keys)
def test_key_comes_back(key: int) -> None:
    id = MessageId.from_key(key)
    assert id.key == key
    assert MessageId(id) == id
    assert type(id) is MessageId


@given(keys, keys)
def test_keys_order_by_time_first(one: int, other: int) -> None:
    first, second = sorted((MessageId.from_key(one), MessageId.from_key(other)), key=lambda id: id.key)
    assert first.time <= second.time
    assert UUID(first).time <= UUID(second).time


# Ids that are given


@pytest.mark.slow
@given(st.uuids())
def test_id_is_exactly_a_version_1_uuid(uuid: UUID) -> None:
    if uuid.version == 1:
        assert MessageId(str(uuid)) == str(uuid)
    else:
        with pytest.raises(InvalidId):
            MessageId(str(uuid))


@for_each(
    "text",
    [
        "",
        str(ID).upper(),
        f"{{{ID}}}",
        f"urn:uuid:{ID}",
        str(ID).replace("-", ""),
        f"{ID}\n",
        f" {ID}",
        f"{ID},r1",
        "4ad814ab-213e-41e3-a9a3-0025904f6e08",
        "4ad814ab-213e-11e3-c9a3-0025904f6e08",
        "4ad814ab-213e-11e3-a9a3-0025904f6e0٨",
        "../../../../../../../../../etc/passwd",
        "x" * 10_000,
    ],
)
def test_id_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidId) as caught:
        MessageId(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


# Names

GRAMMAR: Final = r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}"


@for_each("name", ["q", "Q", "0", "_", "queue001", "a.b_c@d-e", "a.", "a..b", "new", "q" * 100])
def test_name_is_a_queues(name: str) -> None:
    assert QueueName(name) == name
    assert type(QueueName(name)) is QueueName


@for_each(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-",
        "-q",
        "@q",
        "a/b",
        "a\\b",
        "a:b",
        "a,b",
        "a b",
        "a%2e",
        "a\0",
        "a\n",
        "\na",
        "a\r",
        "ä",
        "а",
        "٣",
        "q" * 101,
        "/-/",
        "q" * 10_000,
    ],
)
def test_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        QueueName(name)
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


@given(st.from_regex(GRAMMAR, fullmatch=True))
def test_every_name_of_the_grammar_is_a_queues_and_a_plain_file_name(name: str) -> None:
    assert QueueName(name) == name
    assert len(name.encode()) <= 100
    assert not set(name) & set("/:,\0\n%")
    assert name not in (".", "..")


@given(st.text(max_size=8))
def test_any_text_is_a_queues_name_or_refused(text: str) -> None:
    allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
    good = bool(text) and text[0] in allowed and all(character in allowed + ".@-" for character in text)
    if good:
        assert QueueName(text) == text
    else:
        with pytest.raises(InvalidName):
            QueueName(text)


# Bodies in memory, and the rest


@pytest.mark.parametrize("data", [b"", b"body"])
async def test_bytes_body_gives_its_bytes(data: bytes) -> None:
    body = BytesBody(data)
    assert body.size == len(data)
    assert await body.read() == data
    assert b"".join([chunk async for chunk in body]) == data
    assert b"" not in [chunk async for chunk in body]
    await body.aclose()


async def test_damaged_body_raises_however_it_is_read() -> None:
    body = DamagedBody(4, "torn")
    assert body.size == 4
    with pytest.raises(CorruptMessage, match="torn"):
        await body.read()
    with pytest.raises(CorruptMessage, match="torn"):
        [chunk async for chunk in body]
    await body.aclose()


def test_checksum_goes_on() -> None:
    assert checksum(b"123456789") == 0xCBF43926  # the check value of CRC-32
    assert checksum(b"56789", checksum(b"1234")) == checksum(b"123456789")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("q", '"q"'), ("", '""'), ("a\nb\0", r'"a\nb\x00"'), ("ü", r'"\xfc"'), ("x" * 61, '"' + "x" * 60 + '..."')],
)
def test_text_is_shortened_for_one_line(text: str, shown: str) -> None:
    assert shorten(text) == shown
