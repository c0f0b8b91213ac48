"""A client of etcd v3 (3.4 and newer) on Trio, over its JSON gateway: the same port that etcdctl uses.

::

    async with open_client(["http://127.0.0.1:2379", "http://10.0.0.2:2379"]) as client:
        await client.put("/jobs/1", b"ready")
        found = await client.get("/jobs/1")  # KeyValue(key, value, created, modified, version, lease), or None
        outcome = await client.txn([modified_at("/jobs/1", found.modified)], [Put("/jobs/1", b"taken")])
        assert outcome.succeeded

        lease = await client.grant(2.0)  # seconds; etcd rounds up to whole ones
        mine = await client.txn([absent("/nodes/a")], [Put("/nodes/a", b"10.0.0.1", lease=lease.id)])
        await client.keep_alive(lease.id)  # the seconds left; Absent when it has ended
        oldest = await client.range("/nodes/", end_of_prefix("/nodes/"), limit=1, by_creation=True)
        await client.revoke(lease.id)

        page = await client.range("/nodes/", end_of_prefix("/nodes/"))
        async with client.watch("/nodes/", end_of_prefix("/nodes/"), revision=page.revision + 1) as events:
            async for event in events:  # Event(key, current or None when it is gone, revision)
                ...

Everything else of the vocabulary (compares, operations, what comes back) is in :mod:`mq_etcd.values`; the errors, by
what the caller may conclude, in :mod:`mq_etcd.errors`; failover and waiting in :mod:`mq_etcd.members`.

**Every wait is bounded.** A call ends within `deadline` seconds, and asks another member when one does not answer
within `patience`. A watch alone waits as long as it takes.

**A change that was sent and not answered may have landed.** With ``repeats=True`` the client sends it again, to another
member, until one answers: right for what may be done twice (a Put of the same value, a Delete, a transaction that
is told from its own result), and what is answered then is about the *last* time. With ``repeats=False`` the call
raises :class:`~mq_etcd.errors.Uncertain` at once. When no member has answered until the deadline, it raises Uncertain
in either case.

Reads are linearizable: they take a majority, and see everything that was answered before.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from mq_etcd.connection import Endpoint, parse_endpoint
from mq_etcd.errors import Absent, Compacted
from mq_etcd.members import Members
from mq_etcd.values import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Nested,
    Operation,
    Outcome,
    Page,
    Put,
    Status,
    changes_something,
    delete_json,
    get_json,
    outcome,
    page,
    put_json,
    revision_of,
    status,
    txn_json,
)
from mq_etcd.watch import Watch

PATIENCE_SECONDS: Final = 2.0
"""How long one member has to answer. Electing a leader takes one to two seconds."""
DEADLINE_SECONDS: Final = 10.0
"""How long a call may take, with all its attempts."""
CONNECTIONS: Final = 64
"""So many requests at the same time; others wait for their turn."""


class Lease(NamedTuple):
    """A time of life for keys, from :meth:`Client.grant`.

    Attributes:
        seconds: how long it lasts when it is not kept alive.
    """

    id: int
    seconds: int


@asynccontextmanager
async def open_client(
    endpoints: Sequence[str],
    *,
    user: tuple[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    patience: float = PATIENCE_SECONDS,
    deadline: float = DEADLINE_SECONDS,
    connections: int = CONNECTIONS,
) -> AsyncIterator[Client]:
    """A client for the length of the block. It connects when it is first asked.

    Args:
        endpoints: ``http://HOST:PORT`` or ``https://HOST:PORT`` of each member; the first one is asked first.
        tls: authorities to trust and a certificate to show, over https; the system's authorities where it is None.
        patience: how long one member has to answer, in seconds.
        deadline: how long a call may take, with all its attempts, in seconds.
        connections: so many requests at the same time; others wait for their turn.

    Raises:
        ValueError: an endpoint is none, or there is none at all.
    """
    client = Client(endpoints, user=user, tls=tls, patience=patience, deadline=deadline, connections=connections)
    try:
        yield client
    finally:
        await client.aclose()


class Client:
    """The verbs of etcd. A caller that does not use :func:`open_client` closes it by :meth:`aclose`.

    Any call raises :class:`~mq_etcd.errors.Unavailable`, and a change :class:`~mq_etcd.errors.Uncertain`; see there.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        patience: float = PATIENCE_SECONDS,
        deadline: float = DEADLINE_SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint was specified. Specify at least one, such as http://127.0.0.1:2379")
        self._silence = patience
        self._members = Members(
            [parse_endpoint(endpoint) for endpoint in endpoints],
            user,
            tls,
            patience=patience,
            deadline=deadline,
            connections=connections,
        )

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Where the members are."""
        return self._members.endpoints

    async def aclose(self) -> None:
        """Let go of the connections; safe to call twice."""
        await self._members.aclose()

    # -- keys

    async def get(self, key: str) -> KeyValue | None:
        """One key; None when there is none of that name."""
        found = (await self.range(key)).found
        return found[0] if found else None

    async def range(
        self,
        key: str,
        end: str | None = None,
        *,
        limit: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
        revision: int = 0,
        by_creation: bool = False,
    ) -> Page:
        """Keys from `key` up to (and without) `end`, in one reply; the arguments are those of
        :class:`~mq_etcd.values.Get`. Ranges that may be long are read by :meth:`pages`.

        Raises:
            Compacted: `revision` has been thrown away.
        """
        wanted = Get(key, end, limit, keys_only, count_only, revision, by_creation)
        return page(await self._members.ask("/v3/kv/range", get_json(wanted)))

    async def pages(self, key: str, end: str, *, size: int = 1000, keys_only: bool = False) -> AsyncIterator[Page]:
        """A range in several replies, all as of the revision of the first one.

        Args:
            key: the first.
            end: where the range ends.

        Raises:
            Compacted: that revision was thrown away meanwhile: begin anew.
        """
        found = await self.range(key, end, limit=size, keys_only=keys_only)
        revision = found.revision
        yield found
        while found.more:
            after = found.found[-1].key + "\0"
            found = await self.range(after, end, limit=size, keys_only=keys_only, revision=revision)
            yield found

    async def put(self, key: str, value: bytes, *, lease: int = 0, repeats: bool = True) -> int:
        """Write a key; the revision at which that was done.

        Raises:
            NoSpace: etcd has reached its quota.
            TooLarge: the value is longer than etcd takes.
            Absent: there is no such lease.
        """
        wanted = put_json(Put(key, value, lease))
        return revision_of(await self._members.ask("/v3/kv/put", wanted, changes=True, repeats=repeats))

    async def delete(self, key: str, end: str | None = None) -> int:
        """Delete a key, or all up to (and without) `end`; how many there were, the last time it was sent."""
        wanted = delete_json(Delete(key, end))
        reply = await self._members.ask("/v3/kv/deleterange", wanted, changes=True)
        return int(reply.get("deleted", 0))

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        repeats: bool = False,
    ) -> Outcome:
        """Do `then` where all of `compares` hold, else `otherwise`: all at once, at one revision.

        etcd takes 128 operations in either list and 1.5 MiB in all, where it is not told otherwise.

        Raises:
            NoSpace: etcd has reached its quota.
            TooLarge: it is too long, or has too many operations.
        """
        wanted = txn_json(Nested(compares, then, otherwise))
        changes = any(map(changes_something, (*then, *otherwise)))
        return outcome(await self._members.ask("/v3/kv/txn", wanted, changes=changes, repeats=repeats))

    def watch(self, key: str, end: str | None = None, *, revision: int | None = None) -> Watch:
        """What happens to `key`, or to all keys up to (and without) `end`: an asynchronous context manager that is
        an asynchronous iterator of events.

        Args:
            key: the first.
            end: where the range ends.
            revision: of the first event to be told; None for those after the block is entered.
        """
        return Watch(self._members, key, end, revision, self._silence)

    # -- leases

    async def grant(self, seconds: float) -> Lease:
        """A new lease. When it is not known whether there is one, another is asked for: the first ends by itself."""
        wanted = {"TTL": str(math.ceil(seconds))}
        reply = await self._members.ask("/v3/lease/grant", wanted, changes=True)
        return Lease(int(reply["ID"]), int(reply["TTL"]))

    async def keep_alive(self, lease: int) -> int:
        """Begin its time anew; the seconds it has now.

        Raises:
            Absent: it has ended.
        """
        reply = await self._members.ask("/v3/lease/keepalive", {"ID": str(lease)}, changes=True)
        seconds = int(reply.get("result", {}).get("TTL", 0))
        if seconds <= 0:
            raise Absent(f"etcd lease {lease:x} has expired: request a new lease")
        return seconds

    async def revoke(self, lease: int) -> bool:
        """End a lease, and delete all keys that it has. False when there was none, any more."""
        try:
            await self._members.ask("/v3/lease/revoke", {"ID": str(lease)}, changes=True)
        except Absent:
            return False
        return True

    # -- members

    async def status(self, member: Endpoint | None = None) -> Status:
        """What one member says of itself; the one that is asked first where it is None."""
        if member is not None:
            return status(await self._members.ask_member(member, "/v3/maintenance/status", {}))
        return status(await self._members.ask("/v3/maintenance/status", {}))

    async def voters(self) -> int:
        """How many members keep what is written: those that only learn are not counted."""
        reply = await self._members.ask("/v3/cluster/member/list", {})
        return sum(not member.get("isLearner") for member in reply.get("members", []))

    async def hand_over(self, leader: Endpoint, member: int) -> None:
        """Let another member lead."""
        await self._members.ask_member(leader, "/v3/maintenance/transfer-leadership", {"targetID": str(member)})

    async def compact(self, revision: int) -> None:
        """Throw away what is older than `revision`. Does nothing where that has been done.

        Raises:
            Rejected: there is no such revision yet.
        """
        with suppress(Compacted):
            await self._members.ask("/v3/kv/compaction", {"revision": str(revision)}, changes=True)

    async def defragment(self, seconds: float = 60.0) -> None:
        """Give the disk what is free in the members' files, one member after the other. Each stands still meanwhile."""
        for member in self.endpoints:
            await self._members.ask_member(member, "/v3/maintenance/defragment", {}, seconds)

    async def disarm(self) -> None:
        """End the alarm that etcd raised when it was full. While it is full, that raises it again."""
        reply = await self._members.ask("/v3/maintenance/alarm", {"action": "GET"})
        for alarm in reply.get("alarms", ()):
            if alarm.get("alarm") == "NOSPACE":
                ended = {"action": "DEACTIVATE", **alarm}
                await self._members.ask("/v3/maintenance/alarm", ended, changes=True)
