"""The hands inside the medium do what they say, and nothing else."""

from __future__ import annotations

import errno

import pytest

from mq.storage.files.calls import OPEN_FOLDER, OPEN_NEW, OPEN_READ, FileKind
from mq.storage.files.fake import make_calls
from simulation.calls import FaultyCalls, RecordedCall


@pytest.fixture
def calls() -> FaultyCalls:
    calls = FaultyCalls(make_calls(), "/root")
    calls.mkdir("/root")
    calls.log.clear()
    return calls


def write_file(calls: FaultyCalls, path: str, data: bytes) -> int:
    fd = calls.open(path, OPEN_NEW)
    try:
        return calls.write(fd, data)
    finally:
        calls.close(fd)


def test_every_call_is_written_down_and_passed_on(calls: FaultyCalls) -> None:
    write_file(calls, "/root/a", b"abc")
    calls.rename("/root/a", "/root/b")
    calls.link("/root/b", "/root/c")
    calls.unlink("/root/b")
    fd = calls.open("/root/c", OPEN_READ)
    assert (calls.read(fd, 10), calls.file_size(fd)) == (b"abc", 3)
    calls.set_attribute(fd, "user.a", b"1")
    assert calls.get_attribute(fd, "user.a") == b"1"
    calls.close(fd)
    folder = calls.open("/root", OPEN_FOLDER)
    calls.fsync(folder)
    calls.syncfs(folder)
    calls.lock(folder, exclusive=False)
    calls.close(folder)
    assert calls.names("/root") == [("c", FileKind.FILE)]
    assert calls.kind("/root/c") is FileKind.FILE
    assert calls.changed_ns("/root/c") > 0
    calls.mkdir("/root/d")
    calls.rmdir("/root/d")
    assert calls.said() == [
        "open a new",
        "write a 3",
        "close a",
        "rename a b",
        "link b c",
        "unlink b",
        "open c",
        "read c",
        "file_size c",
        "set_attribute c user.a",
        "get_attribute c user.a",
        "close c",
        "open .",
        "fsync .",
        "syncfs .",
        "lock . shared",
        "close .",
        "names .",
        "kind c",
        "changed_ns c",
        "mkdir d",
        "rmdir d",
    ]
    assert calls.said("link", "unlink") == ["link b c", "unlink b"]


def test_a_call_that_fails_does_nothing(calls: FaultyCalls) -> None:
    calls.fail("mkdir", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left") as caught:
        calls.mkdir("/root/a")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/root/a")
    assert calls.kind("/root/a") is None
    assert calls.log[0] == RecordedCall("mkdir", "a")
    calls.mkdir("/root/a")


def test_the_call_that_fails_is_chosen(calls: FaultyCalls) -> None:
    fault = calls.fail("mkdir", errno.EIO, path="b*", nth=2, times=2)
    failed = []
    for name in ("a", "b1", "b2", "c", "b3", "b4"):
        try:
            calls.mkdir(f"/root/{name}")
        except OSError:
            failed.append(name)
    assert failed == ["b2", "b3"]
    assert fault.met == 4


def test_a_call_can_fail_for_ever_and_the_medium_can_heal(calls: FaultyCalls) -> None:
    calls.fail("*", errno.EIO, times=None)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            calls.names("/root")
    calls.faults.clear()
    assert calls.names("/root") == []


def test_a_write_can_take_less_than_all(calls: FaultyCalls) -> None:
    calls.most_written = 2
    assert write_file(calls, "/root/a", b"abc") == 2
    assert calls.said("write") == ["write a 2"]


def test_somebody_else_can_act_just_before_a_call(calls: FaultyCalls) -> None:
    came = calls.just_before("mkdir", "b*", lambda: calls.mkdir("/root/b2"))
    calls.mkdir("/root/a")
    assert not came
    calls.mkdir("/root/b1")
    assert came == ["b1"]
    with pytest.raises(FileExistsError):
        calls.mkdir("/root/b2")
    assert {name for name, _ in calls.names("/root")} == {"a", "b1", "b2"}
