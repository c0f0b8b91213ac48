"""A commit by the log: one record, one flush, then the file calls without any sync.

The record says what the file calls will do. An operation may be refused after its record, such as a move into a folder
that cannot grow on a full disk. Another record takes it back, before it is answered. A group is in one record, with
the records that it keeps and forgets; of one that is refused half-way, what was done is taken back, and the log says so
before (:attr:`~mq.storage.files.logged.groups.Units.undoing`), so that a power cut leaves it all or not at all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol, TypeVar

from mq.message import SharedAttributes, encode_attributes
from mq.storage.files.hop import EarlyResults
from mq.storage.files.layout import Layout, Planned, plan
from mq.storage.files.logged.bodies import LargeBodies, inline_bytes
from mq.storage.files.logged.groups import NOT_DONE, Unit, Units, is_gone, refused_before
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.record import (
    LINE_BYTES,
    Forgotten,
    Kept,
    Moved,
    Plain,
    Refused,
    Removed,
    Saying,
    Wrote,
    encode,
    plain_portions,
)
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.logged.steps import run_plain
from mq.storage.files.outcomes import DONE, failed
from mq.storage.files.staging import StagedBody
from mq.storage.interface import AnyOperation, Drop, Group, Move, Outcome, Put, Result, Unlink, Write

_DROP_BYTES: Final = 8
"""What the line of a forgotten record takes besides its kind and key."""

_NO_ROOM: Final = "the disk does not have enough free space for a longer write-ahead log"

_Flush = Callable[[int], object]
"""As :meth:`Log.flush` takes it."""


def most_together(log: Log) -> tuple[int, int]:
    """How many operations, and bytes besides their places, a group may have: one record holds it."""
    half = log.largest_payload // 2
    return half // LINE_BYTES, half


def commit(root: LoggedRoot, operations: Sequence[AnyOperation], early: EarlyResults) -> list[Outcome]:
    """Do a batch, by as few records as hold it. One outcome for each operation, in order. `early` is told of the first
    ones on the way: their record is on the disk, and their file calls are made."""
    outcomes: list[Outcome] = []
    largest = root.log.largest_payload
    portions = plain_portions(root.prefix, operations, largest)
    if portions is not None:
        for plain in portions:
            outcomes += _commit_plain(root, plain, early)
        return outcomes
    units = [each.operations if isinstance(each, Group) else (each,) for each in operations]
    for portion in _portions([tuple(map(_encoding_once, unit)) for unit in units], largest):
        if len(portion) > 1 or _fits(root, portion[0], largest):
            outcomes += _commit(root, portion, largest)
        else:
            outcomes.append(Outcome(Result.FULL, reason=_NO_ROOM))
    return outcomes


def _fits(root: LoggedRoot, unit: Unit, largest: int) -> bool:
    """Whether the log has room for a unit in one record: that of a claim of 100,000 messages has 4 MB."""
    size = sum(_bytes(operation, largest) for operation in unit)
    if size <= largest or root.folders.volume.failure:
        return True
    try:
        return root.log.takes(size)
    except OSError as error:
        root.folders.volume.fail(error)
        return True  # and its commit says so


@contextmanager
def recorded(log: Log, *sayings: Saying) -> Iterator[None]:
    """Record what the file calls of the block do. The record is on disk before they are made.

    Raises:
        OSError: the medium has failed, or has no room for a longer log.
    """
    payload = encode(sayings)
    has_room = log.takes(len(payload))
    if not has_room:
        raise OSError(errno.ENOSPC, _NO_ROOM)
    with log.lock:
        sequence = log.record(payload, flushes=True)
        try:
            yield
        except OSError:
            log.append(encode([Refused(sequence, tuple(range(len(sayings))))]))
            log.flush()
            raise
        except BaseException:
            log.cut_off()
            raise


class _Done(Protocol):
    """File calls that were made: what became of them, and how those of a group are taken back."""

    outcomes: list[Outcome]
    refused: list[int]

    @property
    def undoing(self) -> Sequence[Saying]:
        """What :meth:`undo` does."""

    def undo(self) -> None:
        """Take it back."""

    def end(self) -> None:
        """All of it is done, or taken back."""


_D = TypeVar("_D", bound=_Done)


def _record_and_do(
    root: LoggedRoot,
    payload: bytes,
    do: Callable[[], _D],
    *,
    flushes: bool,
    flush: _Flush | None = None,
) -> _D | None:
    """Append a record of what `do` does, and then do that. None when the disk has failed."""
    log = root.log
    try:
        with log.lock:
            sequence = log.record(payload, flushes=flushes, flush=flush)
            done = do()
            if done.refused:
                log.append(encode([Refused(sequence, tuple(done.refused)), *done.undoing]))
                log.flush()
                done.undo()
            if not root.folders.volume.failure:  # else a group may be half done, and a backup has to know
                done.end()
            return done
    except OSError as error:
        root.folders.volume.fail(error)
        return None
    except BaseException:
        log.cut_off()
        raise


def _portions(units: Sequence[Unit], largest: int) -> Iterator[list[Unit]]:
    """The units in order, as many at a time as one record holds."""
    portion: list[Unit] = []
    size = 0
    for unit in units:
        more = sum(_bytes(operation, largest) for operation in unit)
        if portion and size + more > largest:
            yield portion
            portion, size = [], 0
        portion.append(unit)
        size += more
    if portion or not units:
        yield portion


def _bytes(operation: AnyOperation, largest: int) -> int:
    """At least as many as an operation takes of a record."""
    if isinstance(operation, Write):
        return LINE_BYTES + len(encode_attributes(operation.attributes)) + (inline_bytes(operation, largest) or 0)
    if isinstance(operation, Put):
        return LINE_BYTES + len(encode_attributes(operation.value)) + 3 * len(operation.key)
    if isinstance(operation, Drop):  # thousands come together, where a queue goes with its bindings
        return _DROP_BYTES + len(operation.kind) + 3 * len(operation.key.encode("utf-8", "surrogatepass"))
    return LINE_BYTES


def _encoding_once(operation: AnyOperation) -> AnyOperation:
    """The operation, whose attributes or value are encoded once for the record, the file and the reckoning of both."""
    if isinstance(operation, Write) and operation.attributes and not isinstance(operation.attributes, SharedAttributes):
        return operation._replace(attributes=SharedAttributes(operation.attributes))
    if isinstance(operation, Put) and not isinstance(operation.value, SharedAttributes):
        return operation._replace(value=SharedAttributes(operation.value))
    return operation


# Messages with small bodies, each by itself: nearly every batch


def _commit_plain(root: LoggedRoot, plain: Plain, early: EarlyResults) -> list[Outcome]:
    """Do what one record holds."""
    if root.folders.volume.failure:
        return failed(root.folders.volume.failure, len(plain.planned))
    do = partial(_DoingPlain, root, plain, early)
    done = _record_and_do(root, plain.payload, do, flushes=plain.flushes)
    return failed(root.folders.volume.failure, len(plain.planned)) if done is None else done.outcomes


class _DoingPlain:
    """As :class:`Units`, for operations of which none is taken back."""

    undoing: Sequence[Saying] = ()

    def __init__(self, root: LoggedRoot, plain: Plain, early: EarlyResults) -> None:
        self.outcomes = run_plain(root, plain, early)
        self.refused: list[int] = []
        if self.outcomes is not plain.expected:
            self.refused += (
                number
                for number, (planned, outcome) in enumerate(zip(plain.planned, self.outcomes, strict=True))
                if outcome.result in NOT_DONE and not is_gone(planned.operation, outcome)
            )

    def undo(self) -> None:
        """Nothing is taken back."""

    def end(self) -> None:
        """Each operation is whole by itself."""


def _saying(layout: Layout, planned: Planned) -> Saying:
    operation, _, path, source, attributes, size, crc = planned
    place = layout.below_root(path)
    if isinstance(operation, Move):
        return Moved(layout.below_root(source), place)
    if isinstance(operation, Unlink):
        return Removed(place)
    body = operation.body
    if isinstance(body, bytes):
        return Wrote(place, size, crc, attributes, body)
    assert isinstance(body, StagedBody), "staged in another store"
    return Wrote(place, size, crc, attributes, None, layout.below_root(body.file.path))


# All else: groups and records, and large bodies


def _commit(root: LoggedRoot, units: Sequence[Unit], largest: int) -> list[Outcome]:
    """Do what one record holds."""
    if root.folders.volume.failure:
        return failed(root.folders.volume.failure, len(units))
    volume = root.folders.volume
    large = LargeBodies(root.folders, largest)
    flush: _Flush | None = None
    try:
        prepared = [large.staged_all(unit) for unit in units]
        if large.may_come_with_record:
            flush = large.bring_with
        else:
            large.bring()
    except OSError as error:
        volume.fail(error)
    if volume.failure:
        return failed(volume.failure, len(units))
    doing = [each for each in prepared if not isinstance(each, Outcome)]
    done = iter(_commit_units(root, doing, flush) if doing else ())
    outcomes = [each if isinstance(each, Outcome) else next(done) for each in prepared]
    large.discard(of_it.result is Result.DONE for of_it, unit in zip(outcomes, units, strict=True) for _ in unit)
    return outcomes


def _commit_units(root: LoggedRoot, units: Sequence[Unit], flush: _Flush | None) -> list[Outcome]:
    layout = root.folders.layout
    try:
        before = [refused_before(root.folders, unit) if len(unit) > 1 else None for unit in units]
    except OSError as error:
        root.folders.volume.fail(error)
        return failed(root.folders.volume.failure, len(units))
    doing = [unit for unit, refused in zip(units, before, strict=True) if refused is None]
    if not doing:
        return [refused for refused in before if refused is not None]
    operations = [operation for unit in doing for operation in unit]
    planned = [_planned_of(layout, operation) for operation in operations]
    if not planned:  # empty groups
        return [refused or DONE for refused in before]
    payload = encode(_saying(layout, each) if isinstance(each, Planned) else each for each in planned)
    flushes = any(not isinstance(operation, Move | Unlink) or operation.durable for operation in operations)
    do = partial(Units, root, doing, planned)
    done = _record_and_do(root, payload, do, flushes=flushes, flush=flush)
    outcomes = iter(failed(root.folders.volume.failure, len(doing)) if done is None else done.outcomes)
    return [next(outcomes) if refused is None else refused for refused in before]


def _planned_of(layout: Layout, operation: AnyOperation) -> Planned | Kept | Forgotten:
    """An operation on a message, worked out; what the log says of one on a record."""
    if isinstance(operation, Put):
        return Kept(*operation)
    if isinstance(operation, Drop):
        return Forgotten(*operation)
    assert not isinstance(operation, Group), "a group in a group"
    return plan(layout, operation)
