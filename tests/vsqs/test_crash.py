"""The power fails at every call, on disks that forget what was not synced: what was answered is still so."""

from __future__ import annotations

from random import Random

import pytest

from mq.storage.files.calls import OPEN_FOLDER
from mq.storage.files.mount import Mount
from mq.vsqs import Message, Queue
from mq.vsqs.system import System
from simulation.disk import Disk, Medium
from simulation.faults import Faults, PowerCut
from tests.cases import for_each
from tests.vsqs.places import Clock

FOLDER = "/queue"
VISIBILITY_SECONDS = 5
OPERATIONS = 14
SEEDS = range(25)


class FolderDisk(Disk):
    """A disk that forgets, with what a queue's folder needs besides."""

    changes = 0

    def is_at(self, fd: int, path: str) -> bool:
        try:
            return self._open[fd].node is self._node(path)
        except FileNotFoundError:
            return False

    def changed_ns(self, path: str) -> int:
        self._node(path)
        return self.changes

    def _change(self, *parts: object) -> None:
        self.changes += 1
        super()._change(*parts)


class Life:
    """Two programs on one queue, what they were answered, and one cut."""

    def __init__(self, medium: Medium, seed: int, cut_at: int | None) -> None:
        self.random = Random(seed)
        self.faults = Faults(Random(seed), lambda text: None)
        self.disk = FolderDisk(medium, Random(seed), self.faults)
        self.clock = Clock()
        self.system = System(
            calls=self.disk,
            now_ns=self.clock.now_ns,
            sleep=self.clock.sleep,
            mount=lambda path: Mount("test", atomic_rename=medium is not Medium.ADVERSARIAL),
            heard=frozenset(),
        )
        self.disk.mkdir(FOLDER)
        self.disk.fsync(self.disk.open("/", OPEN_FOLDER))
        self.queues = [self.open(), self.open()]
        self.faults.cut_at = cut_at and self.faults.calls + cut_at
        self.before = self.faults.calls
        self.published: dict[str, bytes] = {}
        self.attempted: set[bytes] = set()
        self.hidden: dict[str, Message] = {}
        self.doubtful: set[str] = set()
        self.deleted: set[str] = set()

    def open(self) -> Queue:
        return Queue(FOLDER, system=self.system)

    def live(self) -> int:
        """Until the cut, or the end. How many calls were made."""
        try:
            for number in range(OPERATIONS):
                self.clock.ns += 10**6  # an id that was deleted may be given again within its millisecond
                self.random.choice((self.publish, self.publish, self.receive, self.delete, self.release, self.wait))(
                    b"body %d" % number
                )
        except PowerCut:
            self.disk.crash()
        return self.faults.calls - self.before

    def publish(self, body: bytes) -> None:
        self.attempted.add(body)
        id = self.random.choice(self.queues).publish(body)
        self.published[id] = body

    def receive(self, _: bytes) -> None:
        self.doubtful.update(self.published)
        message = self.random.choice(self.queues).receive(VISIBILITY_SECONDS, timeout=0)
        self.doubtful.clear()
        if message is not None:
            assert self.published[message.id] == message.body
            self.hidden[message.id] = message

    def delete(self, _: bytes) -> None:
        if self.published:
            id = self.random.choice(sorted(self.published))
            self.doubtful.add(id)
            body = self.published.pop(id)
            self.random.choice(self.queues).delete(id)
            self.doubtful.discard(id)
            self.deleted.add(id)
            self.hidden.pop(id, None)
            self.attempted.discard(body)

    def release(self, _: bytes) -> None:
        if self.hidden:
            self.hidden.popitem()[1].release()

    def wait(self, _: bytes) -> None:
        self.clock.ns += self.random.choice((1, 10**9, 2 * VISIBILITY_SECONDS * 10**9))

    def check(self) -> None:
        """After the restart."""
        self.faults.cut_at, self.faults._dead = None, False
        queue = self.open()
        held = {id for id, message in self.hidden.items() if message.expires_ms >= self.clock.ms} - self.doubtful
        now = self.drain(queue)
        assert not held & set(now), "handed out although it was hidden"
        self.clock.ns += 3 * VISIBILITY_SECONDS * 10**9
        got = now | self.drain(self.open())
        assert {id: got.get(id) for id in self.published} == self.published
        assert not self.deleted & set(got), "a deleted message came back"
        for id in set(got) - set(self.published):
            assert got[id] in self.attempted, "never published, or torn"
        assert len(set(got.values())) == len(got), "one message under two ids"
        self.clock.ns += 10**12
        assert self.open().receive(timeout=0) is None
        assert self.disk.names(FOLDER) == [], "a file was left behind"

    def drain(self, queue: Queue) -> dict[str, bytes]:
        got: dict[str, bytes] = {}
        while (message := queue.receive(VISIBILITY_SECONDS, timeout=0)) is not None:
            assert message.id not in got, "handed out twice"
            assert not got or int(message.id) > int(max(got, key=int)), "out of order"
            got[message.id] = message.body
        for id in got:
            queue.delete(id)
        return got


@pytest.mark.slow
@pytest.mark.in_turn(2)
@for_each("seed", SEEDS)
@for_each("medium", Medium)
def test_what_was_answered_survives_a_cut_at_every_call(medium: Medium, seed: int) -> None:
    calls = Life(medium, seed, None).live()
    assert calls > OPERATIONS
    for cut_at in range(1, calls + 1):
        life = Life(medium, seed, cut_at)
        life.live()
        life.check()
