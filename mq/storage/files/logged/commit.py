"""A commit by the log: one record, one flush, then the file calls without any sync.

The record says what the file calls will do. An operation may be refused after its record, such as a move into a folder
that cannot grow on a full disk. Another record takes it back, before it is answered. A group is in one record, with
the records that it keeps and forgets; of one that is refused half-way, what was done is taken back, and the log says so
before (:attr:`~mq.storage.files.logged.groups.Units.undoing`), so that a power cut leaves it all or not at all.

Messages with small bodies, each by itself, are nearly every batch. What the log says of them and what their file calls
need is worked out in one pass, with nothing made in between: each message of every client pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.message import SharedAttributes, encode_attributes
from mq.storage.files.calls import Step
from mq.storage.files.hop import EarlyResults
from mq.storage.files.layout import LARGEST_ATTRIBUTES
from mq.storage.files.logged.bodies import LargeBodies
from mq.storage.files.logged.groups import NOT_DONE, Unit, Units, is_gone, refused_before
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.read_ahead import ReadAhead
from mq.storage.files.logged.record import (
    LARGEST_INLINE,
    LINE_BYTES,
    Forgotten,
    Kept,
    Refused,
    encode,
)
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.logged.steps import Messages, do_steps
from mq.storage.files.outcomes import DONE, failed
from mq.storage.files.record_changes import RecordChanges
from mq.storage.files.writes import Planned, plan
from mq.storage.interface import QUEUE, AnyOperation, Drop, Group, Move, Outcome, Put, Result, Write

_LEAST_PORTIONS: Final = 3
"""Of a smaller batch nothing is told before its end: its callers would miss the next one, which costs flushes."""
_RECORDS: Final = (Put, Drop)
_DROP_BYTES: Final = 8
"""What the line of a forgotten record takes besides its kind and key."""
NO_ROOM: Final = "the disk has no room for a longer write-ahead log"


def commit(
    root: LoggedRoot,
    queues: RecordChanges,
    read_ahead: ReadAhead,
    early: EarlyResults,
    operations: Sequence[AnyOperation],
) -> list[Outcome]:
    """Do a batch, by as few records as hold it. One outcome for each operation, in order.

    Args:
        read_ahead: reads messages before they are moved.
        early: is told of the first outcomes on the way: their record is on the disk, and their file calls are made.
    """
    early.is_over |= len(operations) < _LEAST_PORTIONS * early.every
    first = operations[0] if operations else None
    if isinstance(first, Put | Drop) and first.kind == QUEUE:  # it is alone in its batch
        return [queues.commit(first)]
    if root.folders.native is not None:  # else it costs as much as it saves
        read_ahead.fill(root.folders, operations)
    volume = root.folders.volume
    outcomes: list[Outcome] = []
    if not volume.failure:
        portion = LoggedPortion(root)
        try:
            for operation in operations:
                if not portion.add(operation):
                    outcomes += _commit(root, portion, early)
                    portion = LoggedPortion(root)
                    portion.add(operation)
            outcomes += _commit(root, portion, early)
            return outcomes
        except OSError as error:
            volume.fail(error)
            if portion.large is not None:
                portion.large.discard_all()
    return outcomes + failed(volume.failure, len(operations) - len(outcomes))


def _commit(root: LoggedRoot, portion: LoggedPortion, early: EarlyResults) -> Sequence[Outcome]:
    """Do what one record holds."""
    # If nobody waits for a batch, as when it removes acknowledged messages, only its end is reported.
    early.is_over |= bool(portion.answered) or not portion.flushes
    if not portion.recorded:
        return portion.outcomes(())
    log = root.log
    flush = portion.large.bring() if portion.large is not None else None
    with log.lock:
        try:
            sequence = log.append(encode(portion.recorded, root.prefix), flushes=portion.flushes, flush=flush)
            units = None if portion.units is None else Units(root, portion, portion.units, early)
            outcomes, refused = _do_messages(root, portion, early) if units is None else (units.outcomes, units.refused)
            if refused:
                log.append(encode([Refused(sequence, tuple(refused)), *(() if units is None else units.undoing)]))
                log.flush()
            if units is not None:
                units.end()
        except OSError as error:
            root.folders.volume.fail(error)  # with the lock: no other batch begins before
            raise
        except BaseException:
            log.cut_off()
            raise
    if portion.large is not None:
        portion.discard(outcomes)
    return portion.outcomes(outcomes) if portion.answered else outcomes


def _do_messages(
    root: LoggedRoot, portion: LoggedPortion, early: EarlyResults
) -> tuple[Sequence[Outcome], Sequence[int]]:
    """Do operations on messages, each by itself. Returns their outcomes, and the numbers of those not done."""
    planned: list[Planned] = portion.recorded  # type: ignore[assignment] # there is no record
    outcomes = do_steps(root, Messages(planned, portion.steps, portion.expected, portion.writes), early)
    if outcomes is portion.expected:
        return outcomes, ()
    return outcomes, [
        number
        for number, (each, outcome) in enumerate(zip(planned, outcomes, strict=True))
        if outcome.result in NOT_DONE and not is_gone(each.operation, outcome)
    ]


class LoggedPortion:
    """Operations and groups of a batch. Use it for one record.

    Attributes:
        recorded: each recorded operation, worked out.
        steps: its file call as mq-native makes it; None if it takes more than one.
        expected: its outcome if nothing is in its way.
        units: the recorded operations and groups; None if each is on a message, and by itself.
        answered: outcomes of operations and groups that are not recorded, by their places among all.
        large: bodies that do not go into the log; None if there are none.
        writes: whether one of the operations makes a file.
        flushes: whether the record has to be on the medium before they are answered.
    """

    __slots__ = (
        "_by_state",
        "_longest",
        "_room",
        "_root",
        "answered",
        "expected",
        "flushes",
        "large",
        "recorded",
        "steps",
        "units",
        "writes",
    )

    def __init__(self, root: LoggedRoot) -> None:
        self.recorded: list[Planned | Kept | Forgotten] = []
        self.steps: list[Step | None] = []
        self.expected: list[Outcome] = []
        self.units: list[Unit] | None = None
        self.answered: dict[int, Outcome] = {}
        self.large: LargeBodies | None = None
        self.writes = self.flushes = False
        self._root = root
        self._by_state = root.by_state
        self._room = root.log.largest_payload
        self._longest = min(LARGEST_INLINE, self._room // 2)

    def __len__(self) -> int:
        return len(self.recorded if self.units is None else self.units) + len(self.answered)

    def add(self, operation: AnyOperation) -> bool:
        """Add an operation or a group. False if the record has no room for it: it is for the next portion."""
        if isinstance(operation, Write):
            if not isinstance(operation.body, bytes) or len(operation.body) > self._longest:
                return self._add_unit((operation,))
        elif isinstance(operation, Group):
            return self._add_unit(operation.operations)
        elif isinstance(operation, _RECORDS):
            return self._add_unit((operation,))
        planned = plan(self._by_state, operation, LARGEST_ATTRIBUTES)
        if planned.has_side:
            return self._add_unit((operation,))
        size = LINE_BYTES + planned.size + len(planned.encoded)
        if size > self._room:
            return False
        self._record(planned)
        self._room -= size
        if self.units is not None:
            self.units.append((operation,))
        return True

    def outcomes(self, recorded: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes of all, in order.

        Args:
            recorded: those of the recorded operations and groups.
        """
        each = iter(recorded)
        return [self.answered.get(place) or next(each) for place in range(len(recorded) + len(self.answered))]

    def discard(self, recorded: Sequence[Outcome]) -> None:
        """Take away bodies that were staged here for nothing.

        Args:
            recorded: the outcomes of the recorded operations and groups.
        """
        assert self.large is not None, "no body was staged"
        units = self.units or [(each.operation,) for each in self.recorded if isinstance(each, Planned)]
        for unit, outcome in zip(units, recorded, strict=True):
            if outcome.result is not Result.DONE:
                self.large.discard(unit)

    def _record(self, planned: Planned) -> None:
        operation, entry, path, source, _, _, _, attributes, noted, has_side = planned
        self.recorded.append(planned)
        if isinstance(operation, Write):
            body = operation.body
            step = (path, body, noted, attributes) if isinstance(body, bytes) and not has_side else None
            self.steps.append(step)
            self.expected.append(Outcome(Result.DONE, entry))
            self.writes = self.flushes = True
        elif isinstance(operation, Move):
            self.steps.append((source, path))
            self.expected.append(Outcome(Result.DONE, entry))
            self.flushes |= operation.durable
        else:
            self.steps.append((path,))
            self.expected.append(DONE)
            self.flushes |= operation.durable

    # Groups, records and other messages

    def _add_unit(self, unit: Unit) -> bool:
        unit = tuple(map(_encoding_once, unit))
        size = sum(self._bytes(operation) for operation in unit)
        if size > self._room:
            if len(self):
                return False
            if not self._root.log.takes(size):  # a claim of 100,000 messages has 4 MB
                self._answer(Outcome(Result.FULL, reason=NO_ROOM))
                return True
        self._room -= size
        outcome = None if unit else DONE
        if len(unit) > 1:
            outcome = refused_before(self._root.folders, unit)
        if outcome is None and any(self._is_large(operation) for operation in unit):
            self.large = self.large or LargeBodies(self._root.folders)
            staged = self.large.stage(unit, self._is_large)
            if isinstance(staged, Outcome):
                outcome = staged
            else:
                unit = staged
        if outcome is None:
            self._record_unit(unit)
        else:
            self._answer(outcome)
        return True

    def _answer(self, outcome: Outcome) -> None:
        self.answered[len(self)] = outcome

    def _record_unit(self, unit: Unit) -> None:
        if self.units is None and (len(unit) > 1 or isinstance(unit[0], Put | Drop)):
            self.units = [(each.operation,) for each in self.recorded if isinstance(each, Planned)]
        for operation in unit:
            if isinstance(operation, Put | Drop):
                self.recorded.append(Kept(*operation) if isinstance(operation, Put) else Forgotten(*operation))
                self.steps.append(None)
                self.expected.append(DONE)
                self.flushes = True
            else:
                assert not isinstance(operation, Group), "a group in a group"
                self._record(plan(self._by_state, operation, LARGEST_ATTRIBUTES))
        if self.units is not None:
            self.units.append(unit)

    def _is_large(self, operation: AnyOperation) -> bool:
        if not isinstance(operation, Write):
            return False
        return not isinstance(operation.body, bytes) or len(operation.body) > self._longest

    def _bytes(self, operation: AnyOperation) -> int:
        """At least as many as an operation takes of a record."""
        if isinstance(operation, Write):
            inline = operation.body if isinstance(operation.body, bytes) and not self._is_large(operation) else b""
            return LINE_BYTES + len(encode_attributes(operation.attributes)) + len(inline)
        if isinstance(operation, Put):
            return LINE_BYTES + len(encode_attributes(operation.value)) + 3 * len(operation.key)
        if isinstance(operation, Drop):  # thousands come together, where a queue goes with its bindings
            return _DROP_BYTES + len(operation.kind) + 3 * len(operation.key.encode("utf-8", "surrogatepass"))
        return LINE_BYTES


def most_together(log: Log) -> tuple[int, int]:
    """How many operations, and bytes besides their places, a group may have: one record holds it."""
    half = log.largest_payload // 2
    return half // LINE_BYTES, half


def _encoding_once(operation: AnyOperation) -> AnyOperation:
    """The operation, whose attributes or value are encoded once for the record, the file and the reckoning of both."""
    if isinstance(operation, Write) and operation.attributes and not isinstance(operation.attributes, SharedAttributes):
        return operation._replace(attributes=SharedAttributes(operation.attributes))
    if isinstance(operation, Put) and not isinstance(operation.value, SharedAttributes):
        return operation._replace(value=SharedAttributes(operation.value))
    return operation
