"""The look over a whole store with which every check, and every test of a store, ends."""

from __future__ import annotations

from collections import Counter
from typing import Final

from mq.lifecycle import State
from mq.message import checksum
from mq.storage.interface import QUEUE, Entry, Storage, Stored

_READ_AT_ONCE: Final = 64


async def check_whole(storage: Storage) -> None:
    """Look over everything in a store while nothing changes it.

    Raises:
        AssertionError: a message is in two places, is listed where it cannot be read, or its size or checksum is
            not that of its body.
    """
    entries = await _everything(storage)
    places = Counter(entry.id for entry in entries)
    double = [entry for entry in entries if places[entry.id] > 1]
    assert not double, f"a message in two places: {double}"
    for start in range(0, len(entries), _READ_AT_ONCE):
        part = entries[start : start + _READ_AT_ONCE]
        for entry, found in zip(part, await storage.read(part), strict=True):
            await _check_message(entry, found)


async def _everything(storage: Storage) -> list[Entry]:
    entries = []
    for state in (State.NEW, State.DELAYED, State.REMOVED):
        entries += await _listed(storage, state, None)
    for queue in await storage.records(QUEUE):
        entries += await _listed(storage, State.READY, queue)
    return entries


async def _listed(storage: Storage, state: State, queue: str | None) -> list[Entry]:
    entries = await storage.scan(state, queue)
    foreign = [entry for entry in entries if entry.state is not state or queue not in (None, entry.queue)]
    assert not foreign, f"scan of {state.name} in {queue or 'all queues'} lists {foreign}"
    return entries


async def _check_message(entry: Entry, found: Stored | None) -> None:
    if found is None:  # a deleted queue in REMOVED has no bytes
        assert entry.state is State.REMOVED, f"scan lists {entry}, read does not find it"
        return
    try:
        data = await found.body.read()
    finally:
        await found.body.aclose()
    size, crc, _ = found.properties
    assert size == found.body.size == len(data), f"size {size}, body {found.body.size} with {len(data)} bytes: {entry}"
    assert crc in (None, checksum(data)), f"checksum {crc}, that of the body is {checksum(data)}: {entry}"
