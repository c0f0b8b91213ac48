"""An operation of a batch as a transaction of its own, inside the one that carries many of them.

Each has conditions, so each has an outcome of its own: what the others do does not matter. Where the conditions do not
hold, the transaction looks instead, and what it sees says why.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink, Write
from mq_etcd.bodies import bytes_of, pack
from mq_etcd.keys import Keys, decode_meta, encode_meta
from mq_etcd.values import Compare, Delete, Get, KeyValue, Nested, Page, Put, absent, modified_at, value_is
from mq_etcd.values import Operation as EtcdOperation
from mq_etcd.values import Outcome as EtcdOutcome

OVERHEAD: Final = 600
"""Bytes that a step takes in a request besides its body, and more: a key has at most 350."""

_GONE: Final = Outcome(Result.GONE)
_EXISTS: Final = Outcome(Result.EXISTS)
_NO_QUEUE: Final = Outcome(Result.NO_QUEUE)


class Step(NamedTuple):
    """One operation on its way.

    Attributes:
        number: where it stands in its batch.
        operation: what was asked for.
        source: the key that it leaves; for a Write, of the body.
        target: the key that it makes; None for an Unlink.
        before: the value of the source.
        after: the value of the target.
        mark: which body is meant, where an id has two.
        body: of a Write; else empty.
        target_entry: where the message is then.
    """

    number: int
    operation: Operation
    source: str
    target: str | None
    before: bytes
    after: bytes
    mark: str
    body: bytes
    target_entry: Entry | None

    @property
    def size(self) -> int:
        """About how many bytes it takes in a request."""
        return OVERHEAD + len(self.body)

    def txn(self, keys: Keys) -> Nested:
        """What to send."""
        if isinstance(self.operation, Write):
            return self._writing()
        if self.target is None:
            body = keys.body(self.operation.entry.id, self.mark)
            return Nested([value_is(self.source, self.before)], [Delete(self.source), Delete(body)], self.looks())
        held: list[Compare] = [value_is(self.source, self.before)]
        done: list[EtcdOperation] = [Put(self.target, self.after)]
        if self.source != self.target:
            held.append(absent(self.target))
            done.insert(0, Delete(self.source))
        return Nested(held, done, self.looks())

    def _writing(self) -> Nested:
        assert self.target is not None
        done = [Put(self.target, self.after), Put(self.source, self.body)]
        return Nested([absent(self.target), absent(self.source)], done, self.looks())

    def looks(self) -> list[Get]:
        """What says why it was not done, or that it was."""
        keys_only = isinstance(self.operation, Write)
        looks = [Get(self.source, keys_only=keys_only)]
        return looks if self.target is None else [*looks, Get(self.target, keys_only=True)]

    def undoing(self, revision: int) -> Nested | None:
        """What takes it back, if it was done at that revision; None where nothing can."""
        if self.target is None:
            return None
        done: list[EtcdOperation] = []
        if self.source != self.target:
            done.append(Delete(self.target))
        done.append(Delete(self.source) if isinstance(self.operation, Write) else Put(self.source, self.before))
        return Nested([modified_at(self.target, revision)], done)

    def done(self) -> Outcome:
        """Its outcome, when it was done."""
        return Outcome(Result.DONE, self.target_entry)

    def landed(self, seen: EtcdOutcome, revision: int) -> Outcome | str:
        """Its outcome, out of what its looks see later, when the transaction that carried it was done at `revision`."""
        source, target = _seen(seen)
        was_done = source is None if self.target is None else target is not None and target.modified == revision
        return self.done() if was_done else self.refused(seen)

    def refused(self, seen: EtcdOutcome) -> Outcome | str:
        """Why it was not done, out of what its looks see; or the mark with which it may be done."""
        source, target = _seen(seen)
        if isinstance(self.operation, Write):
            return _EXISTS if target is not None else secrets.token_hex(8)
        found = decode_meta(source.value) if source is not None else None
        if found is None or found[0] != self.operation.entry.meta:
            return _GONE
        return _EXISTS if found[1] == self.mark else found[1]


def _seen(seen: EtcdOutcome) -> tuple[KeyValue | None, KeyValue | None]:
    found = [page.found[0] if page.found else None for page in seen.answers if isinstance(page, Page)]
    return found[0], found[1] if len(found) > 1 else None


def step(number: int, operation: Operation, keys: Keys, lives: Mapping[str, int], mark: str = "") -> Step | Outcome:
    """An operation on its way, or its outcome, where that is known already.

    Args:
        number: where it stands in its batch.
        operation: what is asked for.
        keys: of the store.
        lives: the queues that there are, with the revisions at which they were made.
        mark: which body is meant, where the id has two.
    """
    match operation:
        case Write():
            return _write(number, operation, keys, lives, mark)
        case Move():
            return _move(number, operation, keys, lives, mark)
        case Unlink(entry):
            assert entry.state is State.REMOVED, f"not removed yet: {entry}"
            before = encode_meta(entry.meta, mark)
            return Step(number, operation, keys.place(entry, 0), None, before, b"", mark, b"", None)


def _write(number: int, write: Write, keys: Keys, lives: Mapping[str, int], mark: str) -> Step | Outcome:
    if write.state is State.READY and write.queue not in lives:
        return _NO_QUEUE
    body = bytes_of(write.body)
    if body is None:
        return _GONE
    entry = Entry(write.queue, write.id, write.state, write.meta)
    value = pack(body, write.attributes)
    place = keys.place(entry, lives.get(write.queue, 0))
    return Step(number, write, keys.body(write.id, mark), place, b"", encode_meta(write.meta, mark), mark, value, entry)


def _move(number: int, move: Move, keys: Keys, lives: Mapping[str, int], mark: str) -> Step | Outcome:
    entry = move.entry
    target = Entry(move.queue or entry.queue, entry.id, move.state, move.meta)
    if target.state is State.READY and target.queue not in lives:
        return _NO_QUEUE
    if entry.state is State.READY and entry.queue not in lives:
        return _GONE
    source_key = keys.place(entry, lives.get(entry.queue, 0))
    target_key = keys.place(target, lives.get(target.queue, 0))
    before, after = encode_meta(entry.meta, mark), encode_meta(target.meta, mark)
    return Step(number, move, source_key, target_key, before, after, mark, b"", target)
