"""Files of publishers that died: only those go, and they always go."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.vsqs import Queue, QueueFull
from tests.vsqs.places import Place

OLD_NS = 6 * 10**9


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As by a publisher that lives."""
    fd = os.open(path, os.O_WRONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def look(queue: Queue) -> None:
    assert queue.receive(timeout=0) is None


def test_an_orphan_goes(place: Place) -> None:
    place.put("5.new", b"half")
    queue = place.open()
    place.clock.ns += OLD_NS
    look(queue)
    assert place.names() == []


def test_it_goes_though_the_clock_was_set_back(place: Place) -> None:
    place.put("5.new", b"half")
    queue = place.open()
    place.clock.ns -= 1000 * OLD_NS
    look(queue)
    assert place.names() == []


def test_one_whose_publisher_lives_stays(place: Place) -> None:
    path = place.put("5.new", b"half")
    place.clock.ns += OLD_NS
    with locked(path):
        look(place.open())
        assert place.names() == ["5.new"]
    look(place.open())
    assert place.names() == []


def test_one_that_was_just_written_stays(place: Place) -> None:
    """Its publisher may be a program that takes no lock."""
    place.put("5.new", b"half")
    look(place.open())
    assert place.names() == ["5.new"]


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_what_is_no_file_stays(place: Place, kind: str) -> None:
    queue = place.open()
    queue.size()
    path = place.folder / "5.new"
    {"folder": path.mkdir, "link": lambda: path.symlink_to("x"), "fifo": lambda: os.mkfifo(path)}[kind]()
    place.clock.ns += OLD_NS
    queue.receive(timeout=0)
    assert place.names() == ["5.new"]


def test_a_publisher_whose_file_was_swept_before_it_had_the_lock_begins_again(place: Place) -> None:
    queue, other = place.open(), place.open()
    at = place.clock.ms

    def sweep() -> None:
        place.clock.ns += OLD_NS
        look(other)
        assert place.names() == []

    assert place.calls.just_before("lock", f"{at}.new", sweep) == []
    id = queue.publish(b"body")
    assert int(id) > at
    assert place.names() == [id]


def test_a_publisher_that_finds_its_file_locked_by_a_sweeper_begins_again(place: Place) -> None:
    queue = place.open()
    at = place.clock.ms
    holding = []

    def lock() -> None:
        holding.append(os.open(place.folder / f"{at}.new", os.O_WRONLY))
        fcntl.flock(holding[0], fcntl.LOCK_EX)

    place.calls.just_before("lock", f"{at}.new", lock)
    id = queue.publish(b"body")
    os.close(holding[0])
    assert place.names() == [f"{at}.new", id]  # the first is the sweeper's to take away


def test_a_sweeper_leaves_a_file_that_took_the_place_of_the_one_it_opened(place: Place) -> None:
    path = place.put("5.new", b"whole")
    queue = place.open()
    place.clock.ns += OLD_NS

    def publish() -> None:
        path.rename(place.folder / "5")
        place.put("5.new", b"another")

    place.calls.just_before("lock", "5.new", publish)
    queue.receive(timeout=0)
    assert (place.folder / "5.new").read_bytes() == b"another"
    assert (place.folder / "5").read_bytes() == b"whole"


def test_an_orphan_takes_no_place(place: Place) -> None:
    place.put("5.new")
    queue = place.open(capacity=1)
    with pytest.raises(QueueFull):
        queue.publish(b"x")
    other = place.open(capacity=1)
    place.clock.ns += OLD_NS
    id = other.publish(b"x")
    assert place.names() == [id]
