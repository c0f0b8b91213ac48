"""A commit by the log (:mod:`mq.storage.files.log`): one record, one flush, then the file calls without any sync.

The record says what the file calls will do. An operation may be refused after its record, such as a move into a folder
that cannot grow on a full disk. Another record takes it back, before it is answered. A group stands in one record, with
the records that it keeps and forgets; of one that is refused half-way, what was done is taken back, and the log says so
before (:attr:`_Doing.undoing`), so that a power cut leaves it all or not at all.

A backup sees the files and not the log. As long as a group may be half done, the name of a file tells it so
(:attr:`~mq.storage.files.layout.Layout.half`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from mq.lifecycle import State
from mq.message import SharedAttributes, encode_attributes
from mq.storage.files.barrier import Barrier, bring_in_order
from mq.storage.files.batch import Batch, refusal, run_plain
from mq.storage.files.calls import FileKind, is_transient
from mq.storage.files.folders import Folders
from mq.storage.files.hop import EarlyResults, inline_hop
from mq.storage.files.layout import Layout, Planned, plan
from mq.storage.files.log import Log
from mq.storage.files.payload import (
    LARGEST_INLINE,
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
from mq.storage.files.records import Records
from mq.storage.files.staging import StagedBody, StagedFile
from mq.storage.interface import AnyOperation, Drop, Entry, Group, Move, Outcome, Put, Result, Unlink, Write

_NOT_DONE: Final = frozenset({Result.FULL, Result.EXISTS, Result.GONE, Result.NO_QUEUE})
"""What a record said would be done, and was not."""
_DROP_BYTES: Final = 8
"""What the line of a forgotten record takes besides its kind and key."""
_DONE: Final = Outcome(Result.DONE)
_MAKE_MARK: Final = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW

_Unit = tuple[AnyOperation, ...]
"""One operation, or those of a group."""
_Flush = Callable[[int], object]
"""As :meth:`Log.flush` takes it."""


def most_together(log: Log) -> tuple[int, int]:
    """How many operations, and bytes besides their places, a group may have: one record holds it."""
    half = log.largest_payload // 2
    return half // LINE_BYTES, half


def commit(
    folders: Folders,
    records: Records,
    log: Log,
    operations: Sequence[AnyOperation],
    early: EarlyResults | None = None,
) -> list[Outcome]:
    """Do a batch, by as few records as hold it. One outcome for each operation, in order. If `early` is given, it is
    told of the first ones on the way: their record is on the medium, and their file calls are made."""
    outcomes: list[Outcome] = []
    largest = log.largest_payload
    portions = plain_portions(folders.prefix, operations, largest) if folders.xattrs else None
    if portions is not None:
        for plain in portions:
            outcomes += _commit_plain(folders, log, plain, early)
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
    with log.lock:
        sequence = log.record(encode(sayings), flushes=True)
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
    folders: Folders,
    log: Log,
    payload: bytes,
    do: Callable[[], _D],
    *,
    flushes: bool,
    flush: _Flush | None = None,
) -> _D | None:
    """Append a record of what `do` does, and then do that. None when the medium has failed."""
    try:
        with log.lock:
            sequence = log.record(payload, flushes=flushes, flush=flush)
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


def _portions(units: Sequence[_Unit], largest: int) -> Iterator[list[_Unit]]:
    """The units in order, as many at a time as one record holds."""
    portion: list[_Unit] = []
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
        return LINE_BYTES + len(encode_attributes(operation.attributes)) + (_inline_bytes(operation, largest) or 0)
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


def _inline_bytes(operation: Write, largest: int) -> int | None:
    """Bytes of a body that goes into the log; None where it does not."""
    body = operation.body
    if not isinstance(body, bytes) or len(body) > min(LARGEST_INLINE, largest // 2):
        return None
    return len(body)


# Messages with small bodies, each by itself: nearly every batch


def _commit_plain(folders: Folders, log: Log, plain: Plain, early: EarlyResults | None) -> list[Outcome]:
    """Do what one record holds."""
    if folders.failure:
        return _failed(folders, plain.operations)
    do = partial(_DoingPlain, folders, plain, early)
    done = _record_and_do(folders, log, plain.payload, do, flushes=plain.flushes)
    return _failed(folders, plain.operations) if done is None else done.outcomes


class _DoingPlain:
    """As :class:`_Doing`, for operations of which none is taken back."""

    undoing: Sequence[Saying] = ()

    def __init__(self, folders: Folders, plain: Plain, early: EarlyResults | None) -> None:
        self.outcomes = run_plain(folders, plain, early)
        self.refused: list[int] = []
        if self.outcomes is not plain.expected:
            self.refused += (
                number
                for number, outcome in enumerate(self.outcomes)
                if outcome.result in _NOT_DONE and not _is_gone(plain.operations[number], outcome)
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


def _commit(folders: Folders, records: Records, log: Log, units: Sequence[_Unit], largest: int) -> list[Outcome]:
    """Do what one record holds."""
    large = _LargeBodies(folders, largest)
    flush: _Flush | None = None
    try:
        prepared = [large.staged_all(unit) for unit in units]
        if large.may_come_with_record:
            flush = large.bring_with
        else:
            large.bring()
    except OSError as error:
        folders.fail(error)
    if folders.failure:
        return _failed(folders, units)
    doing = [each for each in prepared if not isinstance(each, Outcome)]
    done = iter(_commit_units(folders, records, log, doing, flush) if doing else ())
    outcomes = [each if isinstance(each, Outcome) else next(done) for each in prepared]
    large.discard(of_it.result is Result.DONE for of_it, unit in zip(outcomes, units, strict=True) for _ in unit)
    return outcomes


def _failed(folders: Folders, units: Sequence[object]) -> list[Outcome]:
    return [Outcome(Result.FAILED, reason=folders.failure)] * len(units)


def _commit_units(
    folders: Folders, records: Records, log: Log, units: Sequence[_Unit], flush: _Flush | None
) -> list[Outcome]:
    try:
        early = [_refused_before(folders, unit) if len(unit) > 1 else None for unit in units]
    except OSError as error:
        folders.fail(error)
        return _failed(folders, units)
    doing = [unit for unit, refused in zip(units, early, strict=True) if refused is None]
    if not doing:
        return [refused for refused in early if refused is not None]
    operations = [operation for unit in doing for operation in unit]
    planned = [_planned_of(folders.layout, operation) for operation in operations]
    if not planned:  # empty groups
        return [refused or _DONE for refused in early]
    payload = encode(_saying(folders.layout, each) if isinstance(each, Planned) else each for each in planned)
    flushes = any(not isinstance(operation, Move | Unlink) or operation.durable for operation in operations)
    do = partial(_Doing, folders, records, doing, planned)
    done = _record_and_do(folders, log, payload, do, flushes=flushes, flush=flush)
    outcomes = iter(_failed(folders, doing) if done is None else done.outcomes)
    return [next(outcomes) if refused is None else refused for refused in early]


def _planned_of(layout: Layout, operation: AnyOperation) -> Planned | Kept | Forgotten:
    """An operation on a message, worked out; what the log says of one on a record."""
    if isinstance(operation, Put):
        return Kept(*operation)
    if isinstance(operation, Drop):
        return Forgotten(*operation)
    assert not isinstance(operation, Group), "a group in a group"
    return plan(layout, operation)


class _LargeBodies:
    """Bodies that do not go into the log: they are on the medium when the record that names them is flushed.

    Where names are ordered that is one flush for all of them, and for the record: their bytes are written out first,
    and then one of them is changed and synced. That brings every change of the file system before it, and makes the
    disk empty its cache. A power cut meanwhile may leave the record, and not all of its bodies: no operation of it was
    answered, and the next start passes those over. Of a group it could not pass over one operation alone, so bodies in
    groups are on the medium before their record is written.

    Args:
        folders: of the root.
        largest: bytes that one record can hold.
    """

    def __init__(self, folders: Folders, largest: int) -> None:
        self._folders = folders
        self._largest = largest
        self._shares_flush = folders.syncs.ordered
        self._is_in_group = False
        self._made: list[StagedFile | None] = []
        self._files: list[StagedFile] = []

    @property
    def may_come_with_record(self) -> bool:
        """Whether there are some, and one flush may bring them and the record."""
        return bool(self._files) and self._shares_flush and not self._is_in_group

    def staged_all(self, unit: _Unit) -> _Unit | Outcome:
        """A unit as it can be recorded, or why it is refused.

        Raises:
            OSError: the medium has failed.
        """
        before = len(self._files)
        staged = [self._staged(operation) for operation in unit]
        if len(unit) > 1 and len(self._files) > before:
            self._is_in_group = True
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
                if self._shares_flush:
                    file.begin_write_out()
                body = StagedBody(file, inline_hop, nullcontext())
        except OSError as error:
            self._discard(len(self._made) - 1)
            return refusal(error)
        assert isinstance(body, StagedBody), "staged in another store"
        self._files.append(body.file)
        return operation._replace(body=body)

    def bring(self) -> None:
        """Bring them and their names to the medium.

        Raises:
            OSError: the medium has failed.
        """
        if self._shares_flush:
            self._bring_with()
        elif len(self._files) > 1:
            self._folders.syncs.everything()
        elif self._files:
            self._files[0].sync()
            barrier = Barrier(self._folders.syncs)  # which finds a way where no more files can be opened
            barrier.add_folders(self._folders.stage)
            barrier.flush()

    def bring_with(self, log_fd: int) -> None:
        """Bring them, their names and all bytes of the log's file to the medium.

        Raises:
            OSError: the medium has failed.
        """
        if not self._bring_with(log_fd):
            self._folders.calls.fdatasync(log_fd)

    def _bring_with(self, *fds: int) -> bool:
        """Bring them and these open files to the medium by one flush; False where their stagers have discarded all of
        them, so that nothing was synced."""
        files = [file.fd for file in self._files if file.fd is not None]
        if files:
            bring_in_order(self._folders.calls, files, *fds)
        return bool(files)

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


# What a record has said is done: each unit as a whole


def _is_gone(operation: AnyOperation, outcome: Outcome) -> bool:
    """Whether something was to be taken away that is not there. That changes nothing, also when it is done again."""
    return outcome.result is Result.GONE and isinstance(operation, Unlink | Drop)


class _Step(NamedTuple):
    """How something that was done is taken back, or ended for good."""

    saying: Callable[[], Saying]
    do: Callable[[], object]
    end: Callable[[], object] = lambda: None


class _Doing:
    """Does units that a record has said.

    Args:
        folders: of the root.
        records: of the root.
        units: in order.
        planned: of each operation, through all units.

    Attributes:
        outcomes: one of each unit.
        refused: the numbers of operations, counted through all units, that were not done.
        undoing: what the log has to say before :meth:`undo`.
    """

    def __init__(
        self, folders: Folders, records: Records, units: Sequence[_Unit], planned: Sequence[Planned | Kept | Forgotten]
    ) -> None:
        self._folders = folders
        self._records = records
        self._undo: list[_Step] = []
        self._is_marked = any(len(unit) > 1 for unit in units)
        self.outcomes: list[Outcome] = []
        self.refused: list[int] = []
        self._unmarked = _mark_half(folders) if self._is_marked else None
        kept = [self._keep_all(unit) for unit in units]  # first: they are what a full disk refuses
        in_order = iter(planned)
        messages = [
            each
            for unit, (_, refused) in zip(units, kept, strict=True)
            for each in islice(in_order, len(unit))
            if refused is None and isinstance(each, Planned)
        ]
        done = iter(Batch(folders, messages).run() if messages else ())
        first = 0
        for unit, (steps, refused) in zip(units, kept, strict=True):
            self.outcomes.append(self._end(unit, first, steps, refused, done))
            first += len(unit)

    @property
    def undoing(self) -> list[Saying]:
        """What :meth:`undo` does."""
        return [step.saying() for step in self._undo]

    def undo(self) -> None:
        """Take back what was done of groups that were refused.

        Raises:
            OSError: that is not possible.
        """
        for step in self._undo:
            step.do()

    def end(self) -> None:
        """Tell that all groups are whole.

        Raises:
            OSError: that is not possible.
        """
        if self._is_marked:
            mark_whole(self._folders)

    def _keep_all(self, unit: _Unit) -> tuple[dict[int, _Step], Outcome | None]:
        """Do the records of a unit: how each is taken back, by its place; and why one is refused, which ends that. What
        a group forgets is there until all else is done."""
        steps: dict[int, _Step] = {}
        if len(unit) > 1 and self._unmarked is not None:
            return steps, self._unmarked
        outcome: Outcome | None = None
        for place, operation in enumerate(unit):
            if isinstance(operation, Put | Drop):
                try:
                    if len(unit) > 1:
                        steps[place] = self._keep_for_now(operation)
                    else:
                        outcome = self._keep(operation)
                except OSError as error:
                    return steps, refusal(error)
        return steps, outcome if len(unit) == 1 else None

    def _keep(self, operation: Put | Drop) -> Outcome:
        if isinstance(operation, Drop):
            return _DONE if self._records.drop(*operation) else Outcome(Result.GONE)
        self._folders.reserve.ensure()
        self._records.put(*operation)
        return _DONE

    def _end(
        self, unit: _Unit, first: int, steps: dict[int, _Step], refused: Outcome | None, done: Iterator[Outcome]
    ) -> Outcome:
        """The outcome of a unit with its records done, and perhaps its messages."""
        moved: list[int] = []  # places of messages that were written or moved, of a group
        if refused is None:
            for place, operation in enumerate(unit):
                if isinstance(operation, Write | Move | Unlink):
                    outcome = next(done)
                    if len(unit) == 1 or outcome.result is not Result.DONE:
                        refused = refused or outcome
                    else:
                        moved.append(place)
        if refused is None:
            for step in steps.values():
                step.end()
            return _DONE
        steps |= {place: self._taking_back(unit[place]) for place in moved}
        if refused.result in _NOT_DONE and not _is_gone(unit[0], refused):
            self._undo += [steps[place] for place in sorted(steps, reverse=True)]
            self.refused += [first + place for place in range(len(unit)) if place not in steps]
        return refused

    def _keep_for_now(self, operation: Put | Drop) -> _Step:
        kind, key = operation.kind, operation.key
        before = self._records.reading(kind, key)

        def saying() -> Saying:
            value = before()
            return Forgotten(kind, key) if value is None else Kept(kind, key, value)

        # both ways by unlinks alone, which need no room: what a full disk refuses could not be put back, either
        if isinstance(operation, Drop):
            return _Step(saying, lambda: None, self._forgetting(operation, self._records.versions(kind, key)))
        self._folders.reserve.ensure()
        made, older = self._records.put_beside(*operation)
        return _Step(saying, self._forgetting(operation, [made]), self._forgetting(operation, older))

    def _forgetting(self, operation: Put | Drop, versions: Sequence[int]) -> Callable[[], None]:
        forget, reserve = self._records.forget, self._folders.reserve
        return partial(reserve.give_way, forget, operation.kind, operation.key, versions)

    def _taking_back(self, operation: AnyOperation) -> _Step:
        layout, reserve, calls = self._folders.layout, self._folders.reserve, self._folders.calls
        if isinstance(operation, Move):
            old, new = layout.path(operation.entry), layout.path(operation.target)
            saying = Moved(layout.below_root(new), layout.below_root(old))
            return _Step(lambda: saying, partial(reserve.give_way, calls.rename, new, old))
        assert isinstance(operation, Write), "a group has no other operations on messages"
        path = layout.path(operation.entry)
        removed = Removed(layout.below_root(path))
        return _Step(lambda: removed, partial(self._take_away, operation.entry, path))

    def _take_away(self, entry: Entry, path: str) -> None:
        self._folders.reserve.give_way(self._folders.calls.unlink, path)
        with suppress(FileNotFoundError):
            self._folders.calls.unlink(f"{self._folders.layout.properties}/{entry.id}")


def mark_whole(folders: Folders) -> None:
    """Tell that no group is half done.

    Raises:
        OSError: that is not possible.
    """
    calls, layout = folders.calls, folders.layout
    with suppress(FileNotFoundError):  # it is told, or the file was taken away by hand
        try:
            calls.rename(layout.half, layout.whole)  # cheaper than a file that comes and goes
        except OSError as error:
            if not is_transient(error) and error.errno != errno.EEXIST:
                raise
            calls.unlink(layout.half)  # which needs no room, and leaves the other of two that a cut or a hand has left


def _mark_half(folders: Folders) -> Outcome | None:
    """Tell that a group may be half done. Returns why no group can be done, if a full disk does not let it tell.

    Raises:
        OSError: the medium has failed.
    """
    calls, layout = folders.calls, folders.layout
    try:  # not at the cost of the reserve: what a group keeps or writes is new, and has to leave it alone
        try:
            calls.rename(layout.whole, layout.half)
        except FileNotFoundError:  # the first one, or the file was taken away by hand
            calls.close(calls.open(layout.half, _MAKE_MARK))
        except FileExistsError:  # made by hand: it tells what it has to
            pass
    except OSError as error:
        return refusal(error)
    return None


def _refused_before(folders: Folders, unit: _Unit) -> Outcome | None:
    """Why a group cannot be done, as far as that shows before; None where it can.

    Raises:
        OSError: the medium has failed.
    """
    kind, path = folders.calls.kind, folders.layout.path
    wanted: set[str] = set()  # queues
    for operation in unit:
        if isinstance(operation, Move):
            if kind(path(operation.entry)) is not FileKind.FILE:
                return Outcome(Result.GONE)
            if kind(path(operation.target)) is not None:
                return Outcome(Result.EXISTS)
            if operation.state is State.READY:
                wanted.add(operation.queue or operation.entry.queue)
        elif isinstance(operation, Write) and operation.state is State.READY:  # its id is new, so nothing is there
            wanted.add(operation.queue)
    if any(kind(folders.layout.folder(State.READY, queue)) is not FileKind.FOLDER for queue in wanted):
        return Outcome(Result.NO_QUEUE)
    return None
