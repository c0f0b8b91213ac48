"""What the journal's tests share: lives to write down, and reading them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mq.lifecycle import Kind, State, Transition
from mq.message import MessageIds
from mq.observers.journal_segments import BrokerLife, JournalSegment, segment_paths

LIFE = BrokerLife("42-cafe", "here", 42, "0", "posix:/r", 0, 1_700_000_000 * 10**9)
STEPS = (
    (Kind.PUBLISH, None, State.NEW),
    (Kind.DELIVER, State.NEW, State.READY),
    (Kind.LEASE, State.READY, State.DELAYED),
    (Kind.REMOVE, State.DELAYED, State.REMOVED),
    (Kind.REAP, State.REMOVED, None),
)


def lives(messages: int, queue: str = "orders") -> Iterator[Transition]:
    """So many messages, from their publish to their end."""
    ids = MessageIds(lambda: LIFE.started_ns, node=1)
    for number in range(messages):
        id, time_ns = ids.new(), LIFE.started_ns + number * 1_000_000
        for kind, source, target in STEPS:
            size = number if kind is Kind.PUBLISH else None
            yield Transition(
                kind, queue, id, source, target, time_ns, size, int(kind is not Kind.PUBLISH), protocol="http"
            )


def flat(rows: Iterable[Transition]) -> list[Any]:
    """The fields of all of them, one after another."""
    return [field for row in rows for field in row]


def as_row(transition: Transition) -> dict[str, object]:
    """What the journal says of it."""
    return {
        "kind": transition.kind.value,
        "queue": transition.queue,
        "id": str(transition.id),
        "source": transition.source.value if transition.source else None,
        "target": transition.target.value if transition.target else None,
        "time": transition.time_ns // 1000,
        "size": transition.size,
        "receives": transition.receives,
        "destination": transition.destination,
        "protocol": transition.protocol,
    }


def read_rows(folder: Path) -> list[dict[str, object]]:
    """All rows of all segments, in the order of lives, which names tell to the second only; times in microseconds."""
    rows = []
    segments = [JournalSegment(path) for path in segment_paths(folder)]
    for segment in sorted(segments, key=lambda segment: int(segment.head.get("started_ns", 0))):
        for batch in segment.batches():
            rows += batch.to_pylist()
    for row in rows:
        row["time"] = round(row["time"].timestamp() * 1_000_000)
    return rows


def transitions_in(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Those that are transitions, without what the journal adds."""
    kinds = {kind.value for kind in Kind}
    return [
        {name: value for name, value in row.items() if name not in ("sequence", "count", "since")}
        for row in rows
        if row["kind"] in kinds
    ]


def kinds_of(rows: list[dict[str, object]]) -> list[object]:
    """What the journal itself says, in order."""
    kinds = {kind.value for kind in Kind}
    return [row["kind"] for row in rows if row["kind"] not in kinds]
