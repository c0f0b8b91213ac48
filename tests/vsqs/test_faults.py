"""Every call fails once, in every way, and for good: an error that says what to do, and nothing lost or half done."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mq.errors import MQError, StorageFailed, StorageFull, StorageUnusable
from mq.vsqs import Queue
from tests.cases import for_each
from tests.vsqs.places import WAYS, Place
from tests.vsqs.places import place as make_place

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EROFS)
BODY = b"body" * 1000
FIRST, SECOND = "5", "6"


def publish(place: Place, queue: Queue) -> None:
    queue.publish(BODY)


def receive(place: Place, queue: Queue) -> None:
    message = queue.receive(timeout=0)
    assert message is None or message.body == b"first"


def delete(place: Place, queue: Queue) -> None:
    queue.delete(FIRST)


def release(place: Place, queue: Queue) -> None:
    message = queue.receive(timeout=0)
    assert message is not None
    message.release()


def requeue(place: Place, queue: Queue) -> None:
    (place.folder / SECOND).rename(place.folder / f"{SECOND}.7")
    receive(place, queue)


def sweep(place: Place, queue: Queue) -> None:
    place.put("7.new", b"half")
    place.clock.ns += 10**10
    receive(place, queue)


ACTS = (publish, receive, delete, release, requeue, sweep)


def run(folder: Path, way: str, act: Callable[[Place, Queue], None], number: int, nth: int, times: int | None) -> int:
    """One life: two messages, then `act`, of which the nth call fails. How many calls it made."""
    with make_place(folder, way) as place:
        place.put(FIRST, b"first")
        place.put(SECOND, b"second")
        queue = place.open()
        queue.size()
        place.calls.log.clear()
        fault = place.calls.fail("*", number, nth=nth, times=times) if nth else None
        error = refusal(place, act, queue)
        assert error is None or (nth and str(place.folder) in str(error)), error
        calls = len(place.calls.log)
        if fault:
            place.calls.faults.remove(fault)
        check(place, act, answered=error is None)
        return calls


def refusal(place: Place, act: Callable[[Place, Queue], None], queue: Queue) -> MQError | None:
    """Only errors that say whether trying again helps are let through."""
    try:
        act(place, queue)
    except (StorageFull, StorageUnusable, StorageFailed) as error:
        return error
    return None


def check(place: Place, act: Callable[[Place, Queue], None], *, answered: bool) -> None:
    """As another program finds it, when the disk is well again and all times have run out."""
    place.clock.ns += 10**12
    bodies: list[bytes] = []
    queue = place.open()
    while (message := queue.receive(timeout=0)) is not None:
        bodies.append(message.body)
        assert message.delete()
    wanted = {
        publish: [[b"first", b"second", BODY]] if answered else [[b"first", b"second", BODY], [b"first", b"second"]],
        delete: [[b"second"]] if answered else [[b"second"], [b"first", b"second"]],
    }
    assert bodies in wanted.get(act, [[b"first", b"second"]])
    assert place.names() == []


@pytest.mark.in_turn(2)
@pytest.mark.slow
@for_each("times", [1, None])
@for_each("way", WAYS)
@for_each("act", ACTS)
def test_a_call_that_fails(folder: Path, act: Callable[[Place, Queue], None], way: str, times: int | None) -> None:
    calls = run(folder, way, act, 0, 0, None)
    assert calls >= 2
    for number in ERRNOS:
        for nth in range(1, calls + 1):
            run(folder, way, act, number, nth, times)


def test_a_short_write_is_continued(place: Place) -> None:
    place.calls.most_written = 100
    queue = place.open()
    queue.publish(BODY)
    message = queue.receive(timeout=0)
    assert message is not None
    assert message.body == BODY


@pytest.mark.parametrize("path", ["*.new", "."])
def test_no_sync_is_tried_twice_and_nothing_is_changed_after_it(place: Place, path: str) -> None:
    """The kernel would say that all is well; it is not."""
    queue = place.open()
    id = queue.publish(b"before")
    place.calls.fail("fsync", errno.EIO, path=path)
    with pytest.raises(StorageFailed, match="repair and remount the disk"):
        queue.publish(b"lost")
    before = place.names()
    for act in (lambda: queue.publish(b"x"), lambda: queue.receive(timeout=0), lambda: queue.delete(id)):
        with pytest.raises(StorageFailed, match="open the queue again"):
            act()
    assert place.names() == before
    assert queue.size() == len(before)
    assert place.open().receive(timeout=0).body == b"before"


def test_any_failure_of_the_disk_is_the_last(place: Place) -> None:
    queue = place.open()
    place.calls.fail("write", errno.EIO)
    with pytest.raises(StorageFailed):
        queue.publish(b"x")
    with pytest.raises(StorageFailed, match="open the queue again"):
        queue.publish(b"x")


def test_a_failed_sync_is_not_forgotten_for_what_failed_after_it(place: Place) -> None:
    """A file system that has failed becomes read-only, and then refuses to take the file away."""
    queue = place.open()
    place.calls.fail("fsync", errno.EIO, path="*.new")
    place.calls.fail("unlink", errno.EROFS)
    with pytest.raises(StorageUnusable):
        queue.publish(b"lost")
    with pytest.raises(StorageFailed):
        queue.publish(b"x")


def test_room_that_is_short_passes(place: Place) -> None:
    queue = place.open()
    place.calls.fail("write", errno.ENOSPC)
    with pytest.raises(StorageFull, match="Try again later"):
        queue.publish(b"x")
    assert place.names() == []
    queue.publish(b"x")


def test_everything_is_synced_before_it_is_answered(place: Place) -> None:
    queue = place.open()
    id = queue.publish(b"x")
    verbs = [call for call in place.calls.log if call.verb in ("write", "fsync", "rename", "link", "unlink")]
    told = [f"{call.verb} {call.path}" for call in verbs]
    by_rename = [f"rename {id}.new", "fsync ."]
    by_link = [f"link {id}.new", "fsync .", f"unlink {id}.new", "fsync ."]
    assert told == [f"write {id}.new", f"fsync {id}.new", *(by_rename if place.renames else by_link)]


def test_a_deleted_file_is_held_until_its_name_is_durably_gone(place: Place) -> None:
    """Without a journal the name could come back, and lead to what its inode was given to meanwhile."""
    queue = place.open()
    id = queue.publish(b"x")
    place.calls.log.clear()
    queue.delete(id)
    told = place.calls.said("open", "unlink", "fsync", "close")
    assert told == [f"open {id}", f"unlink {id}", "fsync .", f"close {id}"]


def test_the_folder_is_made_durably(place: Place) -> None:
    tempfolder = Path(tempfile.mkdtemp(dir=place.folder))
    place.calls.log.clear()
    Queue(tempfolder / "queue", create=True, system=place.system).close()
    told = place.calls.said("mkdir", "fsync")
    assert told == [f"mkdir {tempfolder.name}/queue", f"fsync {tempfolder.name}"]
    shutil.rmtree(tempfolder)
