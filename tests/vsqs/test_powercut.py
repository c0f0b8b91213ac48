"""The power is cut under real file systems while programs use a queue: what they were answered is still so.

The disk, and how it is cut, are those of :mod:`tests.crash`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest

from mq.vsqs import Message, Queue
from mq.vsqs.system import System
from tests.crash.bench import Bench
from tests.crash.conftest import need_disks
from tests.crash.images import CrashImages, choose_cuts, mounted
from tests.crash.recording import Recording
from tests.crash.rig import FILE_SYSTEMS, FileSystem, Rig

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(300)]

CUTS = 24
OPERATIONS = 120
VISIBILITY_SECONDS = 0.05
LONG_SECONDS = 600
SEED = 7


def body_of(number: int) -> bytes:
    return f"{number}:".encode() * (300 + number % 7 * 1000)


def record(bench: Bench, system: FileSystem) -> Recording:
    """Two programs at work; a mark for everything that they begin, and for every answer."""
    random = Random(SEED)
    with Rig(bench.folder / "rig", system) as rig:
        folder = rig.mountpoint / "queue"
        with Queue(folder, create=True) as one, Queue(folder) as other:
            rig.mark("begin")
            hidden: list[Message] = []
            for number in range(OPERATIONS):
                queue = random.choice((one, other))
                what = random.choice(("publish", "publish", "receive", "receive", "delete", "release"))
                if what == "publish":
                    rig.mark(f"publishing {number}")
                    rig.mark(f"published {queue.publish(body_of(number))} {number}")
                elif what == "receive":
                    message = queue.receive(random.choice((VISIBILITY_SECONDS, LONG_SECONDS)), timeout=0)
                    if message is not None:
                        rig.mark(f"received {message.id} {message.expires_ms}")
                        hidden.append(message)
                elif hidden:
                    message = hidden.pop(random.randrange(len(hidden)))
                    rig.mark(f"changing {message.id}")
                    if what == "release":
                        message.release()
                    elif message.delete():
                        rig.mark(f"deleted {message.id}")
                time.sleep(random.choice((0, 0, 0.01)))
        recording = rig.recording()
        kept = bench.folder / "base"
        os.rename(rig.base, kept)
    return Recording(kept, recording.records)


class Promises:
    """What had been answered before a cut."""

    def __init__(self, marks: list[str]) -> None:
        self.begun: set[bytes] = set()
        self.published: dict[str, bytes] = {}
        self.hidden: dict[str, int] = {}
        self.changing: set[str] = set()
        self.deleted: set[str] = set()
        for verb, *rest in (mark.split() for mark in marks):
            if verb == "publishing":
                self.begun.add(body_of(int(rest[0])))
            elif verb == "published":
                self.published[rest[0]] = body_of(int(rest[1]))
            elif verb == "received":
                self.hidden[rest[0]] = int(rest[1])
            elif verb == "changing":
                self.changing.add(rest[0])
                self.hidden.pop(rest[0], None)
            elif verb == "deleted":
                self.deleted.add(rest[0])
                del self.published[rest[0]]

    def check(self, folder: Path, now_ns: int) -> None:
        """After the restart, first at the very instant of the cut and then after all times have run out."""
        clock = [now_ns]
        system = System(now_ns=lambda: clock[0], sleep=time.sleep)
        with Queue(folder, system=system) as queue:
            at_once = drain(queue)
            assert not {id for id, until in self.hidden.items() if until >= now_ns // 1_000_000} & set(at_once)
            clock[0] += 10**12
            got = at_once | drain(queue)
        with Queue(folder, system=system) as queue:  # a new one looks for orphans at once
            assert queue.receive(timeout=0) is None
        assert not self.deleted & set(got)
        for id, body in self.published.items():
            assert got.get(id, body if id in self.changing else None) == body, id
        assert set(got.values()) <= self.begun
        assert len(set(got.values())) == len(got)
        assert os.listdir(folder) == []


def drain(queue: Queue) -> dict[str, bytes]:
    got: dict[str, bytes] = {}
    while (message := queue.receive(LONG_SECONDS, timeout=0)) is not None:
        assert message.id not in got
        got[message.id] = message.body
    for id in got:
        queue.delete(id)
    return got


@pytest.mark.parametrize("name", ["ext4", "xfs", "btrfs", "ext4-nojournal"])
def test_what_was_answered_survives(name: str) -> None:
    need_disks(name)
    system = FILE_SYSTEMS[name]
    with Bench() as bench:
        recording = record(bench, system)
        images = CrashImages(recording, system.atom, bench.folder / "cuts")
        for cut in choose_cuts(recording, recording.point("begin"), CUTS, Random(SEED)):
            images.build(cut, bench.folder / "image")
            with mounted(system, bench.folder / "image", bench.folder / "mounted") as place:
                Promises(recording.marks(cut.k)).check(place / "queue", recording.time_ns(cut.k))
