"""Operations as statements, and their outcomes.

A statement looks before it does anything, so operations on one message or record go into rounds, one after the other.
All rounds are one transaction. Where something of a group is refused, that transaction ends itself, and the batch is
done without the group.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import Final

from mq.errors import StorageFailed, StorageFenced
from mq.message import checksum
from mq.storage.interface import AnyOperation, Drop, Entry, Group, Move, Outcome, Put, Result, Staged, Unlink, Write
from mq_postgres.bodies import StagedBody
from mq_postgres.changes import Changes, InDoubt, Refusals, Statement
from mq_postgres.link import NotNow, Refused
from mq_postgres.statements import (
    DROP,
    MOVE,
    NAMES,
    PUT,
    REFUSE,
    RESTORE,
    UNLINK,
    WRITE,
    columns,
    entry_columns,
    key_text,
    meta_row,
)

MOST_BYTES: Final = 1 << 24
"""Of bodies in one statement, which PostgreSQL holds in memory more than once."""

_JSON: Final = json.JSONEncoder(separators=(",", ":"))

MOST_IN_GROUP: Final = 10_000
"""Operations."""

_Single = Write | Move | Unlink | Put | Drop
Numbered = tuple[int, _Single]


def commit(changes: Changes, operations: Sequence[AnyOperation]) -> list[Outcome]:
    """Do a batch in one transaction; in another one without it where a group is refused, which is rare."""
    refused: dict[int, Outcome] = {}
    while True:
        batch = _Batch(operations, refused.keys())
        try:
            refusals = changes.change(batch.statements(), batch.undoing)
        except Refused as refusal:
            n = min(refusal.refusals)  # what comes behind may be refused for what this one did
            refused[batch.of[n]] = Outcome(Result(refusal.refusals[n]))
            if len(refused) < len(operations):
                continue
            return [refused[place] for place in range(len(operations))]
        except InDoubt as error:
            outcome = Outcome(Result.UNKNOWN, reason=str(error))
        except NotNow as error:
            outcome = Outcome(Result.FULL, reason=f"PostgreSQL: {error}")
        except StorageFenced as error:
            outcome = Outcome(Result.FENCED, reason=str(error))
        except StorageFailed as error:
            outcome = Outcome(Result.FAILED, reason=str(error))
        else:
            return [refused.get(place) or each for place, each in enumerate(batch.outcomes(refusals))]
        return [refused.get(place, outcome) for place in range(len(operations))]


class _Batch:
    """The operations of a transaction, each with a number of its own, those of groups, too.

    Args:
        operations: in order.
        without: the places of groups that are left out.

    Attributes:
        of: the place among the operations, by the number.
    """

    def __init__(self, operations: Sequence[AnyOperation], without: Container[int]) -> None:
        self._operations = operations
        self._numbered: list[Numbered] = []
        self._grouped: list[int] = []
        self._first: dict[int, int] = {}
        self.of: list[int] = []
        for place, operation in enumerate(operations):
            self._first[place] = len(self.of)
            if place in without:
                continue
            for each in operation.operations if isinstance(operation, Group) else (operation,):
                n = len(self.of)
                if isinstance(operation, Group) and not isinstance(each, Drop):  # of nothing refuses nothing
                    self._grouped.append(n)
                self._numbered.append((n, each))
                self.of.append(place)

    def statements(self) -> list[Statement]:
        """What does it."""
        statements = _statements(self._numbered)
        return [*statements, Statement(REFUSE, (self._grouped,))] if self._grouped else statements

    def undoing(self, number: int, refused: Refusals) -> list[Statement]:
        """What takes it back, the last operation first. An Unlink stays done."""
        undoing: list[Numbered] = []
        for n, operation in reversed(self._numbered):
            if n in refused:
                continue
            if isinstance(operation, Move):
                source = operation.entry
                undoing.append((n, Move(operation.target, source.state, source.meta, source.queue)))
            elif isinstance(operation, Write):
                undoing.append((n, Unlink(operation.entry)))
        statements = _statements(undoing)
        if any(isinstance(operation, Put | Drop) for _, operation in self._numbered):
            statements.append(Statement(RESTORE, (number,)))
        return statements

    def outcomes(self, refusals: Refusals) -> list[Outcome]:
        """What became of each operation."""
        found = []
        for place, operation in enumerate(self._operations):
            n = self._first[place]
            if isinstance(operation, Group):
                found.append(Outcome(Result.DONE))
            elif n in refusals:
                found.append(Outcome(Result(refusals[n])))
            else:
                found.append(
                    Outcome(Result.DONE, operation.target if isinstance(operation, Move) else _written(operation))
                )
        return found


def _written(operation: AnyOperation) -> Entry | None:
    return operation.entry if isinstance(operation, Write) else None


def _statements(numbered: Sequence[Numbered]) -> list[Statement]:
    statements: list[Statement] = []
    for round_ in _rounds(numbered):
        writes = [(n, operation) for n, operation in round_ if isinstance(operation, Write)]
        moves = [(n, operation) for n, operation in round_ if isinstance(operation, Move)]
        unlinks = [(n, operation.entry) for n, operation in round_ if isinstance(operation, Unlink)]
        puts = [
            (each.kind, key_text(each.key), _JSON.encode(each.value)) for _, each in round_ if isinstance(each, Put)
        ]
        drops = [(n, each.kind, key_text(each.key)) for n, each in round_ if isinstance(each, Drop)]
        statements += [_write(part) for part in _parts(writes)]
        if moves:
            statements.append(_move(moves))
        if unlinks:
            statements.append(Statement(UNLINK, entry_columns(unlinks)))
        if puts:
            statements.append(Statement(PUT, columns(puts)))
        if drops:
            statements.append(Statement(DROP, columns(drops)))
    return statements


def _rounds(numbered: Sequence[Numbered]) -> list[list[Numbered]]:
    """In each, no message and no record is changed twice."""
    rounds: list[list[Numbered]] = []
    counts: defaultdict[object, int] = defaultdict(int)
    for n, operation in numbered:
        changed: object
        if isinstance(operation, Put | Drop):
            changed = operation.kind, operation.key
        else:
            changed = operation.id if isinstance(operation, Write) else operation.entry.id
        if counts[changed] == len(rounds):
            rounds.append([])
        rounds[counts[changed]].append((n, operation))
        counts[changed] += 1
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
