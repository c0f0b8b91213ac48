"""The verbs of a store on PostgreSQL, each with a hop to a thread.

There are three sessions: one changes, one looks, and one renews the lease, so that neither a long scan nor a long
commit lets it end.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import outcome
import psycopg
import trio

from mq.errors import StorageError, StorageFailed, StorageFenced, StorageFull, StorageUnsure, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.confirmed import LastConfirmed
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Description,
    Drop,
    Entry,
    Group,
    Outcome,
    Put,
    Result,
    Sharing,
    Staged,
    Stored,
    Unlink,
    Write,
)
from mq.storage.options import StorageOptions
from mq_postgres import batches, owner, reader, records
from mq_postgres.address import Address, parse_address
from mq_postgres.bodies import CHUNK_BYTES, StagedBody
from mq_postgres.changes import Changes, InDoubt, Refusals, Statement
from mq_postgres.link import Landed, Link, Lost, NotNow, in_one_line
from mq_postgres.schema import make_ready

_T = TypeVar("_T")

_FAREWELL_SECONDS: Final = 2.0
_TELL_SECONDS: Final = 1.0
"""Between two notes, elsewhere, of what was confirmed."""
_GRACE_SECONDS: Final = 1.0
"""After the deadline, until a session is cut: first it may give up by itself."""

_STAGE: Final = """
WITH given AS (SELECT %s::bigint AS change, %s::bigint AS number, %s::int AS part, %s::bytea AS data),
begun AS (INSERT INTO staged (number) SELECT number FROM given WHERE part = 0),
kept AS (INSERT INTO chunk (number, part, data) SELECT number, part, data FROM given)
SELECT 0, 'done' WHERE false
"""
_UNSTAGE: Final = """
WITH given AS (SELECT %s::bigint AS change, %s::bigint AS number),
dropped AS (DELETE FROM staged s USING given g WHERE g.number IS NULL OR s.number = g.number RETURNING s.number),
gone AS (DELETE FROM chunk c USING dropped d WHERE c.number = d.number)
SELECT 0, 'done' WHERE false
"""
"""Without a number: all that was staged and never written."""


def make_postgres(rest: str, options: StorageOptions) -> PostgresStorage:
    """The factory of ``postgres:``, as in ``postgres://mq@db.example/mq?schema=orders``.

    Raises:
        StorageUnusable: the address makes no sense, or other processes are to take part.
    """
    if options.sharing is not Sharing.ALONE:
        raise StorageUnusable(
            'the storage backend "postgres" supports only one daemon at a time. Omit --peers, --no-mover and '
            "--no-reaper. Another daemon can take over after the first has stopped"
        )
    return PostgresStorage(f"postgres:{rest}", parse_address(rest), options.confirmed)


class PostgresStorage:
    """A :class:`~mq.storage.interface.Storage` on PostgreSQL.

    Args:
        confirmed: notes how far it has come; None where a start is to believe any server.
    """

    def __init__(self, name: str, address: Address, confirmed: LastConfirmed | None = None) -> None:
        self._name = name
        self._address = address
        self._session = secrets.token_hex(6)
        self._confirmed = confirmed
        landed = Landed(address.name, confirmed)
        self._writer = Link(address, self._session, landed, changes=True)
        self._reader, self._keeper = (Link(address, self._session, landed) for _ in range(2))
        self._one_writes, self._one_reads, self._one_keeps = (trio.CapacityLimiter(1) for _ in range(3))
        self._open_changes: Changes | None = None
        self._keeping: trio.CancelScope | None = None
        self._kept = trio.Event()
        self._is_taken = False

    @property
    def description(self) -> Description:
        """What it is."""
        return Description(
            self._name,
            durable=True,
            shared=False,
            max_body=None,
            journaled=True,
            places=True,
            removes=True,
            groups=batches.MOST_IN_GROUP,
            group_bytes=CHUNK_BYTES,
        )

    async def open(self) -> None:
        """Make the tables where there are none, and take the store.

        Raises:
            StorageUnusable: PostgreSQL does not answer, cannot keep mq's promises, or another broker has the store.
        """
        try:
            await self._write(self._make_ready)
            taken = await self._take()
            self._is_taken = True
            self._open_changes = Changes(self._writer, taken.epoch, taken.change, self._address.deadline)
            await self._change([Statement(_UNSTAGE, (None,))])
        except (Lost, NotNow) as error:
            raise StorageUnusable(f"cannot use the store {self._name}: {error}") from error
        except psycopg.Error as error:
            raise StorageUnusable(f"cannot use the store {self._name}: {in_one_line(error)}") from error
        except StorageUnusable:
            raise
        except StorageError as error:
            raise StorageUnusable(f"cannot use the store {self._name}: {error}") from error
        self._keeping = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._keep, self._keeping, name="mq-postgres keeps its lease")

    async def aclose(self) -> None:
        """Give the store back, and let go of the sessions."""
        with trio.CancelScope(shield=True):
            if self._keeping is not None:
                self._keeping.cancel()
                if self._one_keeps.borrowed_tokens:
                    self._keeper.cut()
                await self._kept.wait()
                self._keeping = None
                if self._confirmed is not None:
                    await self._confirmed.flush()
            if self._is_taken:
                self._is_taken = False
                await self._renewed(0, _FAREWELL_SECONDS)
            self._open_changes = None
            for link, limiter in self._links:
                await trio.to_thread.run_sync(link.close, limiter=limiter)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind."""
        return await self._look(lambda connection: records.all_records(connection, kind))

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Bring a large body to the server, a mebibyte at a time; one of less waits in memory.

        Raises:
            StorageFull: no room, or no answer.
        """
        number: int | None = None
        data, size, crc, part = bytearray(), 0, 0, 0
        try:
            async for chunk in chunks:
                data += chunk
                size, crc = size + len(chunk), checksum(chunk, crc)
                while len(data) > CHUNK_BYTES:
                    number = await self._new_number() if number is None else number
                    await self._stage_chunk(number, part, bytes(data[:CHUNK_BYTES]))
                    del data[:CHUNK_BYTES]
                    part += 1
            if number is None:
                return StagedBody(bytes(data), None, size, crc, self._unstage)
            await self._stage_chunk(number, part, bytes(data))
            return StagedBody(None, number, size, crc, self._unstage)
        except BaseException:
            if number is not None:
                with trio.CancelScope(shield=True):
                    await self._unstage(number)
            raise

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Do a batch. Once begun it is not cancelled: it ends by itself, within the deadline and a little."""
        await trio.lowlevel.checkpoint()
        if not operations:
            return []
        with trio.CancelScope(shield=True):
            try:
                outcomes = await self._commit(operations)
            except StorageFenced as error:
                outcomes = [Outcome(Result.FENCED, reason=str(error))] * len(operations)
            except (StorageFull, StorageUnsure) as error:  # of what had to be staged first: nothing was changed
                outcomes = [Outcome(Result.FULL, reason=str(error))] * len(operations)
            except StorageError as error:
                outcomes = [Outcome(Result.FAILED, reason=str(error))] * len(operations)
        return outcomes

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places."""
        return await self._look(lambda connection: reader.read(connection, entries, self._chunk))

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is."""
        return await self._look(lambda connection: reader.find(connection, queue, id))

    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        """Return whether one of the queues has that message, in any state."""
        return await self._look(lambda connection: reader.contains(connection, queues, id))

    async def check_reachable(self) -> None:
        """Ask for nothing that a lock could hold up.

        Raises:
            StorageFull: the server does not answer.
        """
        await self._look(lambda connection: connection.execute("SELECT 1").fetchone())

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state."""
        entries = await self._look(lambda connection: reader.scan(connection, state, queue, limit))
        if state is State.REMOVED and (limit is None or len(entries) < limit):
            entries += await self._look(lambda connection: records.graves(connection, queue))
        return entries[:limit]

    def changes(self) -> None:
        """None: no other program changes it."""

    # -- taking and keeping it

    @property
    def _links(self) -> list[tuple[Link, trio.CapacityLimiter]]:
        return [
            (self._writer, self._one_writes),
            (self._reader, self._one_reads),
            (self._keeper, self._one_keeps),
        ]

    def _make_ready(self) -> None:
        with self._writer.asking() as connection:
            make_ready(connection, self._address.schema)

    async def _take(self) -> owner.Taken:
        """Take the store, once a broker that was killed with it in hand has lost it.

        Raises:
            StorageUnusable: another broker has it, and lives; or the server lacks what was confirmed.
        """
        confirmed = 0 if self._confirmed is None else await self._confirmed.recall(self._address.name)
        try:
            return await self._take_from(confirmed)
        except owner.Lacking as lacking:
            assert self._confirmed is not None, "nothing was recalled"
            raise StorageUnusable(
                f"the last change on this PostgreSQL server is {lacking.landed}, but change {confirmed} was "
                "confirmed before mq was restarted: a standby without the confirmed changes was promoted, or "
                "a backup was restored. Promote a server that has these changes and demote this one. If the "
                f"changes are lost for good, {self._confirmed.forgetting(self._address.name)}, then restart mq"
            ) from None

    async def _take_from(self, confirmed: int) -> owner.Taken:
        if self._address.term:
            return await self._write(owner.take_for_term, self._writer, self._session, confirmed, self._address.term)
        first = found = await self._write(owner.take, self._writer, self._session, confirmed)
        began = heard = trio.current_time()
        while isinstance(found, owner.Held) and isinstance(first, owner.Held):
            if found.until != first.until:  # a broker that renews it lives
                raise StorageUnusable(
                    f"the store at {self._name} is in use by {first.holder}. Stop that daemon first, or use "
                    "another schema for this daemon"
                )
            await trio.sleep(owner.TRY_AGAIN_SECONDS)
            now = trio.current_time()
            heard = now if found.has_session else heard
            is_over = now - began > owner.LEASE_SECONDS + 2 or now - heard > owner.SILENT_SECONDS
            ended = found.until if is_over else ""
            found = await self._write(owner.take, self._writer, self._session, confirmed, ended)
        assert isinstance(found, owner.Taken), "neither ours nor anybody else's"
        return found

    async def _keep(self, scope: trio.CancelScope) -> None:
        """As a task of the system's, for a store has no nursery. Whether the lease has ended, the fence tells."""
        with scope:
            async with trio.open_nursery() as nursery:
                if self._confirmed is not None:
                    nursery.start_soon(self._tell, self._confirmed)
                while True:
                    await trio.sleep(owner.LEASE_SECONDS / 4)
                    await self._renewed(owner.LEASE_SECONDS, self._address.deadline)
        self._kept.set()

    async def _tell(self, confirmed: LastConfirmed) -> None:
        while True:
            await trio.sleep(_TELL_SECONDS)
            await confirmed.flush()

    async def _renewed(self, seconds: float, deadline: float) -> None:
        try:
            await self._hop(
                (self._keeper, self._one_keeps), deadline, owner.renew, self._keeper, self._session, seconds
            )
        except (Lost, NotNow, StorageUnusable, psycopg.Error):
            return  # tried again soon; meanwhile the lease runs on, and behind it stands the epoch

    # -- changing

    @property
    def _changes(self) -> Changes:
        if self._open_changes is None:
            raise StorageFailed(f"the store {self._name} is not open")
        return self._open_changes

    async def _commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        numbered: list[tuple[int, AnyOperation]] = []
        staged: dict[int, Staged] = {}
        for number, operation in enumerate(operations):
            body = operation.body if isinstance(operation, Write) else None
            if isinstance(operation, Unlink) and records.life_of(operation.entry) is not None:
                outcomes[number] = await self._alone(records.level, operation.entry)
            elif isinstance(operation, Put | Drop) and operation.kind == QUEUE:
                outcomes[number] = await self._alone(records.change_queue, operation)
            elif _is_discarded(operation):
                outcomes[number] = Outcome(Result.GONE)
            elif isinstance(operation, Write) and isinstance(body, bytes) and len(body) > CHUNK_BYTES:
                staged[number] = await self.stage(_once(body))
                numbered.append((number, operation._replace(body=staged[number])))
            else:
                numbered.append((number, operation))
        if numbered:
            done = await self._write(batches.commit, self._changes, [operation for _, operation in numbered])
            outcomes |= {number: each for (number, _), each in zip(numbered, done, strict=True)}
        for number, body in staged.items():
            if outcomes[number].result not in (Result.DONE, Result.UNKNOWN):
                await body.discard()
        return [outcomes[number] for number in range(len(operations))]

    async def _alone(self, verb: Callable[..., Outcome], operation: object) -> Outcome:
        """Do an operation in a transaction of its own."""
        try:
            return await self._translated(verb, self._changes, operation)
        except StorageUnsure as error:
            return Outcome(Result.UNKNOWN, reason=str(error))
        except StorageFull as error:
            return Outcome(Result.FULL, reason=str(error))

    async def _change(self, statements: Sequence[Statement]) -> Refusals:
        return await self._translated(self._changes.change, statements, lambda number, refused: [])

    async def _translated(self, verb: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await self._write(verb, *arguments)
        except InDoubt as error:
            raise StorageUnsure(f"{error}. The request may or may not have been executed. Try again") from error
        except NotNow as error:
            raise StorageFull(f"PostgreSQL: {error}. Try again later") from error

    # -- large bodies

    async def _new_number(self) -> int:
        def number(connection: psycopg.Connection[Any]) -> int:
            row = connection.execute("SELECT nextval('number')").fetchone()
            assert row is not None, "a SELECT without a row"
            return int(row[0])

        return await self._look(number)

    async def _stage_chunk(self, number: int, part: int, data: bytes) -> None:
        await self._change([Statement(_STAGE, (number, part, data))])

    async def _unstage(self, number: int) -> None:
        """What cannot be taken away now is when the store is opened the next time."""
        try:
            await self._change([Statement(_UNSTAGE, (number,))])
        except StorageError:
            return

    async def _chunk(self, number: int, part: int) -> bytes | None:
        return await self._look(lambda connection: reader.chunk(connection, number, part))

    # -- underneath

    async def _write(self, verb: Callable[..., _T], *arguments: object) -> _T:
        return await self._hop((self._writer, self._one_writes), self._address.deadline, verb, *arguments)

    async def _look(self, verb: Callable[[psycopg.Connection[Any]], _T]) -> _T:
        """Ask, and once more where the session was gone: reading may be repeated."""

        def ask() -> _T:
            with self._reader.asking() as connection:
                return verb(connection)

        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + self._address.deadline
            while True:
                try:
                    return await self._hop((self._reader, self._one_reads), self._address.deadline, ask)
                except (Lost, NotNow, StorageUnusable) as error:
                    if trio.current_time() + owner.TRY_AGAIN_SECONDS > scope.deadline:
                        raise StorageFull(f"PostgreSQL: {error}. Try again later") from error
                except psycopg.Error as error:
                    raise StorageFailed(f"PostgreSQL: {in_one_line(error)}") from error
                await trio.sleep(owner.TRY_AGAIN_SECONDS)
        raise StorageFull("PostgreSQL is not responding. Try again later")

    async def _hop(
        self, by: tuple[Link, trio.CapacityLimiter], deadline: float, verb: Callable[..., _T], *arguments: object
    ) -> _T:
        """Run it in the thread of that session. A thread that waits for a server in vain is cut off."""
        link, limiter = by

        async def cut() -> None:
            while True:
                await trio.sleep(deadline + _GRACE_SECONDS)
                link.cut()

        async with limiter:
            with trio.CancelScope(shield=True):  # a thread is waited for, and cut off, whatever becomes of its caller
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cut)
                    captured = await trio.to_thread.run_sync(outcome.capture, lambda: verb(*arguments))
                    nursery.cancel_scope.cancel()
        result: _T = captured.unwrap()
        return result


def _is_discarded(operation: AnyOperation) -> bool:
    if isinstance(operation, Group):
        return any(map(_is_discarded, operation.operations))
    return isinstance(operation, Write) and isinstance(operation.body, StagedBody) and operation.body.is_discarded


async def _once(data: bytes) -> Any:
    yield data
