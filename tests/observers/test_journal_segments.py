"""Segments: what is written comes back; what is torn, damaged or refused is left out, and nothing else is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mq.lifecycle import Kind, State, Transition
from mq.message import MessageIds
from mq.observers.journal_rows import GAP, SCHEMA, note_batch, transitions_batch
from mq.observers.journal_segments import JournalSegment, Limits, SegmentWriter, segment_paths
from tests.observers.journals import LIFE, as_row, flat, lives, read_rows, transitions_in

KEEP_ALL = Limits()


def write_all(folder: Path, batches: list[list[Transition]], limits: Limits = KEEP_ALL) -> None:
    writer = SegmentWriter(folder, LIFE, limits)
    for batch in batches:
        writer.write(transitions_batch(flat(batch)))
        writer.rotate()
    writer.close()


def test_every_kind_and_field_comes_back(tmp_path: Path) -> None:
    id = MessageIds().new()
    rows = [
        Transition(kind, "q", id, source, target, 10**18 + number, None if number % 2 else 1 << 40, number, to, door)
        for number, (kind, source, target, to, door) in enumerate(
            (kind, source, target, "grave" if kind is Kind.DEAD_LETTER else None, "http" if kind is Kind.LEASE else "")
            for kind in Kind
            for source in (None, *State)
            for target in (None, *State)
        )
    ]
    write_all(tmp_path, [rows])
    read = read_rows(tmp_path)
    assert transitions_in(read) == [as_row(row) for row in rows]
    assert [row["sequence"] for row in read] == list(range(len(rows)))


def test_the_head_says_whose_it_is(tmp_path: Path) -> None:
    write_all(tmp_path, [list(lives(1))])
    [path] = segment_paths(tmp_path)
    head = JournalSegment(path).head
    assert head == {
        "mq.journal": "1",
        "segment": "0",
        **{name: str(value) for name, value in LIFE._asdict().items()},
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.name == "20231114T221320Z-42-cafe-000000.arrow"


def test_other_tools_read_it(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    write_all(tmp_path, [list(lives(3)), list(lives(2))])
    table = pa.ipc.open_stream(segment_paths(tmp_path)[0]).read_all()
    assert table.num_rows == 25
    assert table.schema.equals(SCHEMA)


@pytest.mark.slow
def test_a_crash_at_any_byte_leaves_the_whole_batches(tmp_path: Path) -> None:
    batches = [list(lives(2)), list(lives(1, "other")), list(lives(3))]
    writer, ends = SegmentWriter(tmp_path, LIFE), []
    for batch in batches:
        writer.write(transitions_batch(flat(batch)))
        [path] = segment_paths(tmp_path)
        ends.append(path.stat().st_size)
    writer.close()
    data = path.read_bytes()
    expected = [as_row(row) for batch in batches for row in batch]
    for cut in (*range(0, ends[0], 7), *range(ends[0] - 8, ends[1] + 8), *range(ends[1], len(data) + 1, 7)):
        path.write_bytes(data[:cut])
        segment = JournalSegment(path)
        whole = [rows for rows, end in zip(batches, ends, strict=True) if end <= cut]
        assert sum(batch.num_rows for batch in segment.batches()) == sum(map(len, whole)), cut
    path.write_bytes(data)
    assert transitions_in(read_rows(tmp_path)) == expected


def test_a_page_that_never_reached_the_disk_is_not_taken_for_rows(tmp_path: Path) -> None:
    first, second = list(lives(40)), list(lives(60))
    writer = SegmentWriter(tmp_path, LIFE)
    writer.write(transitions_batch(flat(first)))
    [path] = segment_paths(tmp_path)
    begin = path.stat().st_size
    writer.write(transitions_batch(flat(second)))
    data = path.read_bytes()
    writer.close()
    found = 0
    for hole in range(begin, len(data) - 64, 512):
        path.write_bytes(data[:hole] + bytes(64) + data[hole + 64 :])
        segment = JournalSegment(path)
        rows = [row for batch in segment.batches() for row in batch.to_pylist()]
        if path.read_bytes() == data:
            continue  # it was zeros before
        assert [row["kind"] for row in rows[: len(first)]] == [row.kind.value for row in first]
        if len(rows) > len(first):  # the hole hit padding, or what lies under a null
            assert [row["id"] for row in rows[len(first) :]] == [str(row.id) for row in second]
        else:
            found += 1
    assert found > 20


def test_segments_rotate_by_size_and_the_oldest_go(tmp_path: Path) -> None:
    batches = [list(lives(100)) for _ in range(40)]
    write_all(tmp_path, batches, Limits(bytes=1 << 18))
    paths = segment_paths(tmp_path)
    sizes = [path.stat().st_size for path in paths]
    assert 4 <= len(paths) <= 12
    assert sum(sizes) <= 1 << 18
    rows = read_rows(tmp_path)
    numbers = [row["sequence"] for row in rows]
    assert numbers == list(range(numbers[0], 40 * 500))
    assert numbers[0] > 0
    assert int(JournalSegment(paths[0]).head["segment"]) > 0


def test_segments_rotate_by_age_and_old_ones_go(tmp_path: Path) -> None:
    now = 0.0
    writer = SegmentWriter(tmp_path, LIFE, Limits(seconds=80.0), clock=lambda: now)
    for _ in range(3):
        writer.write(transitions_batch(flat(lives(1))))
        writer.rotate()
        now += 10.0
    writer.write(transitions_batch(flat(lives(1))))
    writer.rotate()
    paths = segment_paths(tmp_path)
    assert len(paths) == 2
    os.utime(paths[0], (1, 1))
    writer.write(transitions_batch(flat(lives(1))))
    writer.close()
    assert segment_paths(tmp_path) == [*paths[1:], *segment_paths(tmp_path)[1:]]


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.arrow").mkdir()
    write_all(tmp_path, [list(lives(5)) for _ in range(5)], Limits(bytes=1))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "folder.arrow").is_dir()


class FullDisk:
    """Takes so many bytes, then refuses, as ENOSPC does: with a short write first."""

    def __init__(self) -> None:
        self.room = 1 << 30

    def __call__(self, handle: int, data: bytes | memoryview) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(handle, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 100, 2000, 5000])
def test_a_refused_batch_leaves_nothing_and_the_next_one_is_whole(tmp_path: Path, room: int) -> None:
    disk = FullDisk()
    writer = SegmentWriter(tmp_path, LIFE, write=disk)
    first, second, third = list(lives(2)), list(lives(20)), list(lives(1))
    writer.write(transitions_batch(flat(first)))
    disk.room = room
    with pytest.raises(OSError, match="No space"):
        writer.write(transitions_batch(flat(second)))
    assert [is_torn(path) for path in segment_paths(tmp_path)] == [False]
    disk.room = 1 << 30
    writer.write(note_batch(GAP, 0, count=len(second)), missing=len(second) - 1)
    writer.write(transitions_batch(flat(third)))
    writer.close()
    rows = read_rows(tmp_path)
    assert transitions_in(rows) == [as_row(row) for row in first + third]
    assert [row["sequence"] for row in rows] == [*range(10), 10, *range(110, 115)]
    assert [(row["count"]) for row in rows if row["kind"] == GAP] == [100]
    assert not any(is_torn(path) for path in segment_paths(tmp_path))


def is_torn(path: Path) -> bool:
    segment = JournalSegment(path)
    assert sum(batch.num_rows for batch in segment.batches()) > 0
    return segment.torn
