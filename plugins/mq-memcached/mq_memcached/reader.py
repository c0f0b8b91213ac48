"""What is there: by walking chains, and keeping what was seen for as long as it is unchanged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from mq.errors import StorageFull
from mq.lifecycle import State
from mq.message import Body, BytesBody, DamagedBody, MessageId, Properties, checksum
from mq.storage.interface import QUEUE, Entry, Stored
from mq_memcached import protocol
from mq_memcached.batches import part_keys
from mq_memcached.chains import Chains
from mq_memcached.keys import Keys
from mq_memcached.link import Link
from mq_memcached.own import OwnChanges
from mq_memcached.places import Incarnations, Place, decode, entry_at, unpack
from mq_memcached.protocol import DELETED, Item, Values
from mq_memcached.records import Records

LOOK_AGAIN_SECONDS: Final = 5.0
"""How long what was seen counts while no client says that it changed: one may have died between the two."""
_TIDY_SECONDS: Final = 2.0
"""How often looks tidy a chain at the most; it costs them time."""
_PARTS_AT_ONCE: Final = 8
_FIND_ORDER: Final = (State.NEW, State.READY, State.DELAYED)


class _Seen(NamedTuple):
    """What a chain pointed to.

    Attributes:
        changes: the count of its changes then.
        time: when that was, by Trio's clock.
        values: entries as they were read, by key.
        places: where messages were.
    """

    changes: bytes
    time: float
    values: dict[bytes, tuple[bytes, tuple[Place, ...]]]
    places: list[tuple[MessageId, Place]]


class Reader:
    """Looks at a store.

    Args:
        link: leads to the server.
        keys: names what is there.
        chains: lists what is there.
        records: knows the queues.
        own: tells what this process changes meanwhile.
    """

    def __init__(self, link: Link, keys: Keys, chains: Chains, records: Records, own: OwnChanges) -> None:
        self._link = link
        self._keys = keys
        self._chains = chains
        self._records = records
        self._own = own
        self._seen: dict[bytes, _Seen] = {}
        self._tidy_next: dict[bytes, float] = {}

    async def scan(self, state: State, queue: str | None, limit: int | None) -> list[Entry]:
        """Entries in a state.

        Raises:
            StorageFull: no server.
        """
        with self._own.noted() as changes:
            chains = await self._chains_of(queue)
            counts = await self._link.values(map(self._keys.changes, chains))
            places = []
            for chain in sorted(chains):
                count = counts.get(self._keys.changes(chain))
                if count is not None:
                    places += await self._places(chain, count.value)
            incarnations = await self._incarnations(place.queue for _, place in places if place.state is State.READY)
            places = self._corrected(queue, places, changes)
        entries = (entry_at(id, place, incarnations) for id, place in places if queue in (None, place.queue))
        return [entry for entry in entries if entry.state is state][:limit]

    async def _chains_of(self, queue: str | None) -> set[bytes]:
        if queue is not None:
            return {self._keys.chain_of_queue(queue)}
        walk = await self._chains.walk(self._keys.registry)
        return {chain for chain in walk.slots.values() if chain.startswith(b"q.")}

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is.

        Raises:
            StorageFull: no server.
        """
        key, record = self._keys.entry(id), self._keys.record(QUEUE, queue)
        found = await self._link.values([key, record])
        if key not in found:
            return None
        incarnations = {queue: self._records.incarnation(found.get(record))}
        entries = [entry_at(id, place, incarnations) for place in decode(found[key].value).places]
        there = {entry.state: entry for entry in entries if entry.queue == queue}
        return next((there[state] for state in _FIND_ORDER if state in there), None)

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places.

        Raises:
            StorageFull: no server.
        """
        places = await self._at(entries)
        wanted = [
            key
            for entry, place in zip(entries, places, strict=True)
            if place is not None
            for key in part_keys(self._keys, entry.id, place)
        ]
        parts = await self._link.values(wanted)
        stored = [
            self._stored(entry, place, parts) if place is not None else None
            for entry, place in zip(entries, places, strict=True)
        ]
        if any(found is not None and isinstance(found.body, DamagedBody) for found in stored):
            still = await self._at(entries)  # was it taken away while we read?
            stored = [found if place is not None else None for found, place in zip(stored, still, strict=True)]
        return stored

    async def tidy(self, queue: str) -> None:
        """Bring the tail of a queue's chain forward. It can wait: nothing is raised."""
        await self._tidy(self._keys.chain_of_queue(queue))

    # -- how it is done

    async def _places(self, chain: bytes, changes: bytes) -> list[tuple[MessageId, Place]]:
        seen = self._seen.get(chain)
        now = trio.current_time()
        if seen is not None and seen.changes == changes and now - seen.time < LOOK_AGAIN_SECONDS:
            return seen.places
        walk = await self._chains.walk(chain)
        keys = {thing: self._keys.entry(_id(thing)) for thing in walk.slots.values()}
        found = await self._link.values(set(keys.values()))
        before = seen.values if seen is not None else {}
        values = {key: _decoded(item, before.get(key)) for key, item in found.items()}
        places, dead = set(), []
        for number, thing in walk.slots.items():
            _, there = values.get(keys[thing], (b"", ()))
            here = [(_id(thing), place) for place in there if self._is_of(chain, thing, place)]
            places.update(here)
            if not here:
                dead.append(number)
        self._seen[chain] = _Seen(changes, now, values, list(places))
        self._chains.doubt(chain, dead)
        if (dead or walk.length > len(walk.slots)) and now >= self._tidy_next.get(chain, now):
            self._tidy_next[chain] = now + _TIDY_SECONDS
            await self._tidy(chain)
        return self._seen[chain].places

    def _corrected(
        self, queue: str | None, places: list[tuple[MessageId, Place]], changes: dict[bytes, bytes | None]
    ) -> list[tuple[MessageId, Place]]:
        """What was seen, but for what we have changed since we began to look."""
        if not changes:
            return places
        places = [(id, place) for id, place in places if self._keys.entry(id) not in changes]
        for key, value in changes.items():
            for place in decode(value).places if value is not None else ():
                if queue in (None, place.queue):
                    places.append((self._keys.id_of(key), place))
        return places

    def _is_of(self, chain: bytes, thing: bytes, place: Place) -> bool:
        return self._keys.chain_of_queue(place.queue) == chain and thing.endswith(place.mark.encode())

    async def _tidy(self, chain: bytes) -> None:
        async def living(things: Iterable[bytes]) -> set[bytes]:
            known = await self._known(things)
            return {
                thing for thing, places in known.items() if any(self._is_of(chain, thing, place) for place in places)
            }

        with suppress(StorageFull):  # the next one does it
            await self._chains.tidy(chain, living, self._bury)

    async def _bury(self, things: Iterable[bytes]) -> None:
        """Take away the bodies of messages that are not there. One may have gone elsewhere, and its body with it."""
        for thing, places in (await self._known(things)).items():
            if any(thing.endswith(place.mark.encode()) for place in places):
                continue
            id, _, mark = thing.partition(b" ")
            for start in itertools.count(0, _PARTS_AT_ONCE):
                names = [self._keys.part(id, mark, start + number) for number in range(_PARTS_AT_ONCE)]
                if (await self._link.ask(map(protocol.delete, names)))[-1] != DELETED:
                    break

    async def _known(self, things: Iterable[bytes]) -> dict[bytes, tuple[Place, ...]]:
        keys = {thing: self._keys.entry(_id(thing)) for thing in things}
        found = await self._link.values(set(keys.values()))
        return {thing: decode(found[key].value).places if key in found else () for thing, key in keys.items()}

    async def _at(self, entries: Sequence[Entry]) -> list[Place | None]:
        queues = {self._keys.record(QUEUE, entry.queue): entry.queue for entry in entries}
        found = await self._link.values({*queues, *(self._keys.entry(entry.id) for entry in entries)})
        incarnations = {queue: self._records.incarnation(found.get(key)) for key, queue in queues.items()}
        return [_place_at(entry, found.get(self._keys.entry(entry.id)), incarnations) for entry in entries]

    async def _incarnations(self, queues: Iterable[str]) -> Incarnations:
        wanted = {self._keys.record(QUEUE, queue): queue for queue in set(queues)}
        found = await self._link.values(wanted)
        return {queue: self._records.incarnation(found.get(key)) for key, queue in wanted.items()}

    def _stored(self, entry: Entry, place: Place, parts: Values) -> Stored:
        blob = b"".join(parts[key].value for key in part_keys(self._keys, entry.id, place) if key in parts)
        try:
            data, attributes = unpack(blob)
        except (ValueError, json.JSONDecodeError):
            data, attributes = b"", {}
        body: Body = BytesBody(data)
        if len(data) != place.size or checksum(data) != place.checksum:
            body = DamagedBody(place.size, f"message {entry.id} is not as it was published: parts of it are missing")
        return Stored(Properties(place.size, place.checksum, attributes), body)


def _id(thing: bytes) -> MessageId:
    return str.__new__(MessageId, thing.partition(b" ")[0].decode())


def _decoded(item: Item, before: tuple[bytes, tuple[Place, ...]] | None) -> tuple[bytes, tuple[Place, ...]]:
    if before is not None and before[0] == item.value:
        return before
    return item.value, decode(item.value).places


def _place_at(entry: Entry, item: Item | None, incarnations: Incarnations) -> Place | None:
    if item is None:
        return None
    places = decode(item.value).places
    return next((place for place in places if entry_at(entry.id, place, incarnations) == entry), None)
