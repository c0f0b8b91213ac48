"""Journals that are made up row by row, to say just what an audit has to find."""

from __future__ import annotations

from pathlib import Path

from mq.lifecycle import Kind, State, Transition
from mq.message import MessageId, MessageIds
from mq.observers.journal_rows import (
    CENSUS,
    GAP,
    QUEUE,
    START,
    STOP,
    found_batch,
    note_batch,
    transitions_batch,
)
from mq.observers.journal_segments import BrokerLife, SegmentWriter
from tests.observers.journals import flat

BEGIN_NS = 1_700_000_000 * 10**9
NEW, READY, DELAYED, REMOVED = State


class Clock:
    """A second passes with every look."""

    def __init__(self) -> None:
        self.now_ns = BEGIN_NS

    def __call__(self) -> int:
        self.now_ns += 10**9
        return self.now_ns


class Story:
    """One life of a broker."""

    def __init__(self, folder: Path, clock: Clock, name: str, peers: int = 0) -> None:
        self._clock = clock
        self.ids = MessageIds(clock, node=1)
        self._writer = SegmentWriter(folder, BrokerLife(name, "here", 1, "0", "posix:/r", peers, clock()))

    def start(self, queues: dict[str, list[MessageId]]) -> None:
        """It begins, and finds these messages READY."""
        self._writer.write(note_batch(START, self._clock()))
        for queue, ids in queues.items():
            if ids:
                self._writer.write(found_batch(queue, [(id, READY, 0) for id in ids], self._clock()))
            self._writer.write(note_batch(QUEUE, self._clock(), queue=queue, count=len(ids), since_ns=BEGIN_NS))
        self._writer.write(note_batch(CENSUS, self._clock(), count=sum(map(len, queues.values()))))

    def tell(
        self,
        id: MessageId,
        *steps: tuple[Kind, State | None, State | None],
        queue: str = "q",
        receives: int = 0,
        to: str | None = None,
    ) -> MessageId:
        """This happened to a message, one thing after another."""
        size = 100
        rows = [
            Transition(kind, queue, id, source, target, self._clock(), size, receives, to, "http")
            for kind, source, target in steps
        ]
        self._writer.write(transitions_batch(flat(rows)))
        return id

    def ready(self, queue: str = "q") -> MessageId:
        """A message is published and delivered."""
        return self.tell(self.ids.new(), (Kind.PUBLISH, None, NEW), (Kind.DELIVER, NEW, READY), queue=queue)

    def done(self, id: MessageId, queue: str = "q") -> MessageId:
        """A ready message is leased, removed and reaped."""
        return self.tell(
            id,
            (Kind.LEASE, READY, DELAYED),
            (Kind.REMOVE, DELAYED, REMOVED),
            (Kind.REAP, REMOVED, None),
            queue=queue,
            receives=1,
        )

    def gap(self, missing: int) -> None:
        """So many transitions are missing."""
        self._writer.write(note_batch(GAP, self._clock(), count=missing, since_ns=self._clock()), missing=missing - 1)

    def stop(self, *moving: MessageId) -> None:
        """It ends in order, while these messages of q are on their way."""
        if moving:
            self._writer.write(found_batch("q", [(id, None, 0) for id in moving], self._clock()))
        self._writer.write(note_batch(STOP, self._clock()))
        self.die()

    def die(self) -> None:
        self._writer.close()
