"""Records: one key each, with a chain for each kind."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from mq.errors import StorageFull
from mq_memcached import protocol
from mq_memcached.chains import Chains
from mq_memcached.keys import Keys
from mq_memcached.link import Link, Lost, Refused
from mq_memcached.protocol import DELETED, STORED, Item

_ROUNDS: Final = 50


class Records:
    """The records of a store.

    Args:
        link: leads to the server.
        keys: names what is there.
        chains: lists what is there.
    """

    def __init__(self, link: Link, keys: Keys, chains: Chains) -> None:
        self._link = link
        self._keys = keys
        self._chains = chains

    def incarnation(self, item: Item | None) -> str | None:
        """What tells the record from all others that had or will have its key; None when there is none."""
        return json.loads(item.value)["i"] if item is not None else None

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Keep a record; True when it is new.

        Raises:
            StorageFull: no room, or no server.
        """
        incarnation = secrets.token_hex(8)
        for _ in range(_ROUNDS):
            try:
                is_new = await self._put(kind, key, value, incarnation)
            except Lost:
                is_new = await self._put(kind, key, value, incarnation)  # once more; what was sent is known by its mark
            if is_new is not None:
                return is_new
        raise Refused(f"others change the {kind} {key[:60]!r} all the time")

    async def _put(self, kind: str, key: str, value: Mapping[str, Any], incarnation: str) -> bool | None:
        """Whether it is new; None when the race was lost."""
        name, chain = self._keys.record(kind, key), self._keys.chain_of_kind(kind)
        item = (await self._link.values([name])).get(name)
        if item is not None:
            kept = json.loads(item.value)["i"]
            [reply] = await self._link.ask([protocol.swap(name, _encode(key, value, kept), item.version)])
            return kept == incarnation if _stored(reply) else None
        [number] = await self._chains.append(chain, [self._keys.digest(key)])
        reply, *looks = await self._link.ask(
            [protocol.add(name, _encode(key, value, incarnation)), *self._chains.verify(chain, [number])]
        )
        if not _stored(reply):
            await self._chains.drop(chain, [number])
            return None
        seen = {name: item for look in looks for name, item in self._link.collected(look).items()}
        return True if self._chains.holds(chain, number, seen) else await self._list_again(chain, key)

    async def _list_again(self, chain: bytes, key: str) -> bool:
        """List a record again whose slot a tidying client took for a dead writer's, until a slot stays."""
        for _ in range(_ROUNDS):
            [number] = await self._chains.append(chain, [self._keys.digest(key)])
            looks = await self._link.ask(self._chains.verify(chain, [number]))
            if self._chains.holds(chain, number, self._link.collected(looks[0])):
                return True
        raise Refused("others tidy the records all the time")

    async def drop(self, kind: str, key: str) -> bool:
        """Forget a record; False when it was not there.

        Raises:
            StorageFull: no server.
        """
        command = protocol.delete(self._keys.record(kind, key))
        try:
            [reply] = await self._link.ask([command])
        except Lost:
            await self._link.ask([command])
            return True  # by us, now or before
        return reply == DELETED

    async def all(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """All records of a kind, by key.

        Raises:
            StorageFull: no server.
        """
        chain = self._keys.chain_of_kind(kind)
        walk = await self._chains.walk(chain)
        found = await self._link.values(self._keys.recorded(kind, thing) for thing in set(walk.slots.values()))
        dead = [number for number, thing in walk.slots.items() if self._keys.recorded(kind, thing) not in found]
        if dead or walk.length > len(walk.slots):
            self._chains.doubt(chain, dead)
            await self._tidy(kind)
        records = (json.loads(item.value) for item in found.values())
        return {record["k"]: record["v"] for record in records}

    async def _tidy(self, kind: str) -> None:
        async def living(things: Iterable[bytes]) -> set[bytes]:
            names = {self._keys.recorded(kind, thing): thing for thing in things}
            return {names[name] for name in await self._link.values(names)}

        async def bury(things: Iterable[bytes]) -> None:
            pass  # a record is all there is of it

        with suppress(StorageFull):  # the next one does it
            await self._chains.tidy(self._keys.chain_of_kind(kind), living, bury)


def _encode(key: str, value: Mapping[str, Any], incarnation: str) -> bytes:
    return json.dumps({"k": key, "v": value, "i": incarnation}).encode()


def _stored(reply: object) -> bool:
    if isinstance(reply, bytes) and reply.startswith(protocol.NO_ROOM):
        raise Refused(f"the server does not take the record: {reply.decode(errors='replace')}")
    return reply == STORED
