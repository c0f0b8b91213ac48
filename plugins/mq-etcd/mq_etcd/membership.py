"""The members of a cluster of mq, kept in etcd: a key for each, under a lease. The oldest is the one whose key was made
first. The store of the master is fenced by its key: once that is gone, nothing of what it does is done.

What the names of queues are is in :mod:`mq_etcd.names`."""

from __future__ import annotations

import json
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import parse_qsl, urlencode

import trio

from mq.cluster.coordinator import CandidacyEnded, CoordinatorError, Member
from mq.cluster.split_storage import ConfirmedRecord, SplitStorage
from mq.errors import StorageUnusable
from mq.storage.interface import ClusterStorage, is_for_cluster
from mq.storage.options import StorageOptions
from mq.storage.registry import make_storage
from mq_etcd.address import parse_address
from mq_etcd.client import Client
from mq_etcd.connection import Endpoint
from mq_etcd.errors import EtcdError, Rejected
from mq_etcd.names import EtcdNames, translated
from mq_etcd.values import Answer, Get, KeyValue, Page, Put, Status, absent, created_at, end_of_prefix
from mq_etcd.watch import Watch

logger = logging.getLogger("mq.cluster")

SIZE: Final = 3
"""A cluster has three nodes (seed CHMQ, part four)."""
CONNECTIONS: Final = 8
"""Two watches, and room for what is asked beside them."""
RENEWING_CONNECTIONS: Final = 2
"""For renewals alone, so that none waits for its turn behind names that are looked for."""
CHANGE_SECONDS: Final = 10.0
"""How long a change of the master's store may take, however short its lease: for as long as the lease is renewed the
servers wait for it, and the master stays one. What is gone by then is not known to have been done, and ends the
term."""
SEEN: Final = "seen"
DRAINING: Final = "draining"
ATTEMPTS: Final = 4
"""So many members of etcd can be asked in vain in the time of a lease: all three, and one of them again."""


@asynccontextmanager
async def make_coordinator(rest: str, lease_seconds: float) -> AsyncIterator[EtcdCoordinator]:
    """A coordinator for the length of the block: the entry point of ``mq.coordinators``.

    Args:
        rest: of the address, as a store has it: ``http://10.9.0.1:2379,http://10.9.0.2:2379?prefix=/mq/``.

    Raises:
        StorageUnusable: the address makes no sense.
    """
    address = parse_address(rest)
    client, renewing = (
        Client(
            address.endpoints,
            user=address.user,
            tls=address.tls,
            patience=lease_seconds / ATTEMPTS,
            deadline=lease_seconds,
            connections=connections,
        )
        for connections in (CONNECTIONS, RENEWING_CONNECTIONS)
    )
    try:
        yield EtcdCoordinator(client, renewing, rest, address.prefix, lease_seconds)
    finally:
        await renewing.aclose()
        await client.aclose()


class EtcdCoordinator:
    """A :class:`~mq.cluster.coordinator.Coordinator`."""

    def __init__(self, client: Client, renewing: Client, rest: str, prefix: str, lease_seconds: float) -> None:
        self._client = client
        self._renewing = renewing
        self._rest = rest
        self._members = prefix.rstrip("/") + "-members/"
        self._reserved = prefix.rstrip("/") + "-reserved/"
        self.names = EtcdNames(client, prefix, self._reserved)
        self._lease_seconds = lease_seconds
        self._process = secrets.token_hex(8)
        self._has_counted = False

    async def join(self, node: str) -> EtcdCandidacy:
        """Become the youngest member.

        Raises:
            CoordinatorError: there are three already, or one of that name; or etcd does not answer.
        """
        with translated():
            others = [member.node for member in await self.members() if member.node != node]
            if len(others) >= SIZE:
                raise CoordinatorError(
                    f"the cluster already has {SIZE} nodes: {', '.join(others)}. Stop one of these nodes first"
                )
            await self._count_voters()
            lease = await self._client.grant(self._lease_seconds)
            key = self._members + node
            value = json.dumps({"since": time.time(), "process": self._process}).encode()
            done = await self._client.txn([absent(key)], [Put(key, value, lease.id)], [Get(key)])
            if not done.succeeded:
                await self._clear(done.answers[0], lease.id)
                raise CoordinatorError(f"node {node} is already a member, or its previous lease has not expired yet")
        return EtcdCandidacy(
            self._renewing, self._rest, self._reserved, key, done.revision, lease.id, self._lease_seconds
        )

    async def voters(self) -> int:
        """How many members etcd has; 0 where its user may not ask."""
        with translated():
            try:
                return await self._client.voters()
            except Rejected:
                return 0

    async def lead_elsewhere(self) -> bool:
        """Have etcd led by a member that is not on this machine, where one of this machine leads it."""
        with translated():
            own = [member for member in self._client.endpoints if await trio.to_thread.run_sync(_is_here, member)]
            others = [member for member in self._client.endpoints if member not in own]
            leading = [
                member for member in own if (state := await self._state(member)) and state.member == state.leader
            ]
            states = [state for member in others if (state := await self._state(member))] if leading else []
            if not states:
                return False
            await self._client.hand_over(leading[0], max(states, key=lambda state: state.revision).member)
        return True

    async def _state(self, member: Endpoint) -> Status | None:
        """What a member says of itself; None where it does not answer."""
        try:
            return await self._client.status(member)
        except EtcdError:
            return None

    async def _count_voters(self) -> None:
        """Say once when etcd is one machine. A user who may not ask for its members can still join."""
        if self._has_counted:
            return
        if await self.voters() == 1:
            logger.warning(
                "etcd at %s has a single member: if its disk fails, all queues of the cluster are lost. Run "
                "three members on three machines",
                self._client.endpoints[0],
            )
        self._has_counted = True

    async def members(self) -> list[Member]:
        """All of them, the oldest first."""
        with translated():
            page = await self._client.range(self._members, end_of_prefix(self._members))
        return sorted((self._member(found) for found in page.found), key=lambda member: member.number)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[None]]:
        """Tells whenever a key of a member was made or deleted."""
        with translated():
            async with self._client.watch(self._members, end_of_prefix(self._members)) as watch:
                yield _Changes(watch)

    async def _clear(self, answer: Answer, lease: int) -> None:
        """Let go of a lease that was of no use; and, where this process is in its own way, of that one, too."""
        found = answer.found if isinstance(answer, Page) else []
        ours = [each.lease for each in found if json.loads(each.value).get("process") == self._process]
        with suppress(EtcdError):
            for each in (lease, *ours):
                await self._client.revoke(each)

    def _member(self, found: KeyValue) -> Member:
        try:
            value = json.loads(found.value)
            since, seen, is_draining = float(value["since"]), int(value.get(SEEN, 0)), bool(value.get(DRAINING))
        except (ValueError, KeyError, TypeError, AttributeError):
            since, seen, is_draining = 0.0, 0, False
        return Member(found.key.removeprefix(self._members), found.created, since, seen, is_draining)


class EtcdCandidacy:
    """A :class:`~mq.cluster.coordinator.Candidacy`.

    Args:
        client: of etcd, for renewals and what is noted with them.
    """

    def __init__(
        self, client: Client, rest: str, reserved: str, key: str, number: int, lease: int, lease_seconds: float
    ) -> None:
        self._lease_seconds = lease_seconds
        self.number = number
        self._client = client
        self._rest = rest
        self._reserved = reserved
        self._key = key
        self._lease = lease

    async def renew(self) -> None:
        """Begin the lease's time anew."""
        with translated():
            await self._client.keep_alive(self._lease)

    async def note(self, seen: int, *, is_draining: bool) -> None:
        """Put both into the key, which keeps its revision of creation."""
        with translated():
            kept = await self._client.get(self._key)
            if kept is None or kept.created != self.number:
                raise CandidacyEnded("this node's membership key was deleted from etcd")
            value = json.dumps(json.loads(kept.value) | {SEEN: seen, DRAINING: is_draining}).encode()
            done = await self._client.txn([created_at(self._key, self.number)], [Put(self._key, value, self._lease)])
        if not done.succeeded:
            raise CandidacyEnded("this node's membership key was deleted from etcd")

    async def leave(self) -> None:
        """Revoke the lease, and with it the key."""
        with suppress(EtcdError):
            await self._client.revoke(self._lease)

    def storage(self, messages: str = "") -> ClusterStorage:
        """The store, whose every change depends on the key, and which makes no queue of a reserved name; the messages
        in another one, whose every change depends on this candidacy's number.

        Raises:
            StorageUnusable: there is no store at that address.
        """
        options = {
            "patience": f"{self._lease_seconds / ATTEMPTS:g}",
            "deadline": f"{max(CHANGE_SECONDS, self._lease_seconds):g}",
            "fence": f"{self._key}@{self.number}",
            "reserved": self._reserved,
        }
        places, _, said = self._rest.partition("?")
        query = urlencode(dict(parse_qsl(said)) | options)
        names = make_storage(f"etcd:{places}?{query}", StorageOptions())
        assert is_for_cluster(names), "etcd keeps a cluster's messages"
        if not messages:
            return names
        term = f"{'&' if '?' in messages else '?'}term={self.number}"
        options_of_messages = StorageOptions(confirmed=ConfirmedRecord(names))
        store = make_storage(messages + term, options_of_messages)
        if not is_for_cluster(store):
            raise StorageUnusable(
                f'{messages} cannot store a cluster\'s messages. In the cluster file, set "store" to a '
                'postgres: address, or omit "store"'
            )
        return SplitStorage(names, store)


class _Changes:
    """The events of a watch, without what they say."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __aiter__(self) -> _Changes:
        return self

    async def __anext__(self) -> None:
        with translated():
            await anext(self._watch)


def _is_here(member: Endpoint) -> bool:
    """Whether this machine has the address of a member: it can listen there."""
    try:
        found = socket.getaddrinfo(member.host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as listening:
            listening.bind(address)
            return True
    return False
