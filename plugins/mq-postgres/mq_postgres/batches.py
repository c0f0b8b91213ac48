"""Operations as statements, and their outcomes.

A statement looks before it does anything, so operations on one message go into rounds, one after the other. All rounds
are one transaction.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mq.errors import StorageFailed, StorageFenced
from mq.message import MessageId, checksum
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink, Write
from mq_postgres.bodies import StagedBody
from mq_postgres.changes import Changes, InDoubt, Refusals, Statement
from mq_postgres.link import NotNow
from mq_postgres.statements import MOVE, NAMES, UNLINK, WRITE, columns, entry_columns, meta_row

MOST_BYTES: Final = 1 << 24
"""Of bodies in one statement, which PostgreSQL holds in memory more than once."""

Numbered = tuple[int, Operation]


def commit(changes: Changes, operations: Sequence[Operation]) -> list[Outcome]:
    """Do a batch in one transaction."""
    numbered = list(enumerate(operations))
    try:
        refusals = changes.change(_statements(numbered), lambda refused: _undoing(numbered, refused))
    except InDoubt as error:
        return [Outcome(Result.UNKNOWN, reason=str(error))] * len(operations)
    except NotNow as error:
        return [Outcome(Result.FULL, reason=f"PostgreSQL: {error}")] * len(operations)
    except StorageFenced as error:
        return [Outcome(Result.FENCED, reason=str(error))] * len(operations)
    except StorageFailed as error:
        return [Outcome(Result.FAILED, reason=str(error))] * len(operations)
    return [
        Outcome(Result(refusals[n])) if n in refusals else Outcome(Result.DONE, target_of(operation))
        for n, operation in numbered
    ]


def target_of(operation: Operation) -> Entry | None:
    """Where a message is when the operation is done."""
    match operation:
        case Write():
            return Entry(operation.queue, operation.id, operation.state, operation.meta)
        case Move(entry):
            return Entry(operation.queue or entry.queue, entry.id, operation.state, operation.meta)
        case Unlink():
            return None


def _statements(numbered: Sequence[Numbered]) -> list[Statement]:
    statements: list[Statement] = []
    for round_ in _rounds(numbered):
        writes = [(n, operation) for n, operation in round_ if isinstance(operation, Write)]
        moves = [(n, operation) for n, operation in round_ if isinstance(operation, Move)]
        unlinks = [(n, operation.entry) for n, operation in round_ if isinstance(operation, Unlink)]
        statements += [_write(part) for part in _parts(writes)]
        if moves:
            statements.append(_move(moves))
        if unlinks:
            statements.append(Statement(UNLINK, entry_columns(unlinks)))
    return statements


def _rounds(numbered: Sequence[Numbered]) -> list[list[Numbered]]:
    """In each, no message is changed twice."""
    rounds: list[list[Numbered]] = []
    counts: defaultdict[MessageId, int] = defaultdict(int)
    for n, operation in numbered:
        id = operation.id if isinstance(operation, Write) else operation.entry.id
        if counts[id] == len(rounds):
            rounds.append([])
        rounds[counts[id]].append((n, operation))
        counts[id] += 1
    return rounds


def _parts(writes: Sequence[tuple[int, Write]]) -> Iterator[list[tuple[int, Write]]]:
    part: list[tuple[int, Write]] = []
    size = 0
    for n, write in writes:
        length = len(write.body) if isinstance(write.body, bytes) else 0
        if part and size + length > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append((n, write))
        size += length
    if part:
        yield part


def _write(writes: Sequence[tuple[int, Write]]) -> Statement:
    entries = [(n, Entry(write.queue, write.id, write.state, write.meta)) for n, write in writes]
    return Statement(WRITE, entry_columns(entries) + columns([_body_row(write) for _, write in writes]))


def _body_row(write: Write) -> tuple[Any, ...]:
    attributes = json.dumps(write.attributes, separators=(",", ":"))
    body = write.body
    if isinstance(body, bytes):
        return len(body), checksum(body), attributes, body, None
    assert isinstance(body, StagedBody), "a body that another store staged"
    return body.size, body.checksum, attributes, body.data, body.number


def _move(moves: Sequence[tuple[int, Move]]) -> Statement:
    sources = entry_columns([(n, move.entry) for n, move in moves])
    targets = [(move.queue or move.entry.queue, NAMES[move.state], *meta_row(move.meta)) for _, move in moves]
    return Statement(MOVE, sources + columns(targets))


def _undoing(numbered: Sequence[Numbered], refused: Refusals) -> list[Statement]:
    """What takes a batch back, the last operation first. An Unlink stays done."""
    undoing: list[Numbered] = []
    for n, operation in reversed(numbered):
        if n not in refused and not isinstance(operation, Unlink):
            target = target_of(operation)
            assert target is not None, "a Write or a Move leads nowhere"
            if isinstance(operation, Move):
                source = operation.entry
                undoing.append((n, Move(target, source.state, source.meta, source.queue)))
            else:
                undoing.append((n, Unlink(target)))
    return _statements(undoing)
