"""What a disk holds after a cut, on recordings of a few records."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.images import CrashImages, Cut, Fate, choose_cuts, copy_sparse, last_moments
from tests.crash.recording import HEADER, Kind, Record, Recording

SIZE = 1 << 16


def write(offset: int, data: bytes) -> Record:
    return Record(Kind.WRITE, 0, offset, data)


def mark(text: str) -> Record:
    return Record(Kind.MARK, 0, 0, text.encode())


FLUSH = Record(Kind.FLUSH, 0, 0, b"")
RECORDS = [
    write(0, b"a" * 512),
    FLUSH,
    mark("one"),
    write(0, b"b" * 512),
    write(512, b"c" * 512),
    mark("two"),
    FLUSH,
    write(1024, b"d" * 512),
    mark("three"),
]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    base = tmp_path / "base"
    with base.open("wb") as empty:
        empty.truncate(SIZE)
    return Recording(base, RECORDS)


def after(recording: Recording, folder: Path, *cuts: Cut) -> list[bytes]:
    """The first sectors of the disks after these cuts, a letter each."""
    images = CrashImages(recording, 512, folder / "images")
    found = []
    for cut in cuts:
        images.build(cut, folder / "image")
        disk = (folder / "image").read_bytes()
        assert len(disk) == SIZE
        found.append(disk[0:1536:512].replace(b"\0", b"-"))
    return found


@pytest.mark.parametrize(
    ("k", "lost", "kept"),
    [
        (0, b"---", b"---"),
        (1, b"---", b"a--"),
        (2, b"a--", b"a--"),
        (6, b"a--", b"bc-"),
        (7, b"bc-", b"bc-"),
        (9, b"bc-", b"bcd"),
    ],
)
def test_what_was_flushed_is_there_the_rest_is_lost_or_kept(
    recording: Recording, tmp_path: Path, k: int, lost: bytes, kept: bytes
) -> None:
    assert after(recording, tmp_path, Cut(k, Fate.LOST, 0), Cut(k, Fate.KEPT, 0)) == [lost, kept]


def test_torn_is_any_subset(recording: Recording, tmp_path: Path) -> None:
    cuts = [Cut(6, Fate.TORN, seed) for seed in range(60)]
    assert set(after(recording, tmp_path, *cuts)) == {b"a--", b"b--", b"ac-", b"bc-"}


def test_a_cut_is_the_same_each_time(recording: Recording, tmp_path: Path) -> None:
    cuts = [Cut(9, Fate.TORN, seed) for seed in range(20)]
    assert after(recording, tmp_path, *cuts) == after(recording, tmp_path, *cuts)


def test_a_write_can_be_torn_between_atoms_only(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(bytes(SIZE))
    recording = Recording(base, [write(0, b"x" * 2048)])
    images = CrashImages(recording, 1024, tmp_path / "images")
    seen = set()
    for seed in range(200):
        images.build(Cut(1, Fate.TORN, seed), tmp_path / "image")
        seen.add((tmp_path / "image").read_bytes()[0:2048:512].replace(b"\0", b"-"))
    assert seen == {b"----", b"xx--", b"--xx", b"xxxx"}


def test_cuts_can_be_asked_for_in_any_order(recording: Recording, tmp_path: Path) -> None:
    cuts = [Cut(k, Fate.LOST, 0) for k in (9, 1, 6, 0)]
    assert after(recording, tmp_path, *cuts) == [b"bc-", b"---", b"a--", b"---"]


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"here")
    copy_sparse(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks < 1024


def test_last_moments_are_just_before_each_flush_and_at_the_end(recording: Recording) -> None:
    assert [cut.k for cut in last_moments(recording, 0)] == [1, 6, 9]
    assert [cut.k for cut in last_moments(recording, 2)] == [6, 9]


@pytest.mark.parametrize("count", [1, 2, 10, 100])
def test_cuts_are_as_many_as_asked_for_in_order_and_last_moments_among_them(recording: Recording, count: int) -> None:
    cuts = choose_cuts(recording, 2, count, Random(1))
    assert len(cuts) == count
    assert [cut.k for cut in cuts] == sorted(cut.k for cut in cuts)
    assert all(2 <= cut.k <= 9 for cut in cuts)
    if count == 100:
        assert set(last_moments(recording, 2)) <= set(cuts)
        assert {cut.fate for cut in cuts} == set(Fate)


def test_a_recording_tells_marks_and_flushes(recording: Recording) -> None:
    assert recording.marks() == ["one", "two", "three"]
    assert [recording.marks(k) for k in (0, 2, 3, 6, 8)] == [[], [], ["one"], ["one", "two"], ["one", "two"]]
    assert recording.point("two") == 6
    assert [recording.flushed(k) for k in (0, 1, 2, 6, 7)] == [0, 0, 1, 1, 6]
    assert [recording.flushes(0, 2), recording.flushes(2, 6), recording.flushes(0, 9)] == [1, 0, 2]


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    records = [Record(Kind.WRITE, 5, 4096, b"data"), Record(Kind.MARK, 6, 0, b"mark"), Record(Kind.FLUSH, 7, 0, b"")]
    packed = [HEADER.pack(r.kind.value, r.time_ns, r.offset, len(r.data)) + r.data for r in records]
    log.write_bytes(b"".join(packed))
    recording = Recording.read(tmp_path / "base", log)
    assert recording.records == records
    assert recording.time_ns(2) == 6
