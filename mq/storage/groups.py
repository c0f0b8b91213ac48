"""Groups in every store: all of a :class:`~mq.storage.interface.Group`, or nothing.

A group that a store cannot do as a whole is done by an *intent*: a record of its operations. The intent is durable
before the first operation, and dropped, durably, before the answer. So an intent found by :func:`redo` belongs to a
group that was not answered. :func:`redo` finishes that group, unless one of its messages was not written: then it
undoes what was done.

Where others change a store, a group there has no Write: they could take a message that is undone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import trio

from mq.errors import StorageFailed, StorageFull
from mq.lifecycle import State
from mq.message import MessageId, SharedAttributes
from mq.storage.interface import (
    AnyOperation,
    Description,
    Drop,
    Entry,
    Group,
    Meta,
    Move,
    Outcome,
    Put,
    Result,
    Staged,
    Storage,
    Unlink,
    Write,
)
from mq.storage.records import drop_record

INTENT: Final = "intent"
"""The kind of an intent's record. Its key is that of one thing in the group."""
_REFUSED: Final = frozenset({Result.GONE, Result.EXISTS, Result.NO_QUEUE, Result.FULL})
"""Outcomes after which nothing was changed."""
_DONE: Final = Outcome(Result.DONE)


async def commit(storage: Storage, operations: Sequence[AnyOperation]) -> list[Outcome]:
    """As :meth:`~mq.storage.interface.Storage.commit`, with Groups in every store."""
    outcomes: list[Outcome] = []
    together: list[Any] = []
    description = storage.description
    for operation in operations:
        if not isinstance(operation, Group) or _can(description, operation):
            together.append(operation)
            continue
        if together:
            outcomes += await storage.commit(together)
            together = []
        with trio.CancelScope(shield=True):  # what was begun is ended
            outcomes.append(await _do(storage, operation.operations))
    if not together:
        return outcomes
    last = await storage.commit(together)
    last[:0] = outcomes
    return last


async def redo(storage: Storage) -> None:
    """Finish or undo the groups that a crash has left half done. Call it before any other verb of the store.

    Raises:
        StorageError: that is not possible now.
    """
    for name, value in (await storage.records(INTENT)).items():
        group = _decoded(value)
        written = [each.entry for each in group.operations if isinstance(each, Write)]
        found = [await storage.find(entry.queue, entry.id) for entry in written]
        if None in found:
            await _all_done(storage, [step for entry in found if entry is not None for step in _removal(entry)])
            moves = [each for each in group.operations if isinstance(each, Move)]
            await _all_done(storage, list(undoing(moves)))
        else:
            await _all_done(storage, [each for each in group.operations if not isinstance(each, Write)])
        await drop_record(storage, INTENT, name)


def undoing(operations: Iterable[Write | Move]) -> Iterator[Move | Unlink]:
    """The operations that take back what was done of a group."""
    for operation in reversed(list(operations)):
        if isinstance(operation, Write):
            yield from _removal(operation.entry)
        else:
            yield Move(operation.target, operation.entry.state, operation.entry.meta, operation.entry.queue)


def _removal(entry: Entry) -> tuple[Move, Unlink]:
    return Move(entry, State.REMOVED), Unlink(entry._replace(state=State.REMOVED, meta=Meta()))


def _can(description: Description, group: Group) -> bool:
    if len(group.operations) > description.groups:
        return False
    return description.group_bytes is None or sum(map(_bytes, group.operations)) <= description.group_bytes


def _bytes(operation: AnyOperation) -> int:
    if isinstance(operation, Put):
        return _bytes_of_json(operation.value)
    if isinstance(operation, Write):
        return bytes_of_message(operation.body, operation.attributes)
    return 0


def bytes_of_message(body: bytes | Staged, attributes: Mapping[str, Any]) -> int:
    """How many bytes a message takes of a group, besides its place."""
    of_attributes = _bytes_of_json(attributes) if attributes else len("{}")
    return (len(body) if isinstance(body, bytes) else body.unwritten) + of_attributes


def _bytes_of_json(value: Mapping[str, Any]) -> int:
    return len(value.encoded() if isinstance(value, SharedAttributes) else json.dumps(dict(value)))


async def _do(storage: Storage, operations: Sequence[Write | Move | Put | Drop]) -> Outcome:
    if len(operations) != 1:
        return await by_intent(storage, Group(tuple(operations)))
    [outcome] = await storage.commit(operations)
    return _DONE if isinstance(operations[0], Drop) and outcome.result is Result.GONE else outcome


async def by_intent(storage: Storage, group: Group) -> Outcome:
    """Do a group by an intent."""
    if not group.operations:
        return _DONE
    messages = [each for each in group.operations if isinstance(each, Write | Move)]
    records = [each for each in group.operations if isinstance(each, Put | Drop)]
    restoring = [await _restoring(storage, each) for each in records] if len(records) > 1 else []
    name = messages[0].entry.id if messages else f"{records[0].kind}/{records[0].key}"
    outcome = await _keep(storage, Put(INTENT, name, _encoded(messages, records)))
    if outcome.result is not Result.DONE:
        return outcome
    outcomes = await storage.commit(messages)
    done = [each for each, of_it in zip(messages, outcomes, strict=True) if of_it.result is Result.DONE]
    refusal = next((each for each in outcomes if each.result is not Result.DONE), None)
    kept = 0
    while refusal is None and kept < len(records):
        outcome = await _keep(storage, records[kept])
        refusal = None if outcome.result in (Result.DONE, Result.GONE) else outcome
        kept += refusal is None
    if refusal is not None:
        if refusal.result not in _REFUSED:
            return refusal  # the next start finds the intent
        undone = await storage.commit(list(undoing(done))) + [await _keep(storage, each) for each in restoring[:kept]]
        if any(each.result is not Result.DONE for each in undone):
            return Outcome(Result.UNKNOWN, reason=refusal.reason)
    dropped = await _keep(storage, Drop(INTENT, name))
    if dropped.result in _REFUSED - {Result.GONE}:
        return Outcome(Result.UNKNOWN, reason=dropped.reason)
    return dropped if dropped.result not in (Result.DONE, Result.GONE) else refusal or _DONE


async def _keep(storage: Storage, operation: Put | Drop) -> Outcome:
    [outcome] = await storage.commit([operation])
    return outcome


async def _restoring(storage: Storage, operation: Put | Drop) -> Put | Drop:
    """The operation that brings back the record as it is before `operation`."""
    value = (await storage.records(operation.kind)).get(operation.key)
    return Drop(operation.kind, operation.key) if value is None else Put(operation.kind, operation.key, value)


async def _all_done(storage: Storage, operations: Sequence[AnyOperation]) -> None:
    """Do those operations that were not done before a crash.

    Raises:
        StorageError: something is refused for now, or the medium failed.
    """
    for outcome in await commit(storage, operations):
        if outcome.result is Result.FULL:
            raise StorageFull(
                f"temporarily unable to complete a batch that was interrupted by a crash: {outcome.reason}. Try again "
                "later"
            )
        if outcome.result in (Result.FAILED, Result.UNKNOWN, Result.FENCED):
            raise StorageFailed(
                f"cannot complete a batch that was interrupted by a crash: {outcome.reason or outcome.result.value}"
            )


def _encoded(messages: Sequence[Write | Move], records: Sequence[Put | Drop]) -> dict[str, Any]:
    return {
        "written": [_place(each.entry) for each in messages if isinstance(each, Write)],
        "moved": [[_place(each.entry), _place(each.target)] for each in messages if isinstance(each, Move)],
        "put": [list(each) for each in records if isinstance(each, Put)],
        "dropped": [list(each) for each in records if isinstance(each, Drop)],
    }


def _decoded(value: Mapping[str, Any]) -> Group:
    """The group of an intent; its Writes have no body."""
    moves = [(_entry(source), _entry(target)) for source, target in value["moved"]]
    return Group(
        (
            *(Write(entry.queue, entry.id, b"", meta=entry.meta) for entry in map(_entry, value["written"])),
            *(Move(source, target.state, target.meta, target.queue) for source, target in moves),
            *(Put(*each) for each in value["put"]),
            *(Drop(*each) for each in value["dropped"]),
        )
    )


def _place(entry: Entry) -> list[Any]:
    return [entry.queue, entry.id, entry.state.value, list(entry.meta)]


def _entry(place: Sequence[Any]) -> Entry:
    queue, id, state, meta = place
    return Entry(queue, MessageId(id), State(state), Meta(*meta))
