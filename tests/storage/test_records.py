"""Records are replaced without ever being half there, whoever else works on them."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.message import with_checksum, without_checksum
from mq.storage.files.calls import FileKind
from mq.storage.files.fake import make_calls
from mq.storage.files.records import Records
from simulation.calls import FaultyCalls
from tests.cases import for_each

SHOWN: Final = ("open", "write", "fsync", "unlink")


class Shelf:
    """Records in a folder of a fake file system, and the hands of somebody else."""

    def __init__(self) -> None:
        self.calls = FaultyCalls(make_calls(), "/records")
        self.calls.mkdir("/records")
        self.records = Records(self.calls, "/records")
        self.calls.log.clear()

    def files(self, kind: str = "kind") -> dict[str, bytes]:
        """Every file of a kind."""
        found = {}
        for name, file in self.calls.names(f"/records/{kind}"):
            if file is FileKind.FILE:
                fd = self.calls.open(f"/records/{kind}/{name}", 0)
                found[name] = self.calls.read(fd, 1 << 20)
                self.calls.close(fd)
        return found

    def lay(self, name: str, content: bytes, kind: str = "kind") -> None:
        """A file, as a crash or somebody else may leave it."""
        if self.calls.kind(f"/records/{kind}") is None:
            self.calls.mkdir(f"/records/{kind}")
        fd = self.calls.open(f"/records/{kind}/{name}", 0o101)
        self.calls.write(fd, content)
        self.calls.close(fd)

    def shown(self) -> list[str]:
        """What was done to the medium; then forget it."""
        said = self.calls.said(*SHOWN)
        self.calls.log.clear()
        return said

    def just_before(self, verb: str, path: str, act: Callable[[], object]) -> None:
        """Somebody else does something just before a call."""
        meet = self.calls._meet

        def intrude(met: str, where: str, detail: str = "") -> None:
            if met == verb and where.endswith(path):
                self.calls._meet = meet  # type: ignore[method-assign]
                act()
            meet(met, where, detail)

        self.calls._meet = intrude  # type: ignore[method-assign]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def record(key: str, value: dict[str, Any]) -> bytes:
    return with_checksum(json.dumps({"key": key, "value": value}).encode())


# One after another


def test_a_record_comes_back_and_is_plain_json_with_a_checksum(shelf: Shelf) -> None:
    assert shelf.records.put("kind", "key", {"a": 1})
    assert shelf.records.all("kind") == {"key": {"a": 1}}
    assert {name: json.loads(without_checksum(content)) for name, content in shelf.files().items()} == {
        "kkey.1": {"key": "key", "value": {"a": 1}}
    }


def test_a_new_version_is_durable_before_the_old_one_goes(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    shelf.shown()
    assert not shelf.records.put("kind", "key", {"a": 2})
    said = shelf.shown()
    order = [
        said.index(line) for line in ("open kind/kkey.2 new", "fsync kind/kkey.2", "fsync kind", "unlink kind/kkey.1")
    ]
    assert order == sorted(order)
    assert list(shelf.files()) == ["kkey.2"]


def test_a_new_kind_is_durable_before_its_first_record(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {})
    said = shelf.calls.said("mkdir", "fsync", "write")
    assert said.index("mkdir kind") < said.index("fsync .")
    assert said.index("fsync .") < next(i for i, line in enumerate(said) if line.startswith("write"))


def test_a_drop_is_durable_and_takes_the_oldest_version_first(shelf: Shelf) -> None:
    shelf.lay("kkey.2", record("key", {"a": 2}))
    shelf.lay("kkey.10", record("key", {"a": 10}))
    assert shelf.records.all("kind") == {"key": {"a": 10}}
    shelf.shown()
    assert shelf.records.drop("kind", "key")
    assert shelf.shown() == ["unlink kind/kkey.2", "unlink kind/kkey.10", "open kind", "fsync kind"]
    assert not shelf.records.drop("kind", "key")
    assert not shelf.records.drop("other", "key")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=80), st.dictionaries(st.text(max_size=3), st.integers())), max_size=5))
def test_any_key_is_its_own(pairs: list[tuple[str, dict[str, int]]]) -> None:
    shelf = Shelf()
    expected: dict[str, Any] = {}
    for key, value in pairs:
        assert shelf.records.put("kind", key, value) is (key not in expected)
        expected[key] = value
        assert shelf.records.all("kind") == expected
    for name in shelf.files() if expected else ():
        assert len(name.encode()) <= 255
        assert name.isascii()
    for key in list(expected):
        assert shelf.records.drop("kind", key)
        del expected[key]
        assert shelf.records.all("kind") == expected


@for_each("key", ["", ".", "..", "a/b", "k" * 5000, "ü" * 255, "a.1", "%41", "A", "\n", "~", "\udcff"], shelf=Shelf)
def test_an_odd_key_is_its_own(shelf: Shelf, key: str) -> None:
    others = {"a": {"n": 1}, "%2E": {"n": 2}, "k" * 5001: {"n": 3}}
    for other, value in others.items():
        shelf.records.put("kind", other, value)
    assert shelf.records.put("kind", key, {"key": 1})
    assert not shelf.records.put("kind", key, {"key": 2})
    assert shelf.records.all("kind") == {**others, key: {"key": 2}}
    assert all(name.isascii() and len(name) <= 255 for name in shelf.files())
    assert shelf.records.drop("kind", key)
    assert shelf.records.all("kind") == others


# What a crash leaves


WHOLE: Final = record("key", {"text": "x" * 60})


@pytest.mark.slow
@for_each("length", range(len(WHOLE)))
@for_each("fill", [b"", b"\0"], shelf=Shelf)
def test_a_version_torn_anywhere_is_passed_over(shelf: Shelf, length: int, fill: bytes) -> None:
    shelf.lay("kkey.1", record("key", {"a": 1}))
    shelf.lay("kkey.2", WHOLE[:length] + fill * (len(WHOLE) - length))
    assert shelf.records.all("kind") == {"key": {"a": 1}}
    shelf.records.put("kind", "key", {"a": 3})
    assert list(shelf.files()) == ["kkey.3"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"1",
        b"[" * 3000,
        b'{"key":"key"}',
        b'{"value":{}}',
        b'{"key":1,"value":{}}',
        b'{"key":"key","value":[]}',
    ],
)
def test_a_version_that_is_no_record_is_passed_over(shelf: Shelf, content: bytes) -> None:
    shelf.lay("kkey.1", record("key", {"a": 1}))
    shelf.lay("kkey.2", with_checksum(content))
    assert shelf.records.all("kind") == {"key": {"a": 1}}


def test_a_version_without_a_checksum_is_passed_over(shelf: Shelf) -> None:
    shelf.lay("kkey.1", json.dumps({"key": "key", "value": {}}).encode())
    assert shelf.records.all("kind") == {}


@pytest.mark.slow
@for_each("bit", range(8 * len(WHOLE)), shelf=Shelf)
def test_a_version_with_one_bit_changed_is_passed_over(shelf: Shelf, bit: int) -> None:
    changed = bytearray(WHOLE)
    changed[bit // 8] ^= 1 << bit % 8
    shelf.lay("kkey.1", bytes(changed))
    assert shelf.records.all("kind") == {}
    assert shelf.records.get("kind", "key") is None
    assert shelf.records.passed_over == 2


def test_a_record_under_the_name_of_another_is_passed_over(shelf: Shelf) -> None:
    shelf.lay("kother.1", WHOLE)
    assert shelf.records.all("kind") == {}
    assert shelf.records.get("kind", "other") is None


def test_of_two_whole_versions_the_higher_counts(shelf: Shelf) -> None:
    for version in (9, 10, 11):
        shelf.lay(f"kkey.{version}", record("key", {"version": version}))
    assert shelf.records.all("kind") == {"key": {"version": 11}}


def test_a_record_of_which_nothing_is_whole_is_none(shelf: Shelf) -> None:
    shelf.lay("kkey.1", b"{")
    assert shelf.records.all("kind") == {}
    assert shelf.records.drop("kind", "key")
    assert shelf.files() == {}


SMALL = record("key", {"a": 1})
HALVES = [b"", SMALL[:9], SMALL[:-1], bytes(len(SMALL)), SMALL[:9] + bytes(5) + SMALL[14:]]


@pytest.mark.parametrize("content", HALVES)
def test_a_first_version_that_a_crash_left_half_is_taken_away(shelf: Shelf, content: bytes) -> None:
    shelf.lay("kkey.1", content)
    assert shelf.records.check(is_settled=False) == {}
    assert shelf.files() == {}


@for_each("content", HALVES)
@for_each("version, is_settled, answered", [(1, True, False), (1, False, True), (2, False, False)], shelf=Shelf)
def test_a_half_version_that_no_crash_can_have_left_is_damaged(
    shelf: Shelf, content: bytes, version: int, is_settled: bool, answered: bool
) -> None:
    shelf.lay(f"kkey.{version}", content)
    known = {("kind", "kkey")} if answered else set()
    assert list(shelf.records.check(is_settled=is_settled, answered=known)) == [("kind", "kkey")]
    assert shelf.files() == {f"kkey.{version}": content}


def test_a_first_version_that_was_written_to_its_end_and_changed_since_is_damaged(shelf: Shelf) -> None:
    content = SMALL.replace(b"1", b"2", 1)
    shelf.lay("kkey.1", content)
    assert list(shelf.records.check(is_settled=False)) == [("kind", "kkey")]
    assert shelf.files() == {"kkey.1": content}


def test_foreign_files_are_left_alone(shelf: Shelf) -> None:
    foreign = {"README": b"x", "kkey": b"x", "key.1": b"x", "kkey.1~": b"x", "kkey.x": b"x", "kkey.1.2": b"x"}
    for name, content in foreign.items():
        shelf.lay(name, content)
    shelf.calls.mkdir("/records/kind/kfolder.1")
    assert shelf.records.all("kind") == {}
    shelf.records.put("kind", "key", {})
    shelf.records.drop("kind", "key")
    assert shelf.files() == foreign


# Kept names


def test_a_change_lists_no_folder_once_names_are_kept(shelf: Shelf) -> None:
    for number in range(20):
        shelf.records.put("kind", f"key{number}", {"a": number})
    shelf.records.keep_names()
    others = shelf.records.through(shelf.calls)
    shelf.calls.log.clear()
    others.put("kind", "key3", {"a": "new"})
    shelf.records.put("other", "key", {})
    shelf.records.drop("kind", "key4")
    others.drop("other", "key")
    assert shelf.records.versions("kind", "key3") == [2]
    assert shelf.records.newest("kind", ["key3", "key4"]) == ["/records/kind/kkey3.2"]
    assert shelf.calls.said("names") == []
    assert shelf.records.all("kind") == {
        f"key{number}": {"a": "new" if number == 3 else number} for number in range(20) if number != 4
    }


@pytest.mark.slow
def test_calls_of_a_change_are_the_same_among_many_records(shelf: Shelf) -> None:
    shelf.records.keep_names()
    counts = []
    for number in range(300):
        shelf.calls.log.clear()
        shelf.records.put("kind", f"key{number}", {})
        shelf.records.put("kind", f"key{number}", {"a": 1})
        shelf.records.drop("kind", "key0")
        counts.append(len(shelf.calls.log))
    assert counts[1] == counts[-1]


# When the medium refuses or fails


@for_each("verb, nth", [("open", 1), ("open", 2), ("write", 1), ("write", 2), ("fsync", 1)])
@for_each("number", [errno.ENOSPC, errno.EIO, errno.EMFILE], shelf=Shelf)
def test_a_put_that_is_refused_leaves_the_old_value(shelf: Shelf, verb: str, number: int, nth: int) -> None:
    shelf.calls.most_written = 5
    shelf.records.put("kind", "key", {"a": 1})
    before = shelf.files()
    shelf.calls.fail(verb, number, nth=nth)
    with pytest.raises(OSError, match=r"\[Errno"):
        shelf.records.put("kind", "key", {"a": 2})
    shelf.calls.faults.clear()
    assert shelf.files() == before
    assert shelf.calls.opened == {}
    shelf.records.put("kind", "key", {"a": 3})
    assert shelf.records.all("kind") == {"key": {"a": 3}}


def test_a_put_whose_folder_cannot_be_synced_leaves_both(shelf: Shelf) -> None:
    """Which of them is on the medium is not known: neither may go."""
    shelf.records.put("kind", "key", {"a": 1})
    shelf.calls.fail("fsync", errno.EIO, path="kind")
    with pytest.raises(OSError, match="Input/output"):
        shelf.records.put("kind", "key", {"a": 2})
    assert list(shelf.files()) == ["kkey.1", "kkey.2"]


def test_an_old_version_that_stays_does_no_harm(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    shelf.calls.fail("unlink", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        shelf.records.put("kind", "key", {"a": 2})
    assert shelf.records.all("kind") == {"key": {"a": 2}}


@pytest.mark.parametrize("size", [1, 7])
def test_a_record_is_written_and_read_in_pieces(shelf: Shelf, size: int) -> None:
    shelf.calls.most_written = size
    shelf.records.put("kind", "key", {"a": "x" * 100})
    assert shelf.records.all("kind") == {"key": {"a": "x" * 100}}


# Others on the same root


def test_two_may_put_one_record_at_once(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    other = Records(shelf.calls, "/records")
    shelf.just_before("open", "kkey.2", lambda: other.put("kind", "key", {"b": 1}))
    assert not shelf.records.put("kind", "key", {"a": 2})
    assert shelf.records.all("kind") == {"key": {"a": 2}}


def test_two_may_put_the_first_record_of_a_kind_at_once(shelf: Shelf) -> None:
    other = Records(shelf.calls, "/records")
    shelf.just_before("mkdir", "kind", lambda: other.put("kind", "other", {"b": 1}))
    assert shelf.records.put("kind", "key", {"a": 2})
    assert shelf.records.all("kind") == {"key": {"a": 2}, "other": {"b": 1}}


def test_one_may_put_what_another_drops(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    other = Records(shelf.calls, "/records")
    shelf.just_before("unlink", "kkey.1", lambda: other.drop("kind", "key"))
    shelf.records.put("kind", "key", {"a": 2})
    assert shelf.records.all("kind") == {}


def test_of_two_who_drop_a_record_one_has_done_it(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    other = Records(shelf.calls, "/records")
    dropped = []
    shelf.just_before("unlink", "kkey.1", lambda: dropped.append(other.drop("kind", "key")))
    dropped.append(shelf.records.drop("kind", "key"))
    assert dropped == [True, False]


def test_a_record_replaced_while_it_is_read_is_read_anew(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    other = Records(shelf.calls, "/records")
    shelf.just_before("open", "kkey.1", lambda: other.put("kind", "key", {"a": 2}))
    assert shelf.records.all("kind") == {"key": {"a": 2}}


def test_a_record_dropped_while_it_is_read_is_gone(shelf: Shelf) -> None:
    shelf.records.put("kind", "key", {"a": 1})
    other = Records(shelf.calls, "/records")
    shelf.just_before("open", "kkey.1", lambda: other.drop("kind", "key"))
    assert shelf.records.all("kind") == {}
