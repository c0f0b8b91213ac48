"""One transaction, in one round trip; and what becomes of it when its answer is lost.

Each change has a number. Its transaction demands that no later one was tried, and notes that it has landed. So when an
answer is lost the next session can *withdraw* it: count the number up, which the change can never pass any more however
late it arrives, and read whether it had landed. That is a commit of its own, so what had landed is as durable as it by
then, on the standbys, too.

When no server answers within the deadline, the change stays in doubt, and its outcome is UNKNOWN. Before anything else
is changed it is withdrawn, and undone where it had landed: then what the broker believes, that nothing happened, is so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import psycopg

from mq.errors import StorageError, StorageFailed, StorageFenced, StorageUnusable
from mq_postgres.link import Link, Lost, NotNow, in_one_line

TRY_AGAIN_SECONDS: Final = 0.1
_BEGIN: Final = "SELECT begin_change(%s, %s)"
_HOLD: Final = "SELECT 1 FROM fence WHERE epoch = %s FOR SHARE"
_WITHDRAW: Final = "UPDATE lane SET number = greatest(number, %s) RETURNING landed = %s"
_REFUSALS: Final = "SELECT n, result FROM refusal WHERE change = %s"
_END_PROCESS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %s AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()
"""


class Statement(NamedTuple):
    """Part of a change. Each row that it gives, (n, result), is something that it did not do; it has put the same into
    ``refusal``.

    Attributes:
        text: SQL. Its first parameter is the number of the change.
    """

    text: str
    values: Sequence[Any]


Refusals = dict[int, str]
"""What was not done, by its number, and why."""
Undo = Callable[[int, Refusals], Sequence[Statement]]
"""What takes a change back, given its number and what it did not do."""


class InDoubt(Exception):
    """It may have been done, or be done still."""


class Changes:
    """Changes a store, one after the other.

    Attributes:
        failure: why nothing more is changed; empty while all is well.

    Args:
        epoch: of our time as the owner.
        number: of the last change.
        deadline: seconds that a change may take.
    """

    def __init__(self, link: Link, epoch: int, number: int, deadline: float) -> None:
        self._link = link
        self._epoch = epoch
        self._number = number
        self._deadline = deadline
        self._doubt: tuple[int, Undo] | None = None
        self.failure = ""

    def change(self, statements: Sequence[Statement], undo: Undo) -> Refusals:
        """Do all of it in one transaction, which is durable when this returns.

        Raises:
            Refused: nothing was changed: something of a group was refused.
            NotNow: nothing was changed; it may pass.
            InDoubt: no server says whether it was done.
            StorageFenced: another broker has the store. Nothing was changed.
            StorageFailed: the server failed. Nothing more is changed until the store is opened anew.
        """
        if self.failure:
            raise StorageFailed(self.failure)
        ends = time.monotonic() + self._deadline
        try:
            self._settle(ends)
            return self._done(statements, undo, ends)
        except psycopg.Error as error:
            self.failure = f"PostgreSQL: {in_one_line(error)}. The store is read-only until mq is restarted"
            raise StorageFailed(self.failure) from error
        except StorageUnusable as error:  # another server than before, by the same address
            raise NotNow(str(error)) from error

    def _settle(self, ends: float) -> None:
        """Bring what is in doubt to an end."""
        if self._doubt is None:
            return
        undone, undo = self._doubt
        landed = self._withdrawn(undone, ends)
        while landed is not None:
            self._number += 1
            try:
                self._send(self._number, undo(undone, landed))
                break
            except Lost as error:
                if self._withdrawn(self._number, ends) is not None:
                    break
                if time.monotonic() > ends:
                    raise NotNow(str(error)) from error
        self._doubt = None

    def _done(self, statements: Sequence[Statement], undo: Undo, ends: float) -> Refusals:
        while True:
            self._number += 1
            number = self._number
            try:
                return self._send(number, statements)
            except Lost as error:
                reason = str(error)
            try:
                landed = self._withdrawn(number, ends)
            except (NotNow, StorageFenced) as error:  # a successor says nothing of what we did before it came
                self._doubt = number, undo
                raise InDoubt(f"{reason}, and the outcome of the change could not be determined: {error}") from error
            if landed is not None:
                return landed
            if time.monotonic() > ends:
                raise NotNow(reason)

    def _send(self, number: int, statements: Sequence[Statement]) -> Refusals:
        with self._link.asking() as connection:
            with _pipeline(connection):
                connection.execute("BEGIN")
                connection.execute(_BEGIN, (self._epoch, number))
                given = [connection.execute(each.text, (number, *each.values)) for each in statements]
                ended = connection.execute("COMMIT")
            assert ended.statusmessage == "COMMIT", f"a transaction ended with {ended.statusmessage}"
            refusals = {n: result for cursor in given for n, result in cursor}
        self._link.landed.believe(number)
        return refusals

    def _withdrawn(self, number: int, ends: float) -> Refusals | None:
        """See to it that a change is not done any more; what it did not do, where it was done before, else None.

        Raises:
            NotNow: no server answers.
            StorageFenced: another broker has the store.
        """
        process = self._link.process
        while True:
            try:
                return self._withdraw(number, process)
            except (Lost, NotNow, StorageUnusable) as error:
                if time.monotonic() > ends:
                    raise NotNow(str(error)) from error
                time.sleep(TRY_AGAIN_SECONDS)  # a server that restarts is asked again until it is up

    def _withdraw(self, number: int, process: int) -> Refusals | None:
        with self._link.asking() as connection:
            # it may still wait, for a standby or for what we shall never send
            connection.execute(_END_PROCESS, (process,))
            with connection.transaction():
                if connection.execute(_HOLD, (self._epoch,)).fetchone() is None:
                    raise _fenced()
                row = connection.execute(_WITHDRAW, (self._number + 1, number)).fetchone()
                assert row is not None, "the table lane is empty"
                refusals = dict(connection.execute(_REFUSALS, (number,)).fetchall())
        self._number += 1
        if row[0]:
            self._link.landed.believe(number)
        return refusals if row[0] else None


@contextmanager
def _pipeline(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A pipeline for the length of the block. The first error counts."""
    first: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except psycopg.Error as error:
                first = error  # psycopg warns in the log of whatever ends a pipeline that ends with an error, too
    except psycopg.Error as error:
        raise first or error from None
    if first is not None:
        raise first


def _fenced() -> StorageError:
    return StorageFenced(
        "another daemon has taken over the store, so this daemon can no longer write to it. Restart mq"
    )
