"""The right to change a store: one broker at a time has it, by a key that lasts as long as the broker does.

The key hangs on a lease, so the key of a broker that was killed is gone after a few seconds. Every change demands that
it is still the one that was made at the opening: a broker that was cut off for longer than the lease finds itself shut
out, and can do no harm however late it wakes up.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import trio

from mq.errors import StorageUnusable
from mq_etcd.address import Fence
from mq_etcd.client import Client
from mq_etcd.errors import Absent, EtcdError
from mq_etcd.values import Get, Page, Put, absent

LEASE_SECONDS: Final = 10
_TRY_AGAIN_SECONDS: Final = 0.25
_FAREWELL_SECONDS: Final = 2.0


class Owner:
    """Takes a store, keeps it, and gives it back."""

    def __init__(self, client: Client, key: str, session: str) -> None:
        self._client = client
        self._key = key
        self._name = f"{socket.gethostname()}, process {os.getpid()}, {session}".encode()
        self._lease = 0
        self._keeping: trio.CancelScope | None = None
        self._kept = trio.Event()

    async def take(self) -> Fence:
        """Take the store, once a broker that was killed with it in hand has lost it.

        Raises:
            StorageUnusable: another broker has it, and lives.
            EtcdError: etcd does not answer, or says no.
        """
        self._lease = (await self._client.grant(LEASE_SECONDS)).id
        with trio.move_on_after(LEASE_SECONDS + 2):
            fence = await self._try()
            while fence is None:  # a watch would tell it a quarter of a second sooner
                await trio.sleep(_TRY_AGAIN_SECONDS)
                await self._client.keep_alive(self._lease)
                fence = await self._try()
            self._keeping = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._keep, self._keeping, name="mq-etcd keeps its lease")
            return fence
        holder = await self._client.get(self._key)
        by = holder.value.decode(errors="replace") if holder else "somebody"
        raise StorageUnusable(
            f"the store at {self._key} is in use by {by}. Stop that daemon first, or use another prefix for this daemon"
        )

    async def give_back(self) -> None:
        """Let others have it at once; where etcd does not answer, when the lease has ended."""
        if self._keeping is not None:
            self._keeping.cancel()
            await self._kept.wait()
            self._keeping = None
        lease, self._lease = self._lease, 0
        if lease:
            with trio.move_on_after(_FAREWELL_SECONDS):
                try:
                    await self._client.revoke(lease)
                except EtcdError:
                    return

    async def _try(self) -> Fence | None:
        put = Put(self._key, self._name, self._lease)
        outcome = await self._client.txn([absent(self._key)], [put, Get(self._key)], [Get(self._key)], repeats=True)
        page = outcome.answers[-1]
        found = page.found[0] if isinstance(page, Page) and page.found else None
        if found is None or found.value != self._name:
            return None
        return Fence(self._key, found.created)

    async def _keep(self, scope: trio.CancelScope) -> None:
        """As a task of the system's, for a store has no nursery. The fence tells whether the lease has ended."""
        with scope:
            while True:
                await trio.sleep(LEASE_SECONDS / 4)
                try:
                    await self._client.keep_alive(self._lease)
                except Absent:
                    break
                except EtcdError:
                    continue
        self._kept.set()
