"""mq-native by itself, and beside its twin in Python."""

from __future__ import annotations

import errno
import os
import resource
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mq.message import MessageId, MessageIds
from mq.storage.files.calls import LinuxCalls, Native, Step
from mq.storage.files.layout import SUM
from mq.storage.files.posix import load_native
from simulation.calls import StepByStep
from tests.cases import for_each

IDS = MessageIds()

mq_native = pytest.importorskip("mq_native", reason="mq-native is not compiled here: apt install gcc libc6-dev")


@pytest.fixture(params=["native", "step by step"])
def native(request: pytest.FixtureRequest) -> Native:
    if request.param == "native":
        found = load_native()
        assert found is mq_native
        return found
    return StepByStep(LinuxCalls())


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert not [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(tmp_path))], "left open"


def test_write_move_read_unlink(native: Native, files: Path) -> None:
    one, other = str(files / "one"), str(files / "other")
    assert native.do_steps([(one, b"body", b"4:00", b""), (one, other)], False) == [0, 0]
    assert native.read_files([one, other], 100) == [errno.ENOENT, (b"body", b"4:00", b"")]
    assert native.do_steps([(other,), (other,)], False) == [0, -errno.ENOENT]
    assert not os.listdir(files)


def test_attributes_are_read_where_the_sum_says_so(native: Native, files: Path) -> None:
    said, unsaid = str(files / "said"), str(files / "unsaid")
    native.do_steps([(said, b"", b"0:00:a", b"{}"), (unsaid, b"", b"0:00:f", b"{}")], False)
    assert native.read_files([said, unsaid], 100) == [(b"", b"0:00:a", b"{}"), (b"", b"0:00:f", b"")]


def test_kept_files_are_open_for_writing(native: Native, files: Path) -> None:
    [fd] = native.do_steps([(str(files / "one"), b"bo", b"2:00", b"")], True)
    os.write(fd, b"dy")
    os.fsync(fd)
    os.close(fd)
    assert (files / "one").read_bytes() == b"body"
    assert (files / "one").stat().st_mode & 0o777 == 0o600


def test_nothing_is_overwritten(native: Native, files: Path) -> None:
    taken, one = files / "taken", str(files / "one")
    taken.write_bytes(b"here")
    steps: list[Step] = [(str(taken), b"new", b"3:00", b""), (one, b"x", b"1:00", b""), (one, str(taken))]
    assert native.do_steps(steps, False) == [-errno.EEXIST, 0, -errno.EEXIST]
    assert taken.read_bytes() == b"here"


def test_a_link_is_not_followed(native: Native, files: Path) -> None:
    (files / "far").write_bytes(b"away")
    (files / "link").symlink_to("far")
    assert native.do_steps([(str(files / "link"), b"x", b"1:00", b"")], False) == [-errno.EEXIST]
    assert native.read_files([str(files / "link")], 100) == [errno.ELOOP]


def test_what_failed_half_way_leaves_nothing(native: Native, files: Path) -> None:
    """The attributes are more than the file system holds, and then the body is longer than a file may be."""
    path = str(files / "one")
    assert native.do_steps([(path, b"body", b"4:00:a", b"x" * 100_000)], False)[0] < 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        assert native.do_steps([(path, bytes(1 << 17), b"131072:00", b"")], False) == [-errno.EFBIG]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not os.listdir(files)


def test_what_is_not_plain_is_left_to_others(native: Native, files: Path) -> None:
    (files / "foreign").write_bytes(b"without a sum")
    native.do_steps([(str(files / "large"), bytes(101), b"101:00", b"")], False)
    os.mkfifo(files / "fifo")
    (files / "folder").mkdir()
    paths = [str(files / name) for name in ("foreign", "large", "fifo", "folder")]
    assert native.read_files(paths, 100) == [errno.ENODATA, errno.EFBIG, errno.EFBIG, errno.EFBIG]
    assert native.do_steps([(str(files / "folder"),)], False) == [-errno.EISDIR]


@pytest.mark.slow
def test_a_large_batch_is_answered_in_order(native: Native, files: Path) -> None:
    names = [str(files / f"{number}") for number in range(2000)]
    writes: list[Step] = [(name, name.encode(), b"0:00", b"") for name in names]
    assert native.do_steps([step for write in writes for step in (write, write)], False) == [0, -errno.EEXIST] * 2000
    assert [found[0] for found in native.read_files(names, 1000) if not isinstance(found, int)] == [
        name.encode() for name in names
    ]
    assert native.do_steps([(name,) for name in names], False) == [0] * 2000


@pytest.mark.parametrize("path", ["a\0b", "\udcff"])
def test_a_path_that_cannot_be_is_refused_before_anything_is_done(path: str, files: Path) -> None:
    first = str(files / "first")
    with pytest.raises(ValueError, match=r"null|surrogates"):
        mq_native.do_steps([(first, b"", b"0:00", b""), (f"{files}/{path}",)], False)
    with pytest.raises(ValueError, match=r"null|surrogates"):
        mq_native.read_files([path], 100)
    assert not os.listdir(files)


@pytest.mark.parametrize("steps", [["text"], [()], [(b"/x",)], [("/x", "y", b"", b"")], [("/x", b"", b"", b"", b"")]])
def test_what_is_no_step_is_refused(steps: list[object]) -> None:
    with pytest.raises(TypeError):
        mq_native.do_steps(steps, False)


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


# Columns


def key_of(id: MessageId) -> bytes:
    return id.key.to_bytes(16)


def write(native: Native, files: Path, name: str, body: bytes, said: bytes = b"", noted: bytes | None = None) -> None:
    if noted is None:
        noted = b"%d:%08x" % (len(body), zlib.crc32(body)) + (b":a" if said else b"")
    assert native.do_steps([(str(files / name), body, noted, said)], False) == [0]


def test_messages_come_one_behind_another(native: Native, files: Path) -> None:
    ids = [IDS.new() for _ in range(3)]
    write(native, files, ids[0], b"one")
    write(native, files, f"{ids[1]},r2,e99", b"", b'{"a": 1}')
    write(native, files, ids[2], b"three")
    found = native.read_columns(str(files), [key_of(ids[0]), f"{ids[1]},r2,e99", str(ids[2])], 1000, 100, 100)
    count, times, ends, written, bodies, said = found
    assert (count, written, bodies, said) == (3, "".join(ids).encode(), b"onethree", {1: b'{"a": 1}'})
    assert struct.unpack("<3q", times) == tuple(id.time for id in ids)
    assert struct.unpack("<3i", ends) == (1003, 1003, 1008)


@for_each("size", [*range(20), 255, 4096, 70_001])
def test_checksums_are_those_of_zlib(native: Native, files: Path, size: int) -> None:
    id, body = IDS.new(), Random(size).randbytes(size)
    write(native, files, id, body)
    assert native.read_columns(str(files), [key_of(id)], 0, 1 << 20, 1 << 20)[4] == body
    if body:
        (files / id).write_bytes(bytes([body[0] ^ 1]) + body[1:])
        assert native.read_columns(str(files), [key_of(id)], 0, 1 << 20, 1 << 20)[0] == 0


@pytest.mark.parametrize(
    "kind", ["gone", "cut", "longer", "foreign", "sum", "side", "unsaid", "large", "full", "said", "link", "folder"]
)
def test_columns_end_before_what_is_not_whole(native: Native, files: Path, kind: str) -> None:
    """What comes before is there, and nothing of what comes after."""
    ids = [IDS.new() for _ in range(3)]
    names: list[bytes | str] = [key_of(id) for id in ids]
    for id in ids:
        write(native, files, id, b"body")
    path, most, largest = files / ids[1], 1000, 100
    if kind == "gone":
        path.unlink()
    elif kind == "cut":
        os.truncate(path, 3)
    elif kind == "longer":
        os.truncate(path, 5)
    elif kind == "foreign":
        os.removexattr(path, SUM)
    elif kind in ("sum", "side", "unsaid"):
        ending = {"sum": b"9", "side": b":f", "unsaid": b":a"}[kind]
        os.setxattr(path, SUM, b"4:%08x" % zlib.crc32(b"body") + ending)
    elif kind == "large":
        path.unlink()
        write(native, files, ids[1], bytes(101))
    elif kind == "full":
        most = 7
    elif kind == "said":
        path.unlink()
        write(native, files, ids[1], b"body", b'{"a": 1}')
        most = 8 + 7
    elif kind == "link":
        path.rename(files / "elsewhere")
        path.symlink_to("elsewhere")
    else:
        path.unlink()
        path.mkdir()
    found = native.read_columns(str(files), names, 0, most, largest)
    assert found[0] == 1
    assert (found[3], found[4], len(found[1]), len(found[2])) == (ids[0].encode(), b"body", 8, 4)


def test_columns_of_no_folder_are_empty(native: Native, files: Path) -> None:
    assert native.read_columns(str(files / "none"), [key_of(IDS.new())], 0, 9, 9) == (0, b"", b"", b"", b"", {})


def test_both_ways_read_the_same_columns(files: Path) -> None:
    random, slow = Random(1), StepByStep(LinuxCalls())
    ids = [IDS.new() for _ in range(300)]
    for id in ids:
        said = b'{"n": %d}' % random.randrange(9) if random.random() < 0.5 else b""
        write(slow, files, id, random.randbytes(random.randrange(600)), said)
    names: list[bytes | str] = [key_of(id) if random.random() < 0.5 else str(id) for id in ids]
    for most in (0, 100, 10_000, 1 << 20):
        args = (str(files), names, 5, most, 1 << 16)
        assert mq_native.read_columns(*args) == slow.read_columns(*args)


@pytest.mark.parametrize("name", ["short", "x" * 36 + "/y", "x" * 36 + "\0", "x" * 36 + "\udcff", b"123", 5])
def test_a_name_that_cannot_be_is_refused(name: Any, files: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        mq_native.read_columns(str(files), [name], 0, 9, 9)
