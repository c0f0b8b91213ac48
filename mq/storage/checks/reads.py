"""What find and scan tell, what changes() is, and what a store says of itself."""

from __future__ import annotations

from typing import Final

import trio

from mq.lifecycle import State
from mq.storage.checks.kit import Check, bring, discard, done, leased, make_queue, new_id, publish_twin
from mq.storage.interface import Move, Storage, Write, is_for_cluster

NEIGHBOURS: Final = ("a", "A", "aa", "a.b", "a-b", "a@b", "_")
"""Queues whose names begin alike, or differ only in case."""


async def find_tells_where_a_message_is(storage: Storage) -> None:
    """In NEW, READY and DELAYED; in REMOVED it is no longer found."""
    queue = await make_queue(storage)
    for state in (State.NEW, State.READY, State.DELAYED):
        entry = await bring(storage, queue, state, leased())
        found = await storage.find(queue, entry.id)
        assert found == entry, f"find in {state.name} gave {found}, not {entry}"
    removed = await bring(storage, queue, State.REMOVED)
    assert await storage.find(queue, removed.id) is None, "find found a removed message"


async def find_tells_that_a_message_is_not_there(storage: Storage) -> None:
    """An unknown id, an unknown queue, another queue's message."""
    queue = await make_queue(storage)
    entry = await bring(storage, queue, State.READY)
    for name, id in ((queue, new_id()), ("nowhere", entry.id), ("nowhere", new_id())):
        found = await storage.find(name, id)
        assert found is None, f"find of an unknown message gave {found}"


async def find_looks_in_order(storage: Storage) -> None:
    """NEW before READY before DELAYED, if an id is in several."""
    queue = await make_queue(storage)
    id, places = new_id(), 0
    for state in (State.DELAYED, State.READY, State.NEW):
        entry = await publish_twin(storage, queue, id)
        if entry is None:
            break  # a store that has an id once has no order to look in
        places += 1
        if state is not State.NEW:
            entry = await done(storage, Move(entry, state))
        found = await storage.find(queue, id)
        assert found == entry, f"find gave {found}, not {entry}, which comes first"
    for _ in range(places):
        found = await storage.find(queue, id)
        assert found is not None, "find lost a message that was in several states"
        await discard(storage, found)


async def contains_finds_a_message_in_every_state(storage: Storage) -> None:
    """In NEW, READY, DELAYED and REMOVED, in one of several queues, until its Unlink; in a store for a cluster."""
    if not is_for_cluster(storage):
        return
    queue, other = await make_queue(storage), await make_queue(storage, "other")
    for state in State:
        entry = await bring(storage, queue, state)
        for queues in ([queue], [other, queue]):
            assert await storage.contains(queues, entry.id), f"contains does not find a message in {state.name}"
        await discard(storage, entry)
        assert not await storage.contains([queue], entry.id), f"contains finds a message of {state.name} after its end"
    assert not await storage.contains([queue, other, "nowhere"], new_id()), "contains finds what was never written"


async def contains_finds_a_message_while_it_moves(storage: Storage) -> None:
    """Whenever it is asked on the way through READY and DELAYED to REMOVED; in a store for a cluster."""
    if not is_for_cluster(storage):
        return
    queue = await make_queue(storage)
    entry = await bring(storage, queue, State.READY)
    answers: list[bool] = []

    async def ask() -> None:
        while True:
            answers.append(await storage.contains([queue], entry.id))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        at = entry
        for number in range(60):
            state, meta = (State.READY, at.meta.at_rest()) if number % 2 else (State.DELAYED, leased())
            at = await done(storage, Move(at, state, meta))
            for _ in range(1 + number % 5):  # some stores do not wait, and it is not to move in step with those who ask
                await trio.lowlevel.checkpoint()
        await done(storage, Move(at, State.REMOVED))
        while len(answers) < 40:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert all(answers), f"contains missed a moving message {answers.count(False)} of {len(answers)} times"


async def scan_lists_a_state(storage: Storage) -> None:
    """Every entry in it, once, of one queue or of all; an empty one is an empty list."""
    queues = [await make_queue(storage, name) for name in NEIGHBOURS]
    for state in State:
        assert await storage.scan(state, queues[0]) == [], f"scan of {state.name} in a fresh store"
        here = [await bring(storage, queue, state) for queue in queues for _ in range(3)]
        for queue in queues:
            expected = [entry for entry in here if entry.queue == queue]
            listed = await storage.scan(state, queue)
            assert sorted(listed) == sorted(expected), f"scan of {state.name} in {queue}: {listed}, not {expected}"
        if state is not State.READY:  # which needs a queue
            listed = await storage.scan(state)
            assert sorted(listed) == sorted(here), f"scan of {state.name} in all queues: {listed}, not {here}"


async def scan_lists_many(storage: Storage) -> None:
    """More than a medium hands over at once."""
    queue = await make_queue(storage)
    ids = [new_id() for _ in range(1500)]
    for start in range(0, len(ids), 500):
        await storage.commit([Write(queue, id, b"", durable=False) for id in ids[start : start + 500]])
    listed = await storage.scan(State.NEW)
    assert sorted(entry.id for entry in listed) == sorted(ids), f"scan lists {len(listed)} of {len(ids)} messages"


async def scan_stops_at_its_limit(storage: Storage) -> None:
    """At most so many, and some as long as there are any."""
    queue, other = await make_queue(storage), await make_queue(storage, "other")
    for state in (State.NEW, State.READY, State.DELAYED, State.REMOVED):
        here = [await bring(storage, queue, state) for _ in range(5)]
        elsewhere = [await bring(storage, other, state) for _ in range(5)]
        for limit in (1, 3, 5, 50):
            listed = await storage.scan(state, queue, limit)
            assert 0 < len(listed) <= limit, f"scan of {state.name} with limit {limit}: {len(listed)} of 5"
            assert len(set(listed) & set(here)) == len(listed), f"scan of {state.name} with limit {limit}: {listed}"
        if state is not State.READY:
            listed = await storage.scan(state, limit=7)
            assert 0 < len(set(listed) & {*here, *elsewhere}) == len(listed) <= 7, f"scan with limit 7: {listed}"


async def scan_of_an_unknown_queue_is_empty(storage: Storage) -> None:
    """Asking for it is no error."""
    for state in State:
        listed = await storage.scan(state, "nowhere")
        assert listed == [], f"scan of {state.name} in a queue that is not there: {listed}"


async def changes_can_be_entered_and_left(storage: Storage) -> None:
    """Where the medium can tell; None where it cannot."""
    changes = storage.changes()
    if changes is not None:
        async with changes as told:
            assert hasattr(told, "__anext__"), f"changes() gives {told!r}, which cannot be iterated"
    queue = await make_queue(storage)
    await bring(storage, queue, State.READY)


async def the_description_is_sane(storage: Storage) -> None:
    """Of the right types, and the same each time."""
    description = storage.description
    assert ":" in description.name, f"the name is the address, NAME:rest, not {description.name!r}"
    for field in ("durable", "shared", "journaled", "places", "removes"):
        value = getattr(description, field)
        assert isinstance(value, bool), f"description.{field} is {value!r}, not True or False"
    assert description.max_body is None or description.max_body > 0, f"max_body is {description.max_body}"
    assert storage.description == description, "the description changes"


CHECKS: Final[tuple[Check, ...]] = (
    find_tells_where_a_message_is,
    find_tells_that_a_message_is_not_there,
    find_looks_in_order,
    contains_finds_a_message_in_every_state,
    contains_finds_a_message_while_it_moves,
    scan_lists_a_state,
    scan_lists_many,
    scan_stops_at_its_limit,
    scan_of_an_unknown_queue_is_empty,
    changes_can_be_entered_and_left,
    the_description_is_sane,
)
