"""The part of a batch that takes no thought, done in one go where mq-native is installed.

What is not done here, for whatever reason, :class:`mq.storage.batch.Batch` does one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mq.lifecycle import State
from mq.message import checksum
from mq.storage.calls import Native, Step
from mq.storage.folders import Folders
from mq.storage.interface import Entry, Move, Operation, Unlink, Write
from mq.storage.native import check_refused
from mq.storage.properties import LARGEST_ATTRIBUTES, encode_noted


def do_at_once(
    native: Native, folders: Folders, operations: Iterable[tuple[int, Operation]], *, keep: bool
) -> Iterator[tuple[int, Entry, int]]:
    """Write, move and remove what is plain, in order. What was done: the operation's number, where its message is now,
    and the file that was written, open if `keep` is true.

    Raises:
        OSError: the medium has failed; only when everything that was done has been told.
    """
    planned: list[tuple[int, Entry]] = []
    steps: list[Step] = []
    room: bool | None = None
    for index, operation in operations:
        if isinstance(operation, Move):
            entry = moved_entry(operation)
            steps.append((folders.layout.path(operation.entry), folders.layout.path(entry)))
        elif isinstance(operation, Write) and isinstance(operation.body, bytes):
            room = _has_room(folders) if room is None else room
            if not room:
                continue
            entry = Entry(operation.queue, operation.id, State.NEW, operation.meta)
            steps.append(_written(folders, operation, operation.body, entry))
        elif isinstance(operation, Unlink) and operation.entry.state is not State.REMOVED and not folders.sides:
            entry = operation.entry
            steps.append((folders.layout.path(entry),))
        else:
            continue
        planned.append((index, entry))
    failure: OSError | None = None
    for (index, entry), result in zip(planned, native.do_steps(steps, keep), strict=True):
        if result >= 0:
            yield index, entry, result
            continue
        try:
            check_refused(result, folders.layout.path(entry))
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure


def moved_entry(operation: Move) -> Entry:
    """Where a message is after its move."""
    entry = operation.entry
    return Entry(operation.queue or entry.queue, entry.id, operation.state, operation.meta)


def _written(folders: Folders, operation: Write, body: bytes, entry: Entry) -> Step:
    attributes, noted = encode_noted(operation.attributes, len(body), checksum(body), LARGEST_ATTRIBUTES)
    return folders.layout.path(entry), body, noted, attributes


def _has_room(folders: Folders) -> bool:
    try:
        folders.ballast.take()
    except OSError:
        return False  # asked again, and refused, one by one
    return True
