"""A commit by the log (:mod:`mq.storage.files.log`): one record, one flush, then the file calls without any sync.

The record says what the file calls will do (:mod:`mq.storage.files.sayings`). What is refused though its record says it
is done, such as a move into a folder that cannot grow on a full disk, is taken back by a record of its own, before it
is answered. A group stands in one record, with what it keeps and forgets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final

from mq.lifecycle import State
from mq.message import SharedAttributes, checksum
from mq.storage.files.barrier import Barrier
from mq.storage.files.batch import refusal
from mq.storage.files.folders import Folders
from mq.storage.files.hop import inline_hop
from mq.storage.files.layout import encode_attributes
from mq.storage.files.log import Log
from mq.storage.files.records import Records
from mq.storage.files.sayings import Forgotten, Kept, Moved, Refused, Removed, Saying, Wrote, encode
from mq.storage.files.staging import StagedBody, StagedFile
from mq.storage.files.together import Doing, Unit, refused_before
from mq.storage.interface import AnyOperation, Drop, Group, Move, Outcome, Put, Result, Unlink, Write

LARGEST_INLINE: Final = 1 << 16
"""Bytes of a body that goes into the log. A larger one is brought to the medium by its own file."""
_LINE_BYTES: Final = 600
"""More than any line of an operation takes, but for a record's key."""


def most_together(log: Log) -> tuple[int, int]:
    """How many operations, and bytes besides their places, a group may have: one record holds it."""
    half = log.largest_payload // 2
    return half // _LINE_BYTES, half


def commit(folders: Folders, records: Records, log: Log, operations: Sequence[AnyOperation]) -> list[Outcome]:
    """Do a batch, by as few records as hold it. One outcome for each operation, in order."""
    outcomes: list[Outcome] = []
    units = [each.operations if isinstance(each, Group) else (each,) for each in operations]
    largest = log.largest_payload
    for portion in _portions([tuple(map(_encoding_once, unit)) for unit in units], largest):
        outcomes += _commit(folders, records, log, portion, largest)
    return outcomes


@contextmanager
def said(log: Log, *sayings: Saying) -> Iterator[None]:
    """The block's file calls do what these say, which is on the medium before.

    Raises:
        OSError: the medium has failed.
    """
    payload = encode(sayings)
    with log.room(len(payload)):
        sequence = log.append(payload)
        log.flush()
        try:
            yield
        except OSError:
            log.append(encode([Refused(sequence, tuple(range(len(sayings))))]))
            log.flush()
            raise
        except BaseException:
            log.cut_off()
            raise


def _portions(units: Sequence[Unit], largest: int) -> Iterator[list[Unit]]:
    """The units in order, as many at a time as one record holds."""
    # A deleted queue's end may empty the log, which must not be between a group and what takes it back.
    portion: list[Unit] = []
    size = 0
    has_group = has_reaping = False
    for unit in units:
        more = sum(_bytes(operation, largest) for operation in unit)
        has_group |= len(unit) > 1
        has_reaping |= isinstance(unit[0], Unlink) and unit[0].entry.state is State.REMOVED
        if portion and (size + more > largest or (has_group and has_reaping)):
            yield portion
            portion, size = [], 0
            has_group, has_reaping = len(unit) > 1, len(unit) == 1 and has_reaping
        portion.append(unit)
        size += more
    if portion or not units:
        yield portion


def _bytes(operation: AnyOperation, largest: int) -> int:
    """At least as many as an operation takes of a record."""
    if isinstance(operation, Write):
        return _LINE_BYTES + len(encode_attributes(operation.attributes)) + (_inline_bytes(operation, largest) or 0)
    return _LINE_BYTES + (
        len(json.dumps(operation.value)) + 3 * len(operation.key) if isinstance(operation, Put) else 0
    )


def _encoding_once(operation: AnyOperation) -> AnyOperation:
    """The operation, whose attributes are encoded once for the record, the file and the reckoning of both."""
    if isinstance(operation, Write) and operation.attributes and not isinstance(operation.attributes, SharedAttributes):
        return operation._replace(attributes=SharedAttributes(operation.attributes))
    return operation


def _inline_bytes(operation: Write, largest: int) -> int | None:
    """Bytes of a body that goes into the log; None where it does not."""
    body = operation.body
    if not isinstance(body, bytes) or len(body) > min(LARGEST_INLINE, largest // 2):
        return None
    return len(body)


def _commit(folders: Folders, records: Records, log: Log, units: Sequence[Unit], largest: int) -> list[Outcome]:
    """Do what one record holds."""
    large = _LargeBodies(folders, largest)
    try:
        prepared = [large.staged_all(unit) for unit in units]
        large.sync()
    except OSError as error:
        folders.fail(error)
    if folders.failure:
        return _failed(folders, units)
    doing = [each for each in prepared if not isinstance(each, Outcome)]
    done = iter(_record_and_do(folders, records, log, doing) if doing else ())
    outcomes = [each if isinstance(each, Outcome) else next(done) for each in prepared]
    large.discard(of_it.result is Result.DONE for of_it, unit in zip(outcomes, units, strict=True) for _ in unit)
    return outcomes


def _failed(folders: Folders, units: Sequence[Unit]) -> list[Outcome]:
    return [Outcome(Result.FAILED, reason=folders.failure)] * len(units)


def _record_and_do(folders: Folders, records: Records, log: Log, units: Sequence[Unit]) -> list[Outcome]:
    early = [refused_before(folders, unit) if len(unit) > 1 else None for unit in units]
    doing = [unit for unit, refused in zip(units, early, strict=True) if refused is None]
    if not doing:
        return [refused for refused in early if refused is not None]
    operations = [operation for unit in doing for operation in unit]
    payload = encode([_saying(folders, operation) for operation in operations])
    try:
        with log.room(len(payload)):
            sequence = log.append(payload)
            if any(not isinstance(operation, Move | Unlink) or operation.durable for operation in operations):
                log.flush()
            done = Doing(folders, records, doing)
            if done.refused:
                log.append(encode([Refused(sequence, tuple(done.refused)), *done.undoing]))
                log.flush()
                done.undo()
    except OSError as error:
        folders.fail(error)
        return _failed(folders, units)
    except BaseException:
        log.cut_off()
        raise
    outcomes = iter(done.outcomes)
    return [next(outcomes) if refused is None else refused for refused in early]


def _saying(folders: Folders, operation: AnyOperation) -> Saying:
    layout = folders.layout
    if isinstance(operation, Move):
        old, new = layout.path(operation.entry), layout.path(operation.target)
        return Moved(layout.below_root(old), layout.below_root(new))
    if isinstance(operation, Unlink):
        return Removed(layout.below_root(layout.path(operation.entry)))
    if isinstance(operation, Put):
        return Kept(*operation)
    if isinstance(operation, Drop):
        return Forgotten(*operation)
    assert isinstance(operation, Write), "a group in a group"
    path = layout.below_root(layout.path(operation.entry))
    attributes = encode_attributes(operation.attributes)
    body = operation.body
    if isinstance(body, bytes):
        return Wrote(path, len(body), checksum(body), attributes, body)
    assert isinstance(body, StagedBody), "staged in another store"
    return Wrote(path, body.size, body.checksum, attributes, None, layout.below_root(body.file.path))


class _LargeBodies:
    """Bodies that do not go into the log: they are on the medium before a record names them.

    Args:
        folders: of the root.
        largest: bytes that one record can hold.
    """

    def __init__(self, folders: Folders, largest: int) -> None:
        self._folders = folders
        self._largest = largest
        self._made: list[StagedFile | None] = []
        self._any = False

    def staged_all(self, unit: Unit) -> Unit | Outcome:
        """A unit as it can be recorded, or why it is refused.

        Raises:
            OSError: the medium has failed.
        """
        staged = [self._staged(operation) for operation in unit]
        refused = next((each for each in staged if isinstance(each, Outcome)), None)
        return refused or tuple(each for each in staged if not isinstance(each, Outcome))

    def _staged(self, operation: AnyOperation) -> AnyOperation | Outcome:
        """The operation as it can be recorded, or why it is refused.

        Raises:
            OSError: the medium has failed.
        """
        self._made.append(None)
        if not isinstance(operation, Write) or _inline_bytes(operation, self._largest) is not None:
            return operation
        body = operation.body
        try:
            if isinstance(body, bytes):
                self._folders.reserve.ensure()
                path = f"{self._folders.stage}/{operation.id}"
                file = StagedFile(self._folders.calls, path, self._folders.reserve.ensure, xattrs=self._folders.xattrs)
                self._made[-1] = file
                file.add(body)
                body = StagedBody(file, inline_hop, nullcontext())
            assert isinstance(body, StagedBody), "staged in another store"
            body.file.sync()
        except OSError as error:
            self._discard(len(self._made) - 1)
            return refusal(error)
        self._any = True
        return operation._replace(body=body)

    def sync(self) -> None:
        """Bring their names to the medium."""
        if self._any:
            barrier = Barrier(self._folders.syncs)  # which finds a way where no more files can be opened
            barrier.add_folders(self._folders.stage)
            barrier.flush()

    def discard(self, done: Iterable[bool]) -> None:
        """Take away what was staged here for nothing.

        Args:
            done: of each operation, in order.
        """
        for number, is_done in enumerate(done):
            if not is_done:
                self._discard(number)

    def _discard(self, number: int) -> None:
        file = self._made[number]
        if file is not None:
            file.discard()
