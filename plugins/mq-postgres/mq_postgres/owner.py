"""The right to a store: one broker at a time has it, by a lease that it renews and an epoch that its successor raises.

The lease says whether the one before is alive, by the server's clock alone: then a second broker is refused. It
protects nothing. What protects is the epoch: each transaction holds it FOR SHARE, so a successor waits for what is
under way, and whatever comes later finds another epoch and is undone as a whole. Sessions of the one before are ended
first, so that a broker that hangs in the middle of a transaction does not hold up its successor.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final, NamedTuple

import psycopg

from mq.errors import StorageFenced
from mq_postgres.link import Link, application_name

LEASE_SECONDS: Final = 10.0
TRY_AGAIN_SECONDS: Final = 0.25

SILENT_SECONDS: Final = 3.0
"""After so long without a session the store is free sooner: a broker that lives makes another when it renews."""

_HOLDER: Final = "SELECT holder, session, until::text, until <= clock_timestamp() FROM lease FOR UPDATE"
_HAS_SESSION: Final = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = %s)"
_END_SESSIONS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND usename = current_user AND pid <> pg_backend_pid()
"""
_TAKE: Final = "UPDATE lease SET holder = %s, session = %s, until = clock_timestamp() + %s * interval '1 second'"
_RENEW: Final = "UPDATE lease SET until = clock_timestamp() + %s * interval '1 second' WHERE session = %s"


class Held(NamedTuple):
    """Another broker has the store.

    Attributes:
        until: changes whenever it renews its lease.
    """

    holder: str
    until: str
    has_session: bool


class Taken(NamedTuple):
    """The store is ours.

    Attributes:
        change: the number of the last one that was tried.
    """

    epoch: int
    change: int


class Lacking(Exception):
    """The server knows of no change after `landed`, and a later one was confirmed.

    Attributes:
        landed: the last change that it has.
    """

    def __init__(self, landed: int) -> None:
        super().__init__(landed)
        self.landed = landed


def take(link: Link, session: str, confirmed: int, ended: str = "") -> Taken | Held:
    """Take the store, or tell which broker has it.

    Args:
        session: tells this opening of the store from all others.
        confirmed: a change that the server has to have.
        ended: the `until` of a lease that counts as ended, whatever the server's clock says, which may have been set
            back by years.

    Raises:
        Lacking: it does not have it; nothing was changed.
        As :meth:`Link.asking`.
    """
    with link.asking() as connection, connection.transaction():
        holder, before, until, is_over = _row(connection, _HOLDER)
        if not is_over and until != ended:
            [has_session] = _row(connection, _HAS_SESSION, application_name(before))
            return Held(holder, until, has_session)
        if before:
            connection.execute(_END_SESSIONS, (application_name(before),))
        [epoch] = _row(connection, "UPDATE fence SET epoch = epoch + 1 RETURNING epoch")
        here = f"{socket.gethostname()}, process {os.getpid()}"
        connection.execute(_TAKE, (here, session, LEASE_SECONDS))
        change = _last_change(connection, confirmed)
    return Taken(epoch, change)


def take_for_term(link: Link, session: str, confirmed: int, term: int) -> Taken:
    """Take the store for the leader of a cluster from any other broker: its term is the epoch.

    Raises:
        StorageFenced: a later leader has it, or had.
        Lacking: as :func:`take`.
        As :meth:`Link.asking`.
    """
    with link.asking() as connection, connection.transaction():
        _, before, _, _ = _row(connection, _HOLDER)
        [epoch] = _row(connection, "SELECT epoch FROM fence")
        if epoch >= term:
            raise StorageFenced(
                f"another node has taken over the store in a later term (this node's term is {term}), so this node is "
                "no longer the master"
            )
        connection.execute(_END_SESSIONS, (application_name(before),))
        connection.execute("UPDATE fence SET epoch = %s", (term,))
        connection.execute(_TAKE, (f"{socket.gethostname()}, process {os.getpid()}", session, LEASE_SECONDS))
        change = _last_change(connection, confirmed)
    return Taken(term, change)


def renew(link: Link, session: str, seconds: float = LEASE_SECONDS) -> None:
    """Keep it for so long; 0 gives it back. The epoch tells whether it is lost.

    Raises:
        As :meth:`Link.asking`.
    """
    with link.asking() as connection:
        connection.execute(_RENEW, (seconds, session))


def _last_change(connection: psycopg.Connection[Any], confirmed: int) -> int:
    number, landed = _row(connection, "SELECT number, landed FROM lane FOR UPDATE")
    if landed < confirmed:
        raise Lacking(landed)
    return int(number)


def _row(connection: psycopg.Connection[Any], query: str, *values: str) -> tuple[Any, ...]:
    row = connection.execute(query, values).fetchone()
    assert row is not None, "a table of one row is empty"
    return tuple(row)
