"""Operations as statements, and their outcomes.

A statement looks before it does anything, so operations on one message go into rounds, one after the other. All rounds
are one transaction.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from mq.errors import StorageFailed, StorageFenced
from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Staged, Unlink, Write
from mq_postgres.bodies import StagedBody
from mq_postgres.changes import Changes, InDoubt, Refusals, Statement
from mq_postgres.link import NotNow
from mq_postgres.statements import MOVE, NAMES, UNLINK, WRITE, columns, entry_columns, meta_row

MOST_BYTES: Final = 1 << 24
"""Of bodies in one statement, which PostgreSQL holds in memory more than once."""

_JSON: Final = json.JSONEncoder(separators=(",", ":"))

Numbered = tuple[int, Operation]


def commit(changes: Changes, operations: Sequence[Operation]) -> list[Outcome]:
    """Do a batch in one transaction."""
    numbered, unlinked = _joined(operations)
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
    refusals |= {n: refusals[move] for n, move in unlinked.items() if move in refusals}
    return [
        Outcome(Result(refusals[n])) if n in refusals else Outcome(Result.DONE, target_of(operation))
        for n, operation in enumerate(operations)
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


def _joined(operations: Sequence[Operation]) -> tuple[list[Numbered], dict[int, int]]:
    """The operations, where a Move to REMOVED and the Unlink behind it are one Unlink from where the message is; and
    which Unlinks went into which of them."""
    numbered: dict[int, Operation] = {}
    moves: dict[MessageId, tuple[int, Move]] = {}
    unlinked: dict[int, int] = {}
    for n, operation in enumerate(operations):
        id = _id(operation)
        n_move, move = moves.pop(id, (0, None))
        if move is not None and isinstance(operation, Unlink) and operation.entry == move.target:
            numbered[n_move] = Unlink(move.entry)
            unlinked[n] = n_move
            continue
        if isinstance(operation, Move) and operation.state is State.REMOVED:
            moves[id] = n, operation
        numbered[n] = operation
    return list(numbered.items()), unlinked


def _id(operation: Operation) -> MessageId:
    return operation.id if isinstance(operation, Write) else operation.entry.id


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
        id = _id(operation)
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
    rows, bodies, start = [], [], 1
    for _, write in writes:
        size, crc, data, number = _body(write.body)
        rows.append((size, crc, _JSON.encode(write.attributes), None if data is None else start, number))
        if data is not None:
            bodies.append(data)
            start += size
    return Statement(WRITE, [*entry_columns(entries), *columns(rows), b"".join(bodies)])


def _body(body: bytes | Staged) -> tuple[int, int, bytes | None, int | None]:
    """Its length, its checksum, its bytes or None, and the number under which it is staged, or None."""
    if isinstance(body, bytes):
        return len(body), checksum(body), body, None
    assert isinstance(body, StagedBody), "a body that another store staged"
    return body.size, body.checksum, body.data, body.number


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
