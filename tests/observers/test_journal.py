"""The journal as an observer: it never blocks whoever tells it, and says what it could not keep."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.broker.kernel_clock import system_clock
from mq.cli.journal import journaling
from mq.errors import InvalidSetting
from mq.lifecycle import PROTOCOL, TRANSITIONS, Kind, Transition
from mq.observers.journal import Journal, open_journal
from mq.observers.journal_segments import Limits, SegmentWriter, segment_paths
from mq.settings import Settings
from tests.observers.journals import LIFE, as_row, kinds_of, lives, read_rows, transitions_in


class Disk:
    """A disk that can be made slow, or full."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.entered = threading.Event()
        self.full = False

    def __call__(self, handle: int, data: bytes | memoryview) -> int:
        self.entered.set()
        assert self.may_go_on.wait(60)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(handle, data)


class Seen:
    """Notes everything, as the journal does."""

    def __init__(self) -> None:
        self.all: list[Transition] = []

    def saw(self, transitions: list[Transition]) -> None:
        self.all += transitions


def make(folder: Path, disk: Disk, backlog: int = 100_000) -> Journal:
    journal = Journal(SegmentWriter(folder, LIFE, write=disk), lambda: LIFE.started_ns, backlog)
    journal.start()
    return journal


def test_all_that_was_told_is_there_in_order(tmp_path: Path) -> None:
    told = list(lives(5000))
    journal = make(tmp_path, Disk())
    for number in range(0, len(told), 7):
        journal.saw(told[number : number + 7])
    journal.close()
    rows = read_rows(tmp_path)
    assert transitions_in(rows) == [as_row(row) for row in told]
    assert kinds_of(rows) == ["start", "stop"]
    assert [row["sequence"] for row in rows] == list(range(len(rows)))


def test_a_disk_that_hangs_blocks_nobody_and_the_gap_is_told(tmp_path: Path) -> None:
    disk = Disk()
    journal = make(tmp_path, disk, backlog=1000)
    disk.entered.clear()
    disk.may_go_on.clear()
    told = list(lives(1000))
    begun = time.perf_counter()
    for number in range(0, len(told), 10):
        journal.saw(told[number : number + 10])
    assert time.perf_counter() - begun < 5  # it takes a millisecond; had it waited for the disk, a minute
    assert disk.entered.wait(10)
    disk.may_go_on.set()
    deadline = time.monotonic() + 30
    while journal._fields and time.monotonic() < deadline:
        time.sleep(0.01)
    later = list(lives(2))
    journal.saw(later)
    journal.close()
    rows = read_rows(tmp_path)
    kept = transitions_in(rows)
    [gap] = [row for row in rows if row["kind"] == "gap"]
    assert kept == [as_row(row) for row in told[: len(kept) - len(later)] + later]
    assert gap["count"] == len(told) - (len(kept) - len(later)) > 3000
    assert gap["since"].timestamp() == told[len(kept) - len(later)].time_ns / 1e9
    assert rows[-1]["sequence"] == len(told) + len(later) + 1


def test_a_full_disk_costs_what_was_told_meanwhile_and_no_more(tmp_path: Path, caplog) -> None:
    disk = Disk()
    journal = make(tmp_path, disk)
    told = list(lives(30))
    journal.saw(told[:50])
    wait_for_rows(tmp_path, 51)
    disk.full = True
    journal.saw(told[50:100])
    deadline = time.monotonic() + 30
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    disk.full = False
    journal.saw(told[100:])
    journal.close()
    rows = read_rows(tmp_path)
    assert transitions_in(rows) == [as_row(row) for row in told[:50] + told[100:]]
    assert [row["count"] for row in rows if row["kind"] == "gap"] == [50]
    assert [row["sequence"] for row in rows][-1] == 151
    assert [record.getMessage() for record in caplog.records] == [
        "cannot write the journal, so message state changes are not being recorded: No space left on device",
        "message state changes missing from the journal: 50",
    ]


def wait_for_rows(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(read_rows(folder)) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_life_that_is_killed_leaves_what_was_written(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
from tests.observers.journals import LIFE, lives, read_rows
from mq.observers.journal import Journal
from mq.observers.journal_segments import SegmentWriter
folder = Path(sys.argv[1])
journal = Journal(SegmentWriter(folder, LIFE))
journal.start()
journal.saw(list(lives(20)))
while len(read_rows(folder)) < 101:
    time.sleep(0.01)
journal.saw(list(lives(20)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path.cwd(), timeout=60, check=False)
    assert done.returncode == -9
    rows = read_rows(tmp_path)
    assert transitions_in(rows) == [as_row(row) for row in lives(20)]
    assert kinds_of(rows) == ["start"]  # no "stop": what came last is unknown


def test_a_life_that_is_killed_at_once_leaves_its_beginning(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from tests.observers.journals import LIFE, lives
from mq.observers.journal import Journal
from mq.observers.journal_segments import SegmentWriter
journal = Journal(SegmentWriter(Path(sys.argv[1]), LIFE))
journal.start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path.cwd(), timeout=60, check=False)
    assert done.returncode == -9
    assert kinds_of(read_rows(tmp_path)) == ["start"]


def test_the_beginning_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, int]] = []

    def fsync(handle: int) -> None:
        status = os.fstat(handle)
        synced.append((stat.S_ISDIR(status.st_mode), status.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    journal = make(tmp_path, Disk())
    [(is_folder, size), (is_folder_too, _)] = synced
    assert (is_folder, is_folder_too) == (False, True)
    [segment] = segment_paths(tmp_path)
    assert segment.stat().st_size == size
    assert kinds_of(read_rows(tmp_path)) == ["start"]
    journal.close()


def test_a_beginning_that_cannot_be_synced_is_told_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        journal = make(tmp_path, Disk())
    assert "may be lost in a power failure: Input/output error" in caplog.text
    told = list(lives(2))
    journal.saw(told)
    journal.close()
    assert transitions_in(read_rows(tmp_path)) == [as_row(row) for row in told]


def test_a_beginning_that_the_disk_refuses_is_told_as_a_gap(tmp_path: Path) -> None:
    disk = Disk()
    disk.full = True
    journal = make(tmp_path, disk)
    disk.full = False
    told = list(lives(2))
    journal.saw(told)
    journal.close()
    rows = read_rows(tmp_path)
    assert [(row["kind"], row["count"]) for row in rows[:1]] == [("gap", 1)]
    assert transitions_in(rows) == [as_row(row) for row in told]
    assert kinds_of(rows) == ["gap", "stop"]


async def test_it_says_what_other_observers_saw(tmp_path: Path) -> None:
    """A broker at work, with leases that end, dead letters and removals; two lives."""
    seen, random = Seen(), Random(1)
    settings = Settings(journal=str(tmp_path / "journal"))
    for _ in range(2):
        async with (
            journaling(settings, system_clock()) as journal,
            open_broker(f"posix:{tmp_path}/root", BrokerConfig(), observers=[seen, *journal.observers]) as broker,
        ):
            journal.begin(broker)
            await work(broker, random)
    rows = read_rows(tmp_path / "journal")
    assert transitions_in(rows) == [as_row(row) for row in seen.all]
    assert {row.kind for row in seen.all} >= {
        Kind.PUBLISH,
        Kind.LEASE,
        Kind.REQUEUE,
        Kind.REMOVE,
        Kind.DEAD_LETTER,
        Kind.REAP,
    }
    assert all((row.source, row.target) in TRANSITIONS[row.kind] for row in seen.all)
    protocols = {row.protocol for row in seen.all if row.kind in (Kind.PUBLISH, Kind.LEASE, Kind.REMOVE)}
    assert protocols == {"http"}
    assert {row.protocol for row in seen.all if row.kind in (Kind.DELIVER, Kind.REAP)} == {""}
    counts = [(row["queue"], row["count"]) for row in rows if row["kind"] in ("queue", "census")]
    assert counts[0] == ("", 0)
    assert counts[-1][1] == sum(count for _, count in counts[1:-1]) > 0
    begin = next(number for number, row in enumerate(rows) if row["kind"] == "census" and row["count"])
    published = {row["id"] for row in rows[:begin] if row["kind"] == "publish"}
    removed = {row["id"] for row in rows[:begin] if row["kind"] == "remove"}
    found = [row for row in rows if row["kind"] == "found"]
    assert {row["id"] for row in found} == published - removed
    assert len(found) == counts[-1][1]


async def work(broker: Broker, random: Random) -> None:
    token = PROTOCOL.set("http")
    try:
        for queue in ("q", "grave"):
            await broker.create_queue(queue)
        await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "grave"})
        for number in range(40):
            await broker.publish("q", b"x" * number)
        for _ in range(50):
            message = await broker.fetch("q")
            if message is None:
                break
            await message.body.aclose()
            if random.random() < 0.5:
                await broker.remove("q", message.id, receipt=message.receipt)
            else:
                await broker.requeue("q", message.id, receipt=message.receipt)
        await trio.sleep(0.05)
    finally:
        PROTOCOL.reset(token)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSetting, match="cannot write the journal to"):
        open_journal(str(tmp_path / "file" / "journal"), Limits(), store="memory:", peers=0, version="0")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


async def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mq.observers.journal", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'mq\[journal\]'"):
        async with journaling(Settings(journal=str(tmp_path)), system_clock()):
            raise AssertionError("it was opened")


@pytest.mark.slow
def test_a_daemon_without_a_journal_loads_nothing_of_it() -> None:
    code = "import sys, mq.cli.serve; print([n for n in sys.modules if 'journal_' in n or n.startswith('pyarrow')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_nothing_wakes_it_when_nothing_happens(tmp_path: Path) -> None:
    disk = Disk()
    journal = make(tmp_path, disk)
    wait_for_rows(tmp_path, 1)
    size = segment_paths(tmp_path)[0].stat().st_size
    clock = time.pthread_getcpuclockid(journal._thread.ident)
    used, before, deadline = time.clock_gettime(clock), -1.0, time.monotonic() + 30
    while used != before and time.monotonic() < deadline:  # the thread has to have begun to wait
        time.sleep(0.05)
        before, used = used, time.clock_gettime(clock)
    time.sleep(0.3)  # it really has to be looked at for a while
    assert time.clock_gettime(clock) == used
    assert segment_paths(tmp_path)[0].stat().st_size == size
    journal.close()


def test_journal_folder_is_its_owners_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "journal"
    before = os.umask(0)
    try:
        open_journal(str(folder), Limits(), store="memory:", peers=0, version="0")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700, 0o700]
