"""An operation of a batch as a transaction of its own, inside the one that carries many of them.

Each has conditions, so each has an outcome of its own: what the others do does not matter. Where the conditions do not
hold, nothing is done, and a look at the same keys says why. That is rare, so the look is a request of its own: in each
transaction it was a third of what etcd reads, logs and sends to its members. A group is one transaction with the
conditions of all its operations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.storage.interface import (
    AnyOperation,
    Drop,
    Entry,
    Group,
    MessageOperation,
    Move,
    Outcome,
    Put,
    Result,
    Unlink,
    Write,
)
from mq_etcd.bodies import bytes_of, pack
from mq_etcd.keys import Keys, encode_meta
from mq_etcd.values import Answer, Compare, Delete, Get, KeyValue, Nested, Page, absent, modified_at, present, value_is
from mq_etcd.values import Operation as EtcdOperation
from mq_etcd.values import Put as EtcdPut

OVERHEAD: Final = 600
"""Bytes that a step takes in a request besides its body, and more: a key has at most 350."""
LARGEST_RECORD: Final = 1 << 20
"""Bytes of JSON."""
Before = Mapping[str, bytes | None]
"""What was in records, by their keys in etcd, before a change; None for one that was not there."""

_GONE: Final = Outcome(Result.GONE)
_EXISTS: Final = Outcome(Result.EXISTS)
_NO_QUEUE: Final = Outcome(Result.NO_QUEUE)


class Step(NamedTuple):
    """One operation on a message on its way.

    Attributes:
        source: the key that it leaves; for a Write, of the body.
        target: the key that it makes; None for an Unlink.
        body_key: of the message's bytes.
        body: of a Write; else empty.
    """

    number: int
    operation: MessageOperation
    source: str
    target: str | None
    before: bytes
    after: bytes
    body_key: str
    body: bytes
    target_entry: Entry | None

    @property
    def size(self) -> int:
        """About how many bytes it takes in a request."""
        return OVERHEAD + len(self.body)

    @property
    def width(self) -> int:
        """How many conditions, operations or looks it has, at the most."""
        return 2

    @property
    def longest_body(self) -> int:
        """Bytes of the longest value that it writes for a body."""
        return len(self.body)

    def txn(self) -> Nested:
        """What to send."""
        if isinstance(self.operation, Write):
            return self._writing()
        if self.target is None:
            going = [Delete(self.source), Delete(self.body_key)]
            return Nested([value_is(self.source, self.before)], going)
        held: list[Compare] = [value_is(self.source, self.before)]
        done: list[EtcdOperation] = [EtcdPut(self.target, self.after)]
        if self.source != self.target:
            held.append(absent(self.target))
            done.insert(0, Delete(self.source))
        return Nested(held, done)

    def _writing(self) -> Nested:
        assert self.target is not None
        done = [EtcdPut(self.target, self.after), EtcdPut(self.source, self.body)]
        return Nested([absent(self.target), absent(self.source)], done)

    def looks(self) -> list[Get]:
        """What says why it was not done, or that it was."""
        keys_only = isinstance(self.operation, Write)
        looks = [Get(self.source, keys_only=keys_only)]
        return looks if self.target is None else [*looks, Get(self.target, keys_only=True)]

    def record_keys(self) -> list[str]:
        """The records that it changes."""
        return []

    def undoing(self, revision: int, before: Before) -> list[Nested]:
        """What takes it back, if it was done at that revision; nothing where nothing can."""
        if self.target is None:
            return []
        done: list[EtcdOperation] = []
        if self.source != self.target:
            done.append(Delete(self.target))
        done.append(Delete(self.source) if isinstance(self.operation, Write) else EtcdPut(self.source, self.before))
        return [Nested([modified_at(self.target, revision)], done)]

    def done(self) -> Outcome:
        """Its outcome, when it was done."""
        return Outcome(Result.DONE, self.target_entry)

    def landed(self, seen: Sequence[Answer], revision: int) -> Outcome:
        """Its outcome, out of what its looks see later, when the transaction that carried it was done at `revision`."""
        source, target = _seen(seen)
        was_done = source is None if self.target is None else target is not None and target.modified == revision
        return self.done() if was_done else self.refused(seen)

    def refused(self, seen: Sequence[Answer]) -> Outcome:
        """Return why the operation was not done, judging by the keys that :meth:`looks` read."""
        if isinstance(self.operation, Write):
            # The body's key or the place's is taken. A body alone means that the message has been moved elsewhere, or
            # removed a short while ago: to write it again would deliver it twice.
            return _EXISTS
        source, _ = _seen(seen)
        return _EXISTS if source is not None and source.value == self.before else _GONE

    def is_possible(self, seen: Sequence[Answer]) -> bool:
        """Whether its conditions hold, out of what its looks see."""
        source, target = _seen(seen)
        if isinstance(self.operation, Write):
            return source is None and target is None
        is_there = source is not None and source.value == self.before
        return is_there and (target is None or self.source == self.target)


class RecordStep(NamedTuple):
    """One record on its way.

    Attributes:
        value: what it is then; None when it is forgotten.
    """

    number: int
    operation: Put | Drop
    key: str
    value: bytes | None

    @property
    def width(self) -> int:
        """It has one operation."""
        return 1

    @property
    def longest_body(self) -> int:
        """None of its bytes are a body's."""
        return 0

    @property
    def size(self) -> int:
        """About how many bytes it takes in a request."""
        return OVERHEAD + len(self.value or b"")

    def txn(self) -> Nested:
        """What to send."""
        return Nested([present(self.key)] if self.value is None else [], self.changes())

    def changes(self) -> list[EtcdOperation]:
        """What it does, whether the record is there or not."""
        return [Delete(self.key) if self.value is None else EtcdPut(self.key, self.value)]

    def looks(self) -> list[Get]:
        """None: nothing refuses it."""
        return []

    def record_keys(self) -> list[str]:
        """The record."""
        return [self.key]

    def undoing(self, revision: int, before: Before) -> list[Nested]:
        """What takes it back, if it was done at that revision."""
        old = before[self.key]
        condition = absent(self.key) if self.value is None else modified_at(self.key, revision)
        if old is None:
            return [] if self.value is None else [Nested([condition], [Delete(self.key)])]
        return [Nested([condition], [EtcdPut(self.key, old)])]

    def done(self) -> Outcome:
        """Its outcome, when it was done."""
        return Outcome(Result.DONE)

    def landed(self, seen: Sequence[Answer], revision: int) -> Outcome:
        """Its outcome, when its transaction was done: what was forgotten is, if it was there."""
        return self.done()

    def refused(self, seen: Sequence[Answer]) -> Outcome:
        """It was not there to be forgotten."""
        return _GONE


class GroupStep(NamedTuple):
    """A group on its way: its operations have one transaction."""

    number: int
    operation: Group
    steps: tuple[Step | RecordStep, ...]

    @property
    def size(self) -> int:
        """About how many bytes it takes in a request."""
        return sum(each.size for each in self.steps)

    @property
    def width(self) -> int:
        """How many conditions, operations or looks it has, at the most."""
        return sum(each.width for each in self.steps)

    @property
    def longest_body(self) -> int:
        """Bytes of the longest value that it writes for a body."""
        return max((each.longest_body for each in self.steps), default=0)

    def txn(self) -> Nested:
        """What to send."""
        held: list[Compare] = []
        done: list[EtcdOperation] = []
        for each in self.steps:
            if isinstance(each, RecordStep):
                done += each.changes()
            else:
                txn = each.txn()
                held += txn.compares
                done += txn.then
        return Nested(held, done)

    def looks(self) -> list[Get]:
        """What says why it was not done, or that it was."""
        return [look for each in self.steps for look in each.looks()]

    def record_keys(self) -> list[str]:
        """The records that it changes."""
        return [key for each in self.steps for key in each.record_keys()]

    def undoing(self, revision: int, before: Before) -> list[Nested]:
        """What takes all of it back, if it was done at that revision."""
        return [nested for each in self.steps for nested in each.undoing(revision, before)]

    def done(self) -> Outcome:
        """Its outcome, when it was done."""
        return Outcome(Result.DONE)

    def landed(self, seen: Sequence[Answer], revision: int) -> Outcome:
        """Its outcome, out of what its looks see later, when the transaction that carried it was done at `revision`."""
        targets = [target for _, of_it in self._with_answers(seen) for target in _seen(of_it)[1:] if target is not None]
        messages = sum(isinstance(each, Step) for each in self.steps)
        was_done = len(targets) == messages and all(target.modified == revision for target in targets)
        return self.done() if was_done else self.refused(seen)

    def refused(self, seen: Sequence[Answer]) -> Outcome:
        """Return why the group was not done: the outcome of its first operation that was not possible."""
        return next(
            (step.refused(of_it) for step, of_it in self._with_answers(seen) if not step.is_possible(of_it)), _GONE
        )

    def _with_answers(self, seen: Sequence[Answer]) -> list[tuple[Step, list[Answer]]]:
        """Its operations on messages, each with what its looks see."""
        answers = iter(seen)
        messages = [each for each in self.steps if isinstance(each, Step)]
        return [(each, list(islice(answers, len(each.looks())))) for each in messages]


AnyStep = Step | RecordStep | GroupStep


def _seen(answers: Sequence[Answer]) -> tuple[KeyValue | None, KeyValue | None]:
    found = [page.found[0] if page.found else None for page in answers if isinstance(page, Page)]
    return found[0], found[1] if len(found) > 1 else None


def step(number: int, operation: AnyOperation, keys: Keys, lives: Mapping[str, int]) -> AnyStep | Outcome:
    """An operation on its way, or its outcome, where that is known already.

    Args:
        lives: the queues that there are, with the revisions at which they were made.
    """
    if isinstance(operation, Group):
        return _group(number, operation, keys, lives)
    if isinstance(operation, Put | Drop):
        return _record(number, operation, keys)
    return _message(number, operation, keys, lives)


def _group(number: int, group: Group, keys: Keys, lives: Mapping[str, int]) -> GroupStep | Outcome:
    steps: list[Step | RecordStep] = []
    for place, operation in enumerate(group.operations):
        if isinstance(operation, Put | Drop):
            made: Step | RecordStep | Outcome = _record(place, operation, keys)
        else:
            made = _message(place, operation, keys, lives)
        if isinstance(made, Outcome):
            return made
        steps.append(made)
    return GroupStep(number, group, tuple(steps))


def _record(number: int, operation: Put | Drop, keys: Keys) -> RecordStep | Outcome:
    key = keys.record(operation.kind, operation.key)
    if isinstance(operation, Drop):
        return RecordStep(number, operation, key, None)
    value = encode_record(operation.value)
    if len(value) > LARGEST_RECORD:
        return Outcome(Result.FULL, reason=too_long(value))
    return RecordStep(number, operation, key, value)


def encode_record(value: Mapping[str, object]) -> bytes:
    """What a record is in etcd."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def too_long(value: bytes) -> str:
    """Why etcd does not take a record."""
    return (
        f"the record has {len(value)} bytes, but etcd supports at most {LARGEST_RECORD} bytes. Store less data in "
        "the record"
    )


def _message(number: int, operation: MessageOperation, keys: Keys, lives: Mapping[str, int]) -> Step | Outcome:
    match operation:
        case Write():
            return _write(number, operation, keys, lives)
        case Move():
            return _move(number, operation, keys, lives)
        case Unlink(entry):
            assert entry.state is State.REMOVED, f"not removed yet: {entry}"
            before, body_key = encode_meta(entry.meta), keys.body(entry.id)
            return Step(number, operation, keys.place(entry, 0), None, before, b"", body_key, b"", None)


def _write(number: int, write: Write, keys: Keys, lives: Mapping[str, int]) -> Step | Outcome:
    if write.state is State.READY and write.queue not in lives:
        return _NO_QUEUE
    body = bytes_of(write.body)
    if body is None:
        return _GONE
    entry = Entry(write.queue, write.id, write.state, write.meta)
    value = pack(body, write.attributes)
    place = keys.place(entry, lives.get(write.queue, 0))
    body_key, after = keys.body(write.id), encode_meta(write.meta)
    return Step(number, write, body_key, place, b"", after, body_key, value, entry)


def _move(number: int, move: Move, keys: Keys, lives: Mapping[str, int]) -> Step | Outcome:
    entry = move.entry
    target = Entry(move.queue or entry.queue, entry.id, move.state, move.meta)
    if target.state is State.READY and target.queue not in lives:
        return _NO_QUEUE
    if entry.state is State.READY and entry.queue not in lives:
        return _GONE
    source_key = keys.place(entry, lives.get(entry.queue, 0))
    target_key = keys.place(target, lives.get(target.queue, 0))
    before, after = encode_meta(entry.meta), encode_meta(target.meta)
    return Step(number, move, source_key, target_key, before, after, keys.body(entry.id), b"", target)
