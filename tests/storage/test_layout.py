"""The one test file of the codec: every entry has exactly one name, and every other name is foreign."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.layout import Layout, flat_name, is_queue_name, leaf_name, parse_flat, parse_leaf
from mq.storage.files.writes import plan
from mq.storage.interface import FRESH, Entry, Meta, Unlink
from tests.cases import for_each

ID: Final = MessageId("4ad814ab-213e-11e3-a9a3-0025904f6e08")
CLAIM: Final = "0123456789abcdef"
LONGEST: Final = Meta(10**15 - 1, 10**9 - 1, "f" * 16, 10**19 - 1, 10**15 - 1)
"""Every field as long as the grammar lets it be."""

ids: Final = st.builds(
    lambda bits: MessageId(str(UUID(int=bits & ~(0xF << 76 | 0x3 << 62) | 1 << 76 | 2 << 62))),
    st.integers(0, 2**128 - 1),
)
queues: Final = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}", fullmatch=True)
metas: Final = st.builds(
    Meta,
    st.none() | st.integers(0, 2 * 10**15 - 1),
    st.integers(0, 10**9 - 1),
    st.none() | st.integers(0, 2**64 - 1).map("{:016x}".format),
    st.none() | st.integers(0, 10**19 - 1),
    st.none() | st.integers(0, 10**15 - 1),
)


@given(ids, metas)
@example(ID, FRESH)
@example(ID, LONGEST)
@example(ID, Meta(deadline_ms=0))
@example(ID, Meta(order=0))
@example(ID, Meta(expires_ms=0))
def test_leaf_comes_back(id: MessageId, meta: Meta) -> None:
    assert parse_leaf(leaf_name(id, meta), "q", State.READY) == Entry("q", id, State.READY, meta)


@given(queues, ids, metas, st.sampled_from([State.NEW, State.DELAYED, State.REMOVED]))
def test_flat_name_comes_back(queue: str, id: MessageId, meta: Meta, state: State) -> None:
    assert parse_flat(flat_name(queue, id, meta), state) == Entry(queue, id, state, meta)


@given(queues, ids, metas, st.sampled_from(list(State)))
def test_planned_path_is_that_of_the_layout(queue: str, id: MessageId, meta: Meta, state: State) -> None:
    layout = Layout("/a/new", "/b/queues", "/c/delay", "/d/remove", "/e/state")  # mq-mover may be told any folders
    entry = Entry(queue, id, state, meta)
    assert plan(layout.by_state, Unlink(entry), 0).path == layout.path(entry)


@given(st.tuples(ids, metas), st.tuples(ids, metas))
def test_different_entries_have_different_names(one: tuple[MessageId, Meta], other: tuple[MessageId, Meta]) -> None:
    assert (leaf_name(*one) == leaf_name(*other)) == (one == other)


fields: Final = st.one_of(
    st.from_regex(r"[drcoe][0-9a-f]{0,20}", fullmatch=True),
    st.from_regex(r"[drcoe](0|[1-9][0-9]{0,19})", fullmatch=True),
    st.just(f"c{CLAIM}"),
)


@given(st.lists(fields, max_size=5), st.sampled_from(["", ",", "\n"]))
def test_whatever_is_read_is_the_only_name_of_its_entry(suffix: list[str], tail: str) -> None:
    name = ",".join([str(ID), *suffix]) + tail
    entry = parse_leaf(name, "q", State.READY)
    assert entry is None or leaf_name(entry.id, entry.meta) == name


def test_a_fresh_message_is_named_as_in_the_seed() -> None:
    assert leaf_name(ID) == ID
    assert flat_name("queue001", ID) == f"queue001:{ID}"


def test_fields_stand_in_one_order() -> None:
    assert leaf_name(ID, Meta(1700000000000, 2, CLAIM, 5)) == f"{ID},d1700000000000,r2,c{CLAIM},o5"


def test_longest_name_fits_a_file_system() -> None:
    longest = flat_name("q" * 100, ID, LONGEST)
    assert parse_flat(longest, State.DELAYED) == Entry("q" * 100, ID, State.DELAYED, LONGEST)
    assert len(longest) == 221 <= 255


FOREIGN_LEAVES: Final = {
    "empty": "",
    "not an id": "README.md",
    "uppercase": str(ID).upper(),
    "one digit uppercase": "4Ad814ab-213e-11e3-a9a3-0025904f6e08",
    "in braces": f"{{{ID}}}",
    "as a URN": f"urn:uuid:{ID}",
    "without hyphens": str(ID).replace("-", ""),
    "version 4": "4ad814ab-213e-41e3-a9a3-0025904f6e08",
    "version 6": "4ad814ab-213e-61e3-a9a3-0025904f6e08",
    "wrong variant": "4ad814ab-213e-11e3-c9a3-0025904f6e08",
    "one digit less": str(ID)[:-1],
    "one digit more": f"{ID}0",
    "digits of another script": "4ad814ab-213e-11e3-a9a3-0025904f6e0٨",
    "a full-width digit": "4ad814ab-213e-11e3-a9a3-0025904f6e0８",
    "leading space": f" {ID}",
    "trailing space": f"{ID} ",
    "trailing newline": f"{ID}\n",
    "trailing NUL": f"{ID}\0",
    "an editor's backup": f"{ID}~",
    "a part of a copy": f"{ID}.part",
    "hidden": f".{ID}",
    "with a queue": f"q:{ID}",
    "empty suffix": f"{ID},",
    "empty field": f"{ID},,r1",
    "trailing comma": f"{ID},r1,",
    "unknown field": f"{ID},x1",
    "field without a value": f"{ID},d",
    "space in a field": f"{ID}, r1",
    "newline after a field": f"{ID},r1\n",
    "no receives": f"{ID},r0",
    "receives with a leading zero": f"{ID},r01",
    "negative receives": f"{ID},r-1",
    "receives too long": f"{ID},r1000000000",
    "receives in another script": f"{ID},r١",
    "deadline with a leading zero": f"{ID},d01700000000000",
    "deadline with a sign": f"{ID},d+1700000000000",
    "deadline with a fraction": f"{ID},d1700000000000.5",
    "deadline too long": f"{ID},d1000000000000000",
    "deadline in hexadecimal": f"{ID},dff",
    "deadline of nought, twice": f"{ID},d00",
    "claim too short": f"{ID},c0123456789abcde",
    "claim too long": f"{ID},c0123456789abcdef0",
    "claim uppercase": f"{ID},c0123456789ABCDEF",
    "order with a leading zero": f"{ID},o01",
    "order too long": f"{ID},o10000000000000000000",
    "order before claim": f"{ID},o1,c{CLAIM}",
    "receives before deadline": f"{ID},r1,d1",
    "deadline twice": f"{ID},d1,d2",
    "receives twice": f"{ID},r1,r1",
    "claim twice": f"{ID},c{CLAIM},c{CLAIM}",
}


@for_each("name", FOREIGN_LEAVES.values())
def test_leaf_is_refused(name: str) -> None:
    assert parse_leaf(name, "q", State.READY) is None
    assert parse_flat(f"q:{name}", State.NEW) is None


FOREIGN_QUEUES: Final = {
    "none": "",
    "hidden": ".q",
    "hyphen first": "-q",
    "at first": "@q",
    "dots": "..",
    "slash": "a/b",
    "space": "a b",
    "comma": "a,b",
    "percent": "a%2eb",
    "newline": "q\n",
    "not ASCII": "ü",
    "letters that look alike": "а",  # Cyrillic
    "digits of another script": "٣",
    "101 characters": "q" * 101,
}


@for_each("queue", FOREIGN_QUEUES.values())
def test_queue_is_refused(queue: str) -> None:
    assert not is_queue_name(queue)
    assert parse_flat(f"{queue}:{ID}", State.NEW) is None


@for_each("name", [str(ID), "", ":", f":{ID}", f"q::{ID}", f"a:b:{ID}", f"q;{ID}", f"q:{ID}:", "q:"])
def test_flat_name_is_refused(name: str) -> None:
    assert parse_flat(name, State.NEW) is None


@pytest.mark.parametrize("queue", ["q", "0", "_", "A.b@c-d_e", "a.", "q" * 100])
def test_queue_is_known(queue: str) -> None:
    assert is_queue_name(queue)


@given(st.text(st.characters(exclude_characters="/\0"), max_size=60))
def test_nothing_makes_the_parser_stumble(name: str) -> None:
    for found in (parse_leaf(name, "q", State.READY), parse_flat(name, State.NEW)):
        assert found is None or name.endswith(leaf_name(found.id, found.meta))


DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def test_page_shows_names_that_mq_reads() -> None:
    page = (DOCS / "on-disk.md").read_text()
    shown = re.findall(r"^(\w+:[0-9a-f-]{36}\S*)$", page, re.MULTILINE)
    assert shown
    for name in shown:
        entry = parse_flat(name, State.DELAYED)
        assert entry is not None
        assert flat_name(entry.queue, entry.id, entry.meta) == name
    longest = flat_name("q" * 100, ID, LONGEST)
    assert f"The longest has {len(longest)} of" in " ".join((DOCS / "dev" / "storage-formats.md").read_text().split())
