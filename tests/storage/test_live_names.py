"""The names below a root at one instant: what a listing misses, or sees twice, the kernel puts right."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.storage.files.calls import LinuxCalls
from mq.storage.files.layout import Layout
from mq.storage.files.live_names import Inotify, LiveNames, Overflowed
from simulation.calls import FaultyCalls


class Watched:
    """A root on the real file system, whose names are followed; another process acts between two calls."""

    def __init__(self, root: Path) -> None:
        for folder in Layout.under(str(root)).all():
            os.makedirs(folder)
        (root / "queues" / "q").mkdir()
        self.root = root
        self.calls = FaultyCalls(LinuxCalls(), str(root))
        self.notifier = Inotify()
        self.names = LiveNames(self.calls, Layout.under(str(root)), self.notifier)

    def put(self, path: str) -> None:
        (self.root / path).touch()

    def move(self, source: str, target: str) -> None:
        os.rename(self.root / source, self.root / target)

    def files(self) -> set[str]:
        return {f"{folder}/{name}" for folder, names in self.names.files.items() for name in names}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path / "root")
    yield watched
    watched.notifier.close()


def test_what_moves_ahead_of_the_listing_is_not_missed(watched: Watched) -> None:
    watched.put("queues/q/m")
    came = watched.calls.just_before("names", "queues/q", lambda: watched.move("queues/q/m", "delay/q:m"))
    watched.names.begin()
    assert came
    assert watched.files() == set()
    watched.names.catch_up()
    assert watched.files() == {"delay/q:m"}
    assert list(watched.names.fresh()) == [("delay", "q:m")]


def test_what_moves_behind_the_listing_is_not_there_twice(watched: Watched) -> None:
    watched.put("new/q:m")
    watched.calls.just_before("names", "queues/q", lambda: watched.move("new/q:m", "queues/q/m"))
    watched.names.begin()
    watched.names.catch_up()
    assert watched.files() == {"queues/q/m"}


def test_a_queue_that_comes_meanwhile_is_followed(watched: Watched) -> None:
    watched.names.begin()
    (watched.root / "queues" / "later").mkdir()
    watched.put("queues/later/a")
    watched.names.catch_up()
    watched.move("queues/later/a", "queues/later/b")
    watched.names.catch_up()
    assert watched.files() == {"queues/later/b"}
    assert watched.names.files["queues/q"] == set()


def test_changes_up_to_the_end_of_a_late_listing_are_made(watched: Watched) -> None:
    """A message leaves a new queue before that is listed, for a folder of which the change was read too early."""
    watched.put("queues/q/m")
    watched.names.begin()
    watched.names.catch_up()
    list(watched.names.fresh())
    (watched.root / "queues" / "later").mkdir()
    watched.move("queues/q/m", "queues/later/m")
    watched.calls.just_before("names", "queues/later", lambda: watched.move("queues/later/m", "delay/later:m"))
    watched.names.catch_up()
    assert watched.files() == {"delay/later:m"}


def test_a_deleted_queue_takes_its_messages_along(watched: Watched) -> None:
    watched.put("queues/q/m")
    watched.names.begin()
    watched.move("queues/q", "remove/q:id")
    (watched.root / "queues" / "q").mkdir()
    watched.put("queues/q/n")
    watched.names.catch_up()
    assert watched.files() == {"queues/q/n"}
    assert watched.names.removed_queues == {"q:id"}
    (watched.root / "remove" / "q:id" / "m").unlink()
    (watched.root / "remove" / "q:id").rmdir()
    watched.names.catch_up()
    assert watched.names.removed_queues == set()


def test_half_a_move_is_waited_for(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has told where it went from, and not yet where to: the message is in no folder just then."""
    watched.put("queues/q/m")
    watched.names.begin()
    watched.names.catch_up()
    watched.move("queues/q/m", "delay/q:m")
    left, came = watched.notifier.changes()
    told = iter([[left], [came], []])
    monkeypatch.setattr(watched.notifier, "changes", lambda: next(told, []))
    watched.calls.log.clear()
    watched.names.catch_up()
    assert watched.files() == {"delay/q:m"}
    assert [call.path.rpartition("/")[0] for call in watched.calls.log] == ["queues/q"]  # under whose lock it ends


def test_what_is_gone_for_good_is_gone(watched: Watched, tmp_path: Path) -> None:
    watched.put("queues/q/m")
    watched.put("delay/q:n")
    watched.names.begin()
    os.rename(watched.root / "queues/q/m", tmp_path / "elsewhere")
    (watched.root / "delay/q:n").unlink()
    watched.names.catch_up()
    assert watched.files() == set()
    assert list(watched.names.fresh()) == []


def test_links_and_folders_are_no_messages(watched: Watched) -> None:
    os.symlink("/etc/passwd", watched.root / "new" / "q:m")
    (watched.root / "delay" / "q:n").mkdir()
    watched.names.begin()
    watched.names.catch_up()
    assert watched.files() == set()


def test_records_are_followed_by_kind(watched: Watched) -> None:
    watched.names.begin()
    (watched.root / "state/records/queue").mkdir()
    watched.put("state/records/queue/kq.1")
    watched.put("state/records/stray")
    watched.names.catch_up()
    assert watched.files() == {"state/records/queue/kq.1"}


@pytest.mark.proof
def test_too_many_changes_are_told_and_it_begins_again(watched: Watched) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 1 << 17:
        pytest.skip("the kernel keeps too many changes here for a quick test")
    watched.names.begin()
    watched.names.catch_up()
    for number in range(limit // 2 + 2):
        watched.move("queues/q", f"queues/q{number}") if number == 0 else None
        watched.put(f"new/{number % 2}")
        (watched.root / f"new/{number % 2}").unlink()
    with pytest.raises(Overflowed):
        watched.names.catch_up()
    watched.names.begin()
    watched.names.catch_up()
    assert set(watched.names.files) >= {"new", "delay", "queues/q0"}


CHURN = """
import os, random, sys
root, first = sys.argv[1], int(sys.argv[2])
places = {number: f"{root}/new/q:{number}" for number in range(first, 40, 3)}
for path in places.values():
    open(path, "w").close()
print("began", flush=True)
while True:
    number = random.choice(list(places))
    queue = random.randrange(20)
    to = random.choice([f"{root}/new/q:{number}", f"{root}/delay/q:{number}", f"{root}/queues/q{queue}/{number}"])
    if to != places[number]:
        os.rename(places[number], to)
        places[number] = to
"""
"""Moves its third of 40 messages about, as fast as it can."""


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_among_real_moves_each_message_is_in_one_place_at_each_instant(watched: Watched) -> None:
    for number in range(20):
        (watched.root / "queues" / f"q{number}").mkdir()
    command = [sys.executable, "-c", CHURN, str(watched.root)]
    churns = [subprocess.Popen([*command, str(first)], stdout=subprocess.PIPE) for first in range(3)]
    try:
        for churn in churns:
            assert churn.stdout is not None
            churn.stdout.readline()
        names = LiveNames(LinuxCalls(), Layout.under(str(watched.root)), watched.notifier)
        for _ in range(20):
            names.begin()
            for _ in range(1000):
                with contextlib.suppress(Overflowed):
                    names.catch_up()
                    found = [name.rpartition(":")[2] for there in names.files.values() for name in there]
                    assert sorted(map(int, found)) == list(range(40))
                    continue
                names.begin()
    finally:
        for churn in churns:
            churn.kill()
            churn.communicate()
