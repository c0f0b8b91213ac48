"""One session: what it sets, what it checks, and how its errors are told apart.

All of it runs in threads, one at a time; :meth:`Link.cut` alone is for others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors

from mq.errors import StorageFenced, StorageUnusable
from mq.storage.confirmed import LastConfirmed
from mq_postgres.address import Address, connection_parameters
from mq_postgres.schema import check_server

logger = logging.getLogger("mq.postgres")

SETTINGS: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read\\ committed",  # the fence waits for a successor and looks again
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "10s",
    "statement_timeout": "0",  # it would cut a wait for the standby short; the client's deadline ends the session
    # a broker that vanished holds nothing up for longer than its successor waits for the store
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    # A fresh table has no statistics, and a plan made without them reads all of it. Every statement goes by an index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "work_mem": "64MB",
}
_CONNECT_SECONDS: Final = 5
_DEFAULT_PORT: Final = "5432"
_ENDED: Final = ("57P", "08", "25P")
"""Of the SQLSTATEs with which a server ends a session: shutdown, crash, not up yet, idle for too long."""
FENCED: Final = "MQ001"
REFUSED: Final = "MQ003"
PASSING: Final = ("53", "55P03", "25006", "40", "57014")
"""SQLSTATEs after which nothing was changed and which can pass: no room, no memory, no connection free; a lock that is
held for too long; a server that became read-only; a deadlock; a statement that an administrator cancelled."""


class Lost(Exception):
    """The connection is gone. What was asked for may have been done, or may be done still."""


class Refused(Exception):
    """Nothing was changed: something of a group was refused.

    Attributes:
        refusals: why, by the number of the operation.
    """

    def __init__(self, refusals: dict[int, str]) -> None:
        super().__init__(refusals)
        self.refusals = refusals


class NotNow(Exception):
    """Nothing was changed; it may pass."""


class Landed:
    """The last change whose answer was believed. All sessions of a store share it: a server that does not have that
    change is none of theirs.

    Attributes:
        number: of the last one.
        server: that takes the changes; empty before the first.
        news: counts how often one of them has changed.
    """

    def __init__(self, store: str, confirmed: LastConfirmed | None = None) -> None:
        self.number = 0
        self.server = ""
        self.place = ("", "")
        self.news = 0
        self._store = store
        self._confirmed = confirmed

    def move(self, server: str, place: tuple[str, str]) -> None:
        """Note that changes go to this server from now on."""
        if self.server not in ("", server):
            logger.info("store %s is now writing to the PostgreSQL server %s", self._store, server)
        self.server, self.place = server, place
        self.news += 1

    def believe(self, number: int) -> None:
        """Note that a change has landed, before its answer is."""
        self.number = number
        self.news += 1
        if self._confirmed is not None:
            self._confirmed.note(self._store, number)

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Check that the server has all that was confirmed, which a promoted standby may lack.

        Raises:
            StorageUnusable: it lacks some of that.
        """
        believed = self.number  # before the server is asked: another session may go on meanwhile
        if not believed:
            return
        row = connection.execute("SELECT landed FROM lane").fetchone()
        landed = row and row[0]
        if landed is None or landed < believed:
            raise StorageUnusable(
                f"the last change on this PostgreSQL server is {landed}, but change {believed} was "
                "confirmed: a standby without the confirmed changes was promoted. Promote a standby that has "
                "these changes"
            )


class Link:
    """A session with PostgreSQL, made anew when it is gone.

    Attributes:
        process: the server's process of this session; 0 without one.
        landed: how far the server has to have come.

    Args:
        session: tells this opening of the store from all others.
        landed: how far the server has to have come.
        changes: whether it is the one that changes the store.
    """

    def __init__(self, address: Address, session: str, landed: Landed, *, changes: bool = False) -> None:
        self.landed = landed
        self._address = address
        self._name = application_name(session)
        self._changes = changes
        self._connection: psycopg.Connection[Any] | None = None
        self._warnings: list[str] = []
        self._server = ""
        self._news = 0
        self.process = 0

    def connect(self) -> psycopg.Connection[Any]:
        """The connection, or a new one.

        Raises:
            Lost: there is none to be had.
            StorageUnusable: the server cannot keep mq's promises, or the password file cannot be read.
        """
        if self._connection is not None and not self._connection.closed and not self._is_behind:
            return self._connection
        self.close()
        settings = {**SETTINGS, "search_path": self._address.schema}
        try:
            connection = psycopg.connect(
                **(connection_parameters(self._address) | self._hosts()),
                application_name=self._name,
                options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
                connect_timeout=_CONNECT_SECONDS,
                client_encoding="utf8",
                autocommit=True,
                prepare_threshold=0,
            )
        except psycopg.Error as error:
            raise Lost(in_one_line(error)) from error
        self._news = self.landed.news  # before the server is asked: the session that changes may go on meanwhile
        try:
            check_server(connection)
            self.landed.check(connection)
            self._server = _server_of(connection)
        except psycopg.Error as error:
            connection.close()
            raise Lost(in_one_line(error)) from error
        except StorageUnusable:
            connection.close()
            raise
        connection.add_notice_handler(self._note)
        self._connection, self.process = connection, connection.info.backend_pid
        if self._changes:
            self.landed.move(self._server, (connection.info.host, str(connection.info.port)))
        return connection

    @property
    def _is_behind(self) -> bool:
        """Whether changes have gone to another server since this session was made. Its own one is a primary that was
        given up, as one is that slept, or was cut off: what is confirmed now is not there."""
        return not self._changes and self._server != self.landed.server and self._news != self.landed.news

    def _hosts(self) -> dict[str, str]:
        """Of several hosts first the one that takes the changes: an earlier primary may still answer as one."""
        given = self._address.parameters
        hosts = given.get("host", "").split(",")
        if self._changes or len(hosts) < 2:
            return {}
        ports = given["port"].split(",") if "port" in given else [""] * len(hosts)
        pairs = sorted(
            zip(hosts, ports, strict=True), key=lambda each: (each[0], each[1] or _DEFAULT_PORT) != self.landed.place
        )
        return {"host": ",".join(host for host, _ in pairs), "port": ",".join(port for _, port in pairs)}

    @contextmanager
    def asking(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection for the length of the block, whose errors are translated.

        Raises:
            Lost: it is gone, or the server has warned: of a commit that did not wait for its standby, it does no more.
            NotNow: nothing was changed, and it may pass.
            Refused: something of a group was refused.
            StorageFenced: another broker has the store.
            psycopg.Error: nothing was changed, and it does not pass.
        """
        connection = self.connect()
        self._warnings.clear()
        try:
            yield connection
        except psycopg.Error as error:
            raise self._translated(connection, error) from error
        if self._is_behind:
            self.close()
            raise Lost("changes have been written to another PostgreSQL server since this session was opened")
        if self._warnings:
            warning = self._warnings[0]
            self.close()
            raise Lost(f"PostgreSQL issued a warning: {warning}")

    def cut(self) -> None:
        """End whatever the session is waiting for. From any thread."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        # it may be closed at this very moment
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _note(self, diagnostic: errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self._warnings.append(diagnostic.message_primary or "")

    def _translated(self, connection: psycopg.Connection[Any], error: psycopg.Error) -> Exception:
        state = error.sqlstate or ""
        if connection.closed or not state or state.startswith(_ENDED):
            self.close()
            return Lost(in_one_line(error))
        try:
            connection.rollback()
        except psycopg.Error:
            self.close()
        if state == FENCED:
            return StorageFenced(
                "another daemon has taken over the store, so this daemon can no longer write to it. Restart mq"
            )
        if state == REFUSED:
            told = (each.split(" ", 1) for each in (error.diag.message_detail or "").split(","))
            return Refused({int(n): result for n, result in told})
        if state.startswith(PASSING):
            return NotNow(in_one_line(error))
        return error


def application_name(session: str) -> str:
    """By which a successor finds the sessions of this opening."""
    return f"mq-{session}"


def _server_of(connection: psycopg.Connection[Any]) -> str:
    """Which server it is, and since when it runs: what no other one says of itself."""
    row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
    assert row is not None, "a SELECT without a row"
    return f"at {connection.info.host}:{connection.info.port}, started {row[0]}"


def in_one_line(error: psycopg.Error) -> str:
    """What PostgreSQL says, without its hints' line ends."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
