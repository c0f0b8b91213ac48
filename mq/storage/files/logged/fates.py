"""The result of the log: where its records leave each message, and the last value of each record that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq.storage.files.logged.record import Forgotten, Kept, Moved, QueueRemoved, Refused, Removed, Saying, Wrote, decode
from mq.storage.files.logged.segments import Record
from mq.storage.files.records import file_of
from mq.storage.interface import QUEUE


class MessageFate:
    """What the log says of one message.

    Attributes:
        place: the path below the root where it is in the end; None where it was taken away.
        places: every path that the log gives it.
        wrote: how it was written, where that is in the log.
    """

    __slots__ = ("place", "places", "wrote")

    def __init__(self, place: str | None, *places: str, wrote: Wrote | None = None) -> None:
        self.place = place
        self.places = set(places)
        self.wrote = wrote


def carried_out(told: Sequence[tuple[int, Sequence[Saying]]]) -> list[list[Saying]]:
    """What records say, each with its sequence, without what was refused then."""
    refused = refused_by(told)
    return [
        [saying for number, saying in enumerate(sayings) if (sequence, number) not in refused]
        for sequence, sayings in told
    ]


def refused_by(told: Iterable[tuple[int, Sequence[Saying]]]) -> set[tuple[int, int]]:
    """What was refused: of each the sequence of its record, and its number there."""
    return {
        (saying.sequence, number)
        for _, sayings in told
        for saying in sayings
        if isinstance(saying, Refused)
        for number in saying.numbers
    }


def fates_of(sayings: Iterable[Saying]) -> dict[str, MessageFate]:
    """What the log says of each message, by its id."""
    fates: dict[str, MessageFate] = {}
    for saying in sayings:
        match saying:
            case Wrote(path):
                fates[id_of(path)] = MessageFate(path, path, wrote=saying)
            case Moved(old, new):
                fate = fates.setdefault(id_of(old), MessageFate(old, old))
                if fate.place == old:
                    fate.place = new
                    fate.places.add(new)
            case Removed(path):
                fate = fates.setdefault(id_of(path), MessageFate(path, path))
                if fate.place == path:
                    fate.place = None
            case QueueRemoved(queue):
                for fate in fates.values():
                    if fate.place is not None and fate.place.startswith(f"queues/{queue}/"):
                        fate.place = None
    return fates


def id_of(path: str) -> str:
    """Return the id of the message at a path below the root."""
    name = path.rpartition("/")[2]
    return (name.partition(":")[2] or name).partition(",")[0]


def last_records(sayings: Iterable[Saying]) -> dict[tuple[str, str], Kept | None]:
    """The last value of each record in the log; None where it is forgotten."""
    last: dict[tuple[str, str], Kept | None] = {}
    for saying in sayings:
        match saying:
            case Kept(kind, key):
                last[kind, key] = saying
            case Forgotten(kind, key):
                last[kind, key] = None
            case QueueRemoved(queue):
                last[QUEUE, queue] = None
    return last


def forgotten_by(live: Sequence[Record]) -> set[tuple[str, str]]:
    """The records that these records of the log forget in the end, by kind and first part of their files' names."""
    done = carried_out([(record.sequence, decode(record.payload)) for record in live])
    last = last_records(saying for sayings in done for saying in sayings)
    return {(kind, file_of(key)) for (kind, key), kept in last.items() if kept is None}
