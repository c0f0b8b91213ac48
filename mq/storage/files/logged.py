"""A commit by the log (:mod:`mq.storage.files.log`): one record, one flush, then the file calls without any sync.

The record says what the file calls will do (:mod:`mq.storage.files.sayings`). An operation may be refused after its
record, such as a move into a folder that cannot grow on a full disk. Another record takes it back, before it is
answered. A group stands in one record, with the records that it keeps and forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Final, Protocol, TypeVar

from mq.message import SharedAttributes
from mq.storage.files.barrier import Barrier
from mq.storage.files.batch import Batch, Planned, plan, refusal
from mq.storage.files.folders import Folders
from mq.storage.files.hop import inline_hop
from mq.storage.files.layout import Layout, encode_attributes
from mq.storage.files.log import Log
from mq.storage.files.records import Records
from mq.storage.files.sayings import Forgotten, Kept, Moved, Refused, Removed, Saying, Wrote, encode
from mq.storage.files.staging import StagedBody, StagedFile
from mq.storage.files.together import NOT_DONE, Doing, Unit, is_gone, refused_before
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
    largest = log.largest_payload
    portions = _plain_portions(folders.layout, operations, largest)
    if portions is not None:
        for plain in portions:
            outcomes += _commit_plain(folders, log, plain)
        return outcomes
    units = [each.operations if isinstance(each, Group) else (each,) for each in operations]
    for portion in _portions([tuple(map(_encoding_once, unit)) for unit in units], largest):
        outcomes += _commit(folders, records, log, portion, largest)
    return outcomes


@contextmanager
def said(log: Log, *sayings: Saying) -> Iterator[None]:
    """The block's file calls do what these say, which is on the medium before.

    Raises:
        OSError: the medium has failed.
    """
    with log.recorded(encode(sayings), flushes=True) as sequence:
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
    folders: Folders, log: Log, sayings: Sequence[Saying], do: Callable[[], _D], *, flushes: bool
) -> _D | None:
    """Append a record of what `do` does, and then do that. None when the medium has failed."""
    payload = encode(sayings)
    try:
        with log.recorded(payload, flushes=flushes) as sequence:
            done = do()
            if done.refused:
                log.append(encode([Refused(sequence, tuple(done.refused)), *done.undoing]))
                log.flush()
                done.undo()
            done.end()
            return done
    except OSError as error:
        folders.fail(error)
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
        return _LINE_BYTES + len(encode_attributes(operation.attributes)) + (_inline_bytes(operation, largest) or 0)
    if isinstance(operation, Put):
        return _LINE_BYTES + len(encode_attributes(operation.value)) + 3 * len(operation.key)
    return _LINE_BYTES


def _encoding_once(operation: AnyOperation) -> AnyOperation:
    """The operation, whose attributes or value are encoded once for the record, the file and the reckoning of both."""
    if isinstance(operation, Write) and operation.attributes and not isinstance(operation.attributes, SharedAttributes):
        return operation._replace(attributes=SharedAttributes(operation.attributes))
    return operation._replace(value=SharedAttributes(operation.value)) if isinstance(operation, Put) else operation


def _inline_bytes(operation: Write, largest: int) -> int | None:
    """Bytes of a body that goes into the log; None where it does not."""
    body = operation.body
    if not isinstance(body, bytes) or len(body) > min(LARGEST_INLINE, largest // 2):
        return None
    return len(body)


# Messages with small bodies, each by itself: nearly every batch


def _plain_portions(
    layout: Layout, operations: Sequence[AnyOperation], largest: int
) -> Iterable[Sequence[Planned]] | None:
    """The operations worked out, as many at a time as one record holds; None where not all of them are plain."""
    portions: list[list[Planned]] = [[]]
    size = 0
    longest = min(LARGEST_INLINE, largest // 2)
    for operation in operations:
        if isinstance(operation, Write):
            if not isinstance(operation.body, bytes) or len(operation.body) > longest:
                return None
        elif not isinstance(operation, Move | Unlink):
            return None
        planned = plan(layout, operation)
        more = _LINE_BYTES + len(planned.attributes) + planned.size
        if portions[-1] and size + more > largest:
            portions.append([])
            size = 0
        portions[-1].append(planned)
        size += more
    return portions


def _commit_plain(folders: Folders, log: Log, planned: Sequence[Planned]) -> list[Outcome]:
    """Do what one record holds."""
    if folders.failure:
        return _failed(folders, planned)
    sayings = [_saying(folders.layout, each) for each in planned]
    flushes = any(each.operation.durable or isinstance(each.operation, Write) for each in planned)
    done = _record_and_do(folders, log, sayings, partial(_DoingPlain, folders, planned), flushes=flushes)
    return _failed(folders, planned) if done is None else done.outcomes


class _DoingPlain:
    """As :class:`Doing`, for operations of which none is taken back."""

    undoing: Sequence[Saying] = ()

    def __init__(self, folders: Folders, planned: Sequence[Planned]) -> None:
        operations = [each.operation for each in planned]
        self.outcomes = Batch(folders, operations, planned).run()
        self.refused = [
            number
            for number, outcome in enumerate(self.outcomes)
            if outcome.result in NOT_DONE and not is_gone(operations[number], outcome)
        ]

    def undo(self) -> None:
        """Nothing is taken back."""

    def end(self) -> None:
        """Each operation is whole by itself."""


def _saying(layout: Layout, planned: Planned) -> Saying:
    operation, _, path, source, attributes, size, crc = planned
    path = layout.below_root(path)
    if isinstance(operation, Move):
        return Moved(layout.below_root(source), path)
    if isinstance(operation, Unlink):
        return Removed(path)
    body = operation.body
    if isinstance(body, bytes):
        return Wrote(path, size, crc, attributes, body)
    assert isinstance(body, StagedBody), "staged in another store"
    return Wrote(path, size, crc, attributes, None, layout.below_root(body.file.path))


# All else: groups and records, and large bodies


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
    done = iter(_commit_units(folders, records, log, doing) if doing else ())
    outcomes = [each if isinstance(each, Outcome) else next(done) for each in prepared]
    large.discard(of_it.result is Result.DONE for of_it, unit in zip(outcomes, units, strict=True) for _ in unit)
    return outcomes


def _failed(folders: Folders, units: Sequence[object]) -> list[Outcome]:
    return [Outcome(Result.FAILED, reason=folders.failure)] * len(units)


def _commit_units(folders: Folders, records: Records, log: Log, units: Sequence[Unit]) -> list[Outcome]:
    try:
        early = [refused_before(folders, unit) if len(unit) > 1 else None for unit in units]
    except OSError as error:
        folders.fail(error)
        return _failed(folders, units)
    doing = [unit for unit, refused in zip(units, early, strict=True) if refused is None]
    if not doing:
        return [refused for refused in early if refused is not None]
    operations = [operation for unit in doing for operation in unit]
    sayings = [_saying_of(folders.layout, operation) for operation in operations]
    flushes = any(not isinstance(operation, Move | Unlink) or operation.durable for operation in operations)
    done = _record_and_do(folders, log, sayings, partial(Doing, folders, records, doing), flushes=flushes)
    outcomes = iter(_failed(folders, doing) if done is None else done.outcomes)
    return [next(outcomes) if refused is None else refused for refused in early]


def _saying_of(layout: Layout, operation: AnyOperation) -> Saying:
    if isinstance(operation, Put):
        return Kept(*operation)
    if isinstance(operation, Drop):
        return Forgotten(*operation)
    assert not isinstance(operation, Group), "a group in a group"
    return _saying(layout, plan(layout, operation))


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
        self._files: list[StagedFile] = []

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
        except OSError as error:
            self._discard(len(self._made) - 1)
            return refusal(error)
        assert isinstance(body, StagedBody), "staged in another store"
        self._files.append(body.file)
        return operation._replace(body=body)

    def sync(self) -> None:
        """Bring them and their names to the medium: each by itself, or where they are many and that is cheaper, all at
        once.

        Raises:
            OSError: the medium has failed.
        """
        syncs, count = self._folders.syncs, len(self._files)
        if not count:
            return
        if syncs.prefer_everything(count):
            syncs.everything()
            return
        with syncs.costs.of_files(count):
            for file in self._files:
                file.sync()
        if not syncs.ordered:  # else each file brings its name
            barrier = Barrier(syncs)  # which finds a way where no more files can be opened
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
