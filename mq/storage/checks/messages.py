"""What is written is what is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from mq.lifecycle import State
from mq.message import checksum
from mq.storage.checks.kit import (
    LARGE_ATTRIBUTES,
    Check,
    body_of,
    done,
    is_at,
    large_body,
    leased,
    make_queue,
    new_id,
    one,
    publish,
    refused,
    stored,
    streamed,
    together,
    whole,
)
from mq.storage.interface import FRESH, QUEUE, Entry, Meta, Move, Result, Storage, Write
from mq.storage.records import drop_record

BODIES: Final = {
    "empty": b"",
    "one byte": b"\0",
    "text": "Grüße\n".encode(),
    "every byte": bytes(range(256)) * 3,
    "line ends": b"\r\n\r\n\0\n",
}
ATTRIBUTES: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "text": {"content_type": "text/plain; charset=utf-8"},
    "odd text": {"": "", "ü": "\n\t\0", 'quote"': "a,b:c/d\\e", "x" * 200: "y"},
    "every JSON type": {"null": None, "yes": True, "int": 2**53, "float": -2.5, "list": [1, [], {}], "map": {"a": {}}},
    "large": LARGE_ATTRIBUTES,
    "very large": {f"header {number}": "x" * 1000 for number in range(100)},
}


async def a_body_comes_back_exactly(storage: Storage) -> None:
    """Read whole and chunk by chunk: every byte, and the size beforehand."""
    queue = await make_queue(storage)
    for name, body in {**BODIES, "large": large_body(storage)}.items():
        entry = await publish(storage, queue, body)
        for read in (whole, streamed):
            found = await stored(storage, entry)
            assert found.body.size == len(body), f"the size of the body ({name}) is {found.body.size}, not {len(body)}"
            assert await read(found.body) == body, f"the body ({name}) came back changed by {read.__name__}"


async def properties_describe_the_body(storage: Storage) -> None:
    """Size always, the checksum where the store keeps one."""
    queue = await make_queue(storage)
    for name, body in BODIES.items():
        found = await stored(storage, await publish(storage, queue, body))
        await found.body.aclose()
        size, crc, _ = found.properties
        assert size == len(body), f"properties say {size} bytes, {len(body)} were written ({name})"
        assert crc in (None, checksum(body)), f"properties say checksum {crc}, not {checksum(body)} ({name})"


async def attributes_come_back(storage: Storage) -> None:
    """Of any JSON type and size."""
    queue = await make_queue(storage)
    for name, attributes in ATTRIBUTES.items():
        entry = await publish(storage, queue, attributes=attributes)
        await _has_attributes(storage, entry, attributes, name)


async def attributes_stay_through_every_state(storage: Storage) -> None:
    """Moves do not touch them, nor the body."""
    queue = await make_queue(storage)
    for attributes in (ATTRIBUTES["text"], LARGE_ATTRIBUTES):
        entry = await publish(storage, queue, b"kept", attributes)
        for state, meta in ((State.READY, None), (State.DELAYED, leased()), (State.READY, None)):
            entry = await done(storage, Move(entry, state, meta) if meta else Move(entry, state))
            assert await body_of(storage, entry) == b"kept", f"the body changed on its way to {state.name}"
            await _has_attributes(storage, entry, attributes, state.name)


async def attributes_are_a_snapshot(storage: Storage) -> None:
    """What the caller does to the mapping afterwards changes nothing, neither for a writer nor for a reader."""
    queue = await make_queue(storage)
    attributes: dict[str, Any] = {"list": [1]}
    entry = await publish(storage, queue, attributes=attributes)
    attributes["list"].append(2)
    await _has_attributes(storage, entry, {"list": [1]}, "changed by the writer")


async def a_write_is_in_new(storage: Storage) -> None:
    """Under the id and the queue it was given."""
    queue = await make_queue(storage)
    await is_at(storage, await done(storage, Write(queue, new_id(), b"body")))


async def a_write_keeps_its_meta(storage: Storage) -> None:
    """A deadline for a message that is to be delayed, an expiry: both are there from the beginning."""
    queue = await make_queue(storage)
    meta = Meta(deadline_ms=1_700_000_000_123, expires_ms=1_700_000_999_456)
    entry = await done(storage, Write(queue, new_id(), b"delayed", meta=meta))
    await is_at(storage, entry)
    await is_at(storage, await done(storage, Move(entry, State.DELAYED, meta)))


async def a_write_is_where_it_says(storage: Storage) -> None:
    """In a store that places messages: in READY or DELAYED at once, with its meta; else the store says that it does
    not."""
    if not storage.description.places:
        return
    queue = await make_queue(storage)
    for state, meta in (
        (State.READY, FRESH),
        (State.READY, Meta(expires_ms=1_700_000_999_456)),
        (State.DELAYED, leased()),
    ):
        for body, attributes in ((b"at once", {"a": 1}), (large_body(storage), LARGE_ATTRIBUTES)):
            entry = await done(storage, Write(queue, new_id(), body, attributes, meta, state=state))
            await is_at(storage, entry)
            assert entry == Entry(queue, entry.id, state, meta), f"a Write to {state.name} is at {entry}"
            assert await body_of(storage, entry) == body, f"a Write to {state.name} changed the body"
            await _has_attributes(storage, entry, attributes, f"written to {state.name}")
            again = Write(queue, entry.id, b"second", {"b": 2}, meta, state=state)
            await refused(storage, again, Result.EXISTS)
            assert await body_of(storage, entry) == body, "a Write that answered EXISTS changed the body"


async def a_write_to_ready_needs_its_queue(storage: Storage) -> None:
    """NO_QUEUE, and nothing is left of it; what stands beside it in the batch is done."""
    if not storage.description.places:
        return
    queue, gone = await make_queue(storage), await make_queue(storage, "gone")
    await drop_record(storage, QUEUE, gone)
    for body in (b"small", large_body(storage)):
        lost, kept = (Write(name, new_id(), body, state=State.READY) for name in (gone, queue))
        outcomes = await storage.commit([lost, kept])
        results = [outcome.result for outcome in outcomes]
        assert results == [Result.NO_QUEUE, Result.DONE], f"Writes to READY, one without a queue, gave {results}"
        assert await storage.find(gone, lost.id) is None, "a Write that answered NO_QUEUE left a message"
        await is_at(storage, kept.entry)


async def a_write_needs_no_queue(storage: Storage) -> None:
    """Whether the queue exists is the broker's to know."""
    await is_at(storage, await publish(storage, "nowhere"))


async def a_write_overwrites_nothing(storage: Storage) -> None:
    """EXISTS, and the message that was there keeps its body and its attributes."""
    queue = await make_queue(storage)
    for attributes, others in (({"a": 1}, {"b": 2}), (LARGE_ATTRIBUTES, {"note": "x" * 9000}), ({}, LARGE_ATTRIBUTES)):
        entry = await publish(storage, queue, b"first", attributes)
        await refused(storage, Write(queue, entry.id, b"second, and longer", others), Result.EXISTS)
        assert await body_of(storage, entry) == b"first", "a Write that answered EXISTS changed the body"
        await _has_attributes(storage, entry, attributes, "after a Write that answered EXISTS")


async def of_equal_writes_one_is_done(storage: Storage) -> None:
    """However many write the same id at once."""
    queue = await make_queue(storage)
    writes = [Write(queue, new_id(), b"body %d" % number) for number in range(8)]
    writes = [write._replace(id=writes[0].id) for write in writes]
    outcomes = await together(partial(one, storage, write) for write in writes)
    results = [outcome.result for outcome in outcomes]
    assert results.count(Result.DONE) == 1, f"of eight Writes of one id {results.count(Result.DONE)} were DONE"
    assert results.count(Result.EXISTS) == 7, f"of eight Writes of one id seven should be EXISTS: {results}"
    winner = writes[results.index(Result.DONE)]
    body = await body_of(storage, Entry(queue, winner.id, State.NEW))
    assert body == winner.body, "the body is not that of the one DONE"


async def reading_finds_only_what_is_there(storage: Storage) -> None:
    """None for each that is not, in the order of the request."""
    queue = await make_queue(storage)
    kept, moved = await publish(storage, queue, b"kept"), await publish(storage, queue)
    now = await done(storage, Move(moved, State.DELAYED, leased()))
    never = Entry(queue, new_id(), State.READY)
    elsewhere = Entry("nowhere", kept.id, State.READY)
    found = await storage.read([never, kept, moved, now, elsewhere, now._replace(meta=leased())])
    there = [stored is not None for stored in found]
    for stored_ in found:
        if stored_ is not None:
            await stored_.body.aclose()
    assert there == [False, True, False, True, False, False], f"of six places, two of them taken, read gave {there}"
    assert await storage.read([]) == [], "read of no entries gave something"


async def many_bodies_are_read_at_once(storage: Storage) -> None:
    """Each goes with its entry."""
    queue = await make_queue(storage)
    entries = [await publish(storage, queue, b"%d" % number) for number in range(40)]
    entries.reverse()
    bodies = [await whole(found.body) for found in await storage.read(entries) if found is not None]
    assert bodies == [b"%d" % number for number in reversed(range(40))], f"bodies in the wrong order: {bodies}"


async def a_body_can_be_closed_unread(storage: Storage) -> None:
    """And half read."""
    queue = await make_queue(storage)
    entry = await publish(storage, queue, large_body(storage))
    unread = await stored(storage, entry)
    await unread.body.aclose()
    half = await stored(storage, entry)
    chunks = aiter(half.body)
    await anext(chunks)
    if isinstance(chunks, AsyncGenerator):  # one that is left to the garbage collector is a warning of Trio's
        await chunks.aclose()
    await half.body.aclose()
    assert await body_of(storage, entry) == large_body(storage), "the body changed by being read"


async def _has_attributes(storage: Storage, entry: Entry, expected: dict[str, Any], when: str) -> None:
    found = await stored(storage, entry)
    await found.body.aclose()
    attributes = found.properties.attributes
    assert attributes == expected, f"attributes ({when}) are {str(attributes)[:200]}, not {str(expected)[:200]}"


CHECKS: Final[tuple[Check, ...]] = (
    a_body_comes_back_exactly,
    properties_describe_the_body,
    attributes_come_back,
    attributes_stay_through_every_state,
    attributes_are_a_snapshot,
    a_write_is_in_new,
    a_write_is_where_it_says,
    a_write_to_ready_needs_its_queue,
    a_write_keeps_its_meta,
    a_write_needs_no_queue,
    a_write_overwrites_nothing,
    of_equal_writes_one_is_done,
    reading_finds_only_what_is_there,
    many_bodies_are_read_at_once,
    a_body_can_be_closed_unread,
)
