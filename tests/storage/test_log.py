"""The log: what was flushed is read again, what was not may be gone, and nothing else ever counts."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

import pytest

from mq.storage.files.calls import Calls, LinuxCalls
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.segments import PAGE, LogDamaged, Record, read_log, salvage
from simulation.calls import RecordingCalls
from tests.cases import for_each

SEGMENT: Final = 16 * PAGE
HEAD_BYTES: Final = 52


class Machine:
    """A folder for a log, and what a power cut does to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures: list[OSError] = []
        self.synced = 0
        self.calls: Calls = LinuxCalls()
        self.is_spare = True

    def log(self, *, in_thread: bool = False, largest: int = SEGMENT, in_use: bool = False) -> Log:
        return Log(
            self.calls,
            str(self.folder / "log"),
            self.bring,
            self.failures.append,
            smallest=SEGMENT,
            largest=largest,
            in_use=in_use,
            in_thread=in_thread,
            spare_room=lambda: nullcontext(self.is_spare),
        )

    def begun(self, *, in_thread: bool = False, largest: int = SEGMENT) -> Log:
        log = self.log(in_thread=in_thread, largest=largest)
        log.forget()
        log.begin()
        return log

    def bring(self, *_: object) -> None:
        self.synced += 1

    def payloads(self) -> list[bytes]:
        return [record.payload for record in read_log(self.calls, str(self.folder / "log"))]

    def page(self, segment: int, number: int) -> bytes:
        with (self.folder / "log" / str(segment)).open("rb") as file:
            file.seek(number * PAGE)
            return file.read(PAGE)

    def overwrite(self, segment: int, number: int, page: bytes) -> None:
        with (self.folder / "log" / str(segment)).open("r+b") as file:
            file.seek(number * PAGE)
            file.write(page)

    def lose(self, segment: int, number: int) -> None:
        """As if a page had never reached the medium."""
        self.overwrite(segment, number, bytes(PAGE))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def log(machine: Machine) -> Iterator[Log]:
    log = machine.begun()
    yield log
    log.close(failed=True)


def append(log: Log, *payloads: bytes, flush: bool = True) -> None:
    with log.lock:
        for payload in payloads:
            log.append(payload)
        if flush:
            log.flush()


def leave(log: Log) -> None:
    """Go on in the other segment, as while a checkpoint of this one is being made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "_checkpoint", lambda: setattr(log, "_leaving", None))
        log.empty()


# What counts


def test_what_was_appended_is_read_in_order(machine: Machine, log: Log) -> None:
    told = [b"one", b"x" * PAGE, b"", b"three pages" * 1000]
    append(log, *told)
    assert machine.payloads() == told


def test_the_file_is_as_described(machine: Machine, log: Log) -> None:
    append(log, b"body")
    head = machine.page(0, 0)
    magic, epoch, size, key, _ = struct.unpack_from("<8sQQ16s64s", head)
    assert (magic, size) == (b"mqlog-2\0", SEGMENT)
    assert struct.unpack_from("<I", head, 104) == (zlib.crc32(head[:104]),)
    page = machine.page(0, 1)
    assert struct.unpack_from("<4sIIQQ16sQ", page) == (
        b"mqr1",
        zlib.crc32(page[8 : HEAD_BYTES + 4]),
        4,
        epoch,
        1,
        key,
        0,
    )
    assert page[HEAD_BYTES:] == b"body".ljust(PAGE - HEAD_BYTES, b"\0")
    assert (machine.folder / "log" / "0").stat().st_mode & 0o777 == 0o600
    assert (machine.folder / "log" / "1").stat().st_size == SEGMENT


def test_a_record_of_an_earlier_epoch_does_not_count(machine: Machine, log: Log) -> None:
    append(log, b"old", b"older")
    stale = machine.page(0, 2)
    log.empty()
    append(log, b"elsewhere")  # the log goes on in the other segment
    log.empty()
    append(log, b"new")
    machine.overwrite(0, 2, stale)
    assert machine.payloads() == [b"new"]


def test_a_message_that_is_a_forged_record_does_not_count(machine: Machine, log: Log) -> None:
    """It has every field of the record that would follow but for the epoch's key, which nobody outside can know."""
    append(log, b"true")
    epoch = struct.unpack_from("<Q", machine.page(0, 0), 8)[0]
    tail = struct.pack("<IQQ16sQ", 6, epoch, 3, b"k" * 16, 1) + b"forged"
    forged = b"mqr1" + struct.pack("<I", zlib.crc32(tail)) + tail
    append(log, b"y" * (PAGE - HEAD_BYTES) + forged.ljust(PAGE, b"\0"))
    assert machine.page(0, 3).startswith(forged)
    machine.lose(0, 2)
    append(log, b"next")
    with pytest.raises(LogDamaged):  # what follows tells that the lost one was flushed
        machine.payloads()
    machine.lose(0, 4)
    assert machine.payloads() == [b"true"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_was_never_flushed_may_be_lost_out_of_order(machine: Machine, log: Log, lost: int) -> None:
    append(log, b"1", b"2", b"3", flush=False)
    machine.lose(0, lost)
    assert machine.payloads() == [b"1", b"2", b"3"][: lost - 1]


def test_so_may_the_first_ones_after_a_segment_was_freed(machine: Machine, log: Log) -> None:
    append(log, b"done")
    log.empty()
    append(log, b"4", b"5", flush=False)
    machine.lose(1, 1)
    assert machine.payloads() == []


@pytest.mark.parametrize("lost", [1, 2])
def test_a_record_that_was_flushed_and_cannot_be_read_is_damage(machine: Machine, log: Log, lost: int) -> None:
    append(log, b"1", b"2")
    append(log, b"3")
    machine.lose(0, lost)
    with pytest.raises(LogDamaged, match=rf"log/0 at offset {lost * PAGE}"):
        machine.payloads()


def test_so_is_a_whole_segment_before_the_one_that_follows(machine: Machine, log: Log) -> None:
    append(log, b"left")
    leave(log)
    append(log, b"followed")
    machine.lose(0, 1)
    with pytest.raises(LogDamaged):
        machine.payloads()


def test_a_header_that_cannot_be_read_is_damage(machine: Machine, log: Log) -> None:
    append(log, b"1")
    machine.overwrite(0, 0, machine.page(0, 0).replace(b"mqlog", b"mqlug"))
    with pytest.raises(LogDamaged, match="header"):
        machine.payloads()


def test_records_go_on_through_both_segments(machine: Machine, log: Log) -> None:
    told = [b"%d" % number for number in range(15)]
    append(log, *told)
    leave(log)
    append(log, b"more")
    assert machine.payloads() == [*told, b"more"]


def test_a_segment_is_flushed_before_a_record_follows_in_the_other(machine: Machine) -> None:
    machine.calls = recorded = RecordingCalls(LinuxCalls(), str(machine.folder))
    log = machine.begun()
    append(log, b"not flushed", flush=False)
    recorded.log.clear()
    leave(log)
    append(log, b"follows", flush=False)
    assert recorded.said("fdatasync", "write_at") == ["fdatasync log/0", f"write_at log/1 {PAGE} at {PAGE}"]
    log.close(failed=True)


# Checkpoints


def test_a_segment_is_freed_after_a_sync_and_grows(machine: Machine) -> None:
    log = machine.begun(largest=2 * SEGMENT)
    append(log, *[b"x" * PAGE] * 7)
    assert machine.synced == 0
    append(log, b"one more page than there is")
    append(log, b"and more" * PAGE)
    assert machine.synced == 1
    assert machine.payloads()[-1] == b"and more" * PAGE
    sizes = [(machine.folder / "log" / name).stat().st_size for name in "01"]
    assert sizes == [2 * SEGMENT, SEGMENT]
    log.close()
    assert machine.payloads() == []


def test_commits_go_on_beside_a_checkpoint_and_wait_for_the_next(machine: Machine) -> None:
    syncs, goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def sync(*_: object) -> None:
        syncs.release()
        assert goes_on.acquire(timeout=30)

    log = machine.log(in_thread=True)
    log._bring = sync
    log.forget()
    log.begin()
    append(log, *[b"x"] * 15)
    append(log, b"in the other one")
    assert syncs.acquire(timeout=30)
    append(log, *[b"y"] * 14)
    assert log.waited == 0
    waits = threading.Thread(target=append, args=(log, b"waits"))
    waits.start()
    while log.waited == 0 and waits.is_alive():
        waits.join(0.01)
    assert machine.payloads()[-1] == b"y"
    goes_on.release()
    waits.join(30)
    assert machine.payloads()[-1] == b"waits"
    goes_on.release(10)
    log.close()
    assert machine.payloads() == []


def test_what_is_old_is_brought_to_the_medium(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time, of a thread."""
    monkeypatch.setattr("mq.storage.files.logged.log.AGE_SECONDS", 0.01)
    done = threading.Event()
    log = machine.log(in_thread=True)
    log._bring = lambda *_: done.set()
    log.forget()
    log.begin()
    append(log, b"x")
    assert done.wait(30)
    log.close()


# Errors


@pytest.mark.parametrize("call", ["fdatasync", "write_at"])
def test_after_an_error_nothing_is_appended_nor_tried_again(
    machine: Machine, log: Log, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(machine.calls, call, fail)
        with pytest.raises(OSError, match="Input/output"):
            append(log, b"lost")
    assert [error.errno for error in machine.failures] == [errno.EIO]
    with pytest.raises(OSError, match="log has failed"):
        append(log, b"never")
    assert b"never" not in machine.payloads()


def test_a_checkpoint_that_fails_ends_all_changes_and_frees_nothing(machine: Machine, log: Log) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log._bring = fail
    append(log, b"kept")
    with pytest.raises(OSError, match="log has failed"):
        log.empty()
    assert machine.payloads() == [b"kept"]
    assert len(machine.failures) == 1


def test_no_segment_takes_up_room_that_others_need(machine: Machine) -> None:
    log = machine.begun(largest=2 * SEGMENT)
    machine.is_spare = False
    append(log, *[b"x"] * 31)
    sizes = [(machine.folder / "log" / name).stat().st_size for name in "01"]
    assert sizes == [SEGMENT, SEGMENT]
    machine.is_spare = True
    append(log, *[b"x"] * 15)
    assert 2 * SEGMENT in [(machine.folder / "log" / name).stat().st_size for name in "01"]
    log.close()


def test_no_room_to_grow_is_no_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    log = machine.begun(largest=2 * SEGMENT)
    append(log, *[b"x"] * 15)

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset >= SEGMENT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    monkeypatch.setattr(machine.calls, "write_at", full)
    append(log, b"goes on")
    assert machine.payloads() == [b"goes on"]
    assert not machine.failures
    log.close()


# Segments that are gone or not as they were

SPOILED: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "deleted": (lambda path: path.unlink(), "is missing"),
    "emptied": (lambda path: os.truncate(path, 0), "cannot read the header of .*"),
    "halved": (lambda path: os.truncate(path, SEGMENT // 2), f"has only {SEGMENT // 2} of the {SEGMENT} bytes"),
    "one byte short": (lambda path: os.truncate(path, SEGMENT - 1), f"has only {SEGMENT - 1} of the {SEGMENT} bytes"),
    "zeroed": (lambda path: path.write_bytes(bytes(SEGMENT)), "cannot read the header of .*"),
    "noise": (lambda path: path.write_bytes(os.urandom(SEGMENT)), "cannot read the header of .*"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is not a file: move it elsewhere"),
    "a link": (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is not a file: move it elsewhere"),
}


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("how", SPOILED)
def test_log_in_use_is_refused_when_a_segment_is(machine: Machine, log: Log, how: str, segment: int) -> None:
    append(log, b"confirmed")
    spoil, text = SPOILED[how]
    spoil(machine.folder / "log" / str(segment))
    with pytest.raises(LogDamaged, match=text) as damaged:
        machine.log(in_use=True)
    assert f"/log/{segment}" in str(damaged.value)
    assert open_files(machine.folder / "log") == {segment.fd for segment in log._segments}


@for_each("bit", range(0, 8 * 108, 7))
def test_log_in_use_is_refused_when_a_bit_of_a_header_is_changed(machine: Machine, log: Log, bit: int) -> None:
    whole = machine.page(1, 0)
    head = bytearray(whole)
    head[bit // 8] ^= 1 << bit % 8
    machine.overwrite(1, 0, bytes(head))
    with pytest.raises(LogDamaged, match=r"cannot read the header of .*/log/1"):
        machine.log(in_use=True)
    machine.overwrite(1, 0, whole)
    machine.log(in_use=True).close(failed=True)


def test_log_in_use_is_refused_when_a_segment_is_a_copy_of_another_time(machine: Machine, log: Log) -> None:
    shutil.copy(machine.folder / "log" / "0", machine.folder / "copy")
    append(log, b"one")
    log.empty()
    append(log, b"two")
    log.empty()
    shutil.copy(machine.folder / "copy", machine.folder / "log" / "0")
    with pytest.raises(LogDamaged, match="are not consecutive"):
        machine.log(in_use=True)


def test_segment_may_be_longer_than_its_header_states(machine: Machine, log: Log) -> None:
    """It was growing when the power failed."""
    append(log, b"one")
    with (machine.folder / "log" / "0").open("ab") as file:
        file.write(b"x" * 3 * PAGE)
    again = machine.log(in_use=True)
    assert [record.payload for record in again.read()] == [b"one"]
    again.close(failed=True)


@pytest.mark.parametrize("how", [how for how in SPOILED if not how.startswith("a ")])
def test_segments_of_a_log_not_in_use_are_made_anew(machine: Machine, how: str) -> None:
    machine.begun().close()
    SPOILED[how][0](machine.folder / "log" / "1")
    log = machine.begun()
    append(log, b"new")
    assert machine.payloads() == [b"new"]
    log.close(failed=True)


def test_salvage_returns_what_is_left_and_says_what_is_missing(machine: Machine, log: Log) -> None:
    append(log, b"older")
    leave(log)
    append(log, b"lost", b"newer", b"newest")
    machine.lose(1, 1)
    assert salvage(machine.calls, str(machine.folder / "log")) == (
        [Record(1, b"older", 0), Record(3, b"newer", 1), Record(4, b"newest", 1)],
        ["pages 2 to 2 of the log cannot be read"],
    )
    (machine.folder / "log" / "0").unlink()
    os.truncate(machine.folder / "log" / "1", 3 * PAGE)
    found, flaws = salvage(machine.calls, str(machine.folder / "log"))
    assert [record.payload for record in found] == [b"newer"]
    assert [flaw.rpartition("/")[2] for flaw in flaws] == [
        "0 is missing",
        f"1 has only {3 * PAGE} of the {SEGMENT} bytes that its header specifies",
    ]


@pytest.mark.parametrize("length", [1, 50, 300])
def test_last_record_that_cannot_be_read_is_named(
    machine: Machine, log: Log, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, b"one", b"x" * length)
    page = bytearray(machine.page(0, 2))
    page[HEAD_BYTES] ^= 1
    machine.overwrite(0, 2, bytes(page))
    assert machine.payloads() == [b"one"]
    assert "the write-ahead log ends with an unreadable record" in caplog.text
    assert f"/log/0 at offset {2 * PAGE}" in caplog.text


def open_files(folder: Path) -> set[int]:
    """The numbers of this process's open files in a folder."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder)):
                found.add(int(fd))
    return found
