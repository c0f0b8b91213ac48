"""How a queue knows what is in its folder: told by the kernel, or by listings, and never a thing missed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mq.errors import StorageFull
from mq.vsqs import Queue, view
from mq.vsqs import system as watching
from mq.vsqs.system import Event, FolderLeft, FolderWatch, System
from tests.vsqs.places import place

PATIENCE_SECONDS = 30
LISTED = System(heard=frozenset())


def listings(queue: Queue) -> int:
    return queue._view.listings


def test_what_the_kernel_tells_needs_no_listing(folder: Path) -> None:
    with place(folder, "heard, renames") as made:
        queue, other = made.open(), made.open()
        for _ in range(50):
            queue.publish(b"1")
            other.publish(b"2")
            for one in (queue, other):
                assert one.receive(timeout=0).delete()
        assert listings(queue) == listings(other) == 1
        assert made.names() == []


def test_events_come_in_their_order(folder: Path) -> None:
    watch = FolderWatch(str(folder))
    (folder / "1").touch()
    (folder / "1").rename(folder / "2")
    os.link(folder / "2", folder / "3")
    (folder / "2").unlink()
    (folder / "folder").mkdir()
    assert watch.events() == [
        Event("1", True),
        Event("1", False),
        Event("2", True),
        Event("3", True),
        Event("2", False),
    ]
    assert watch.events() == []
    watch.close()


def test_a_rename_that_is_told_by_half_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a read falls between its two events."""
    watch = FolderWatch(str(folder))
    (folder / "1").touch()
    (folder / "1").rename(folder / "2")
    monkeypatch.setattr(watching, "_BUFFER_BYTES", 64)  # two events, then the last
    read, paused = os.read, []

    def read_with_a_pause(fd: int, size: int) -> bytes:
        if len(paused) == 1:
            paused.append(fd)
            raise BlockingIOError
        paused.append(fd)
        return read(fd, size)

    monkeypatch.setattr(watching.os, "read", read_with_a_pause)
    assert watch.events() == [Event("1", True), Event("1", False), Event("2", True)]
    watch.close()


def test_a_file_that_is_moved_out_of_the_folder_is_gone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    watch = FolderWatch(str(folder))
    (folder / "sub").mkdir()
    (folder / "1").touch()
    (folder / "1").rename(folder / "sub" / "1")
    assert watch.events() == [Event("1", True), Event("1", False)]
    watch.close()


def test_a_folder_that_leaves_is_told(folder: Path) -> None:
    sub = folder / "sub"
    for leave in (sub.rmdir, lambda: sub.rename(folder / "other")):
        sub.mkdir()
        watch = FolderWatch(str(sub))
        leave()
        with pytest.raises(FolderLeft):
            watch.events()
        watch.close()


def test_lost_events_are_made_up_by_a_listing(folder: Path) -> None:
    with place(folder, "heard, renames") as made:
        queue = made.open()
        assert queue.size() == 0
        most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for number in range(most // 2 + 10):
            path = made.put(str(number))
            path.unlink()
        made.put("7")
        assert queue.receive(timeout=0).id == "7"
        assert listings(queue) == 2
        made.put("8")
        assert queue.receive(timeout=0).id == "8"


def test_a_first_listing_that_fails_is_made_again(folder: Path) -> None:
    with place(folder, "heard, renames") as made:
        made.put("5")
        made.calls.fail("names", errno.EMFILE)
        with Queue(folder, system=made.system) as queue:
            with pytest.raises(StorageFull):
                queue.size()
            assert queue.size() == 1


def test_lost_events_that_no_listing_made_up_yet_stay_lost_no_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(folder, "heard, renames") as made:
        queue = made.open()
        made.put("5")
        assert queue._view._watch is not None
        queue._view._watch.events()  # and nobody kept them
        monkeypatch.setattr(queue._view._watch, "events", lambda: None)
        made.calls.fail("names", errno.EMFILE)
        with pytest.raises(StorageFull):
            queue.size()
        assert queue.size() == 1


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EMFILE, errno.ENOSPC])
def test_without_inotify_it_lists(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(path: str) -> FolderWatch:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(view, "FolderWatch", refuse)
    with Queue(folder) as queue, Queue(folder) as other:
        id = queue.publish(b"x")
        assert other.receive(timeout=0).id == id
        assert queue.receive(timeout=0) is None
        assert other.fileno() is None


def test_a_listing_is_kept_while_the_folder_is_unchanged_and_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coarse_seconds = 0.2
    monkeypatch.setattr(view, "COARSE_NS", int(coarse_seconds * 1e9))
    with Queue(folder, system=LISTED) as queue:
        queue.size()
        queue.size()
        assert listings(queue) == 2  # the folder is young: its time may hide a twin
        time.sleep(coarse_seconds * 1.5)  # real time: the kernel stamps the folder
        for _ in range(10):
            queue.size()
        assert listings(queue) == 3
        (folder / "5").touch()
        assert queue.size() == 1
        assert listings(queue) == 4


def test_a_file_that_is_renamed_while_the_folder_is_listed_is_found(folder: Path) -> None:
    with place(folder, "listed, renames") as made:
        queue = made.open()
        made.put("5.1")
        list_names, moved = made.calls._inner.names, []

        def names(path: str) -> object:
            """Misses the file, as a listing may that met its new place before the rename and its old one after."""
            if moved:
                return list_names(path)
            moved.append((folder / "5.1").rename(folder / "5"))
            return []

        made.calls._inner.names = names
        assert queue.size() == 1


def until_received(queue_of: Callable[[], Queue], then: Callable[[], object]) -> tuple[str, float]:
    """A receiver waits in a thread; what it gets, and how many seconds after `then` was called."""
    got: list[tuple[str, float]] = []
    waiting = threading.Event()

    def receive() -> None:
        with queue_of() as queue:
            wait = queue._view.wait
            queue._view.wait = lambda seconds: (waiting.set(), wait(seconds))[1]
            message = queue.receive(timeout=PATIENCE_SECONDS)
            assert message is not None
            got.append((message.id, time.monotonic()))

    thread = threading.Thread(target=receive)
    thread.start()
    assert waiting.wait(PATIENCE_SECONDS)
    started = time.monotonic()
    then()
    thread.join(PATIENCE_SECONDS)
    return got[0][0], got[0][1] - started


@pytest.mark.parametrize("system", [System(), LISTED], ids=["heard", "listed"])
def test_a_new_message_wakes_a_receiver(folder: Path, system: System) -> None:
    """Real time: another thread waits on the kernel."""
    with Queue(folder) as queue:
        published: list[str] = []
        id, seconds = until_received(
            lambda: Queue(folder, system=system), lambda: published.append(queue.publish(b"x"))
        )
        assert [id] == published
        assert seconds < PATIENCE_SECONDS / 3


@pytest.mark.parametrize("system", [System(), LISTED], ids=["heard", "listed"])
def test_the_next_expiry_wakes_a_receiver(folder: Path, system: System) -> None:
    with Queue(folder) as queue:
        id = queue.publish(b"x")
        assert queue.receive(0.5, timeout=0).id == id
        got, seconds = until_received(lambda: Queue(folder, system=system), lambda: None)
        assert got == id
        assert seconds < PATIENCE_SECONDS / 3


def test_a_receiver_that_waits_sleeps(folder: Path) -> None:
    """It is woken by what happens, and does not look around meanwhile."""
    with Queue(folder) as queue:
        waits: list[float] = []
        wait = queue._view.wait
        queue._view.wait = lambda seconds: (waits.append(seconds), wait(seconds))[1]
        assert queue.receive(timeout=0.3) is None
        assert len(waits) == 1


def test_nothing_comes_in_time(queue: Queue) -> None:
    started = time.monotonic()
    assert queue.receive(timeout=0.2) is None
    assert time.monotonic() - started >= 0.2


def test_a_child_does_not_hear_what_its_parent_is_told(folder: Path) -> None:
    with Queue(folder) as queue:
        queue.size()
        (folder / "5").touch()
        process = multiprocessing.get_context("fork").Process(target=queue.size)
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
        message = queue.receive(timeout=0)
        assert message is not None
        assert message.id == "5"


def child(queue: Queue, ids: multiprocessing.SimpleQueue[str]) -> None:
    for _ in range(20):
        ids.put(queue.receive(timeout=PATIENCE_SECONDS).id)


def test_a_fork_may_go_on_with_it(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    with Queue(folder) as queue:
        published = [queue.publish(b"x") for _ in range(10)]
        ids = context.SimpleQueue()
        process = context.Process(target=child, args=(queue, ids))
        process.start()
        published += [queue.publish(b"y") for _ in range(30)]
        received = [queue.receive(timeout=PATIENCE_SECONDS).id for _ in range(20)]
        received += [ids.get() for _ in range(20)]
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
    assert sorted(received) == published
