"""What a store still holds when it is closed and opened again."""

from __future__ import annotations

from typing import Final

from mq.lifecycle import State
from mq.storage.checks.kit import (
    LARGE_ATTRIBUTES,
    Opener,
    ReopeningCheck,
    body_of,
    bring,
    chunked,
    done,
    is_at,
    is_not_at,
    large_body,
    leased,
    make_queue,
    new_id,
    publish,
    reap,
    reap_all,
    stored,
)
from mq.storage.checks.queues import dropped, stay_out
from mq.storage.checks.records import CREATED, KINDS, ODD_KEYS
from mq.storage.interface import QUEUE, Meta, Move, Storage, Write
from mq.storage.records import drop_record, put_record

SETTINGS: Final = {"created": CREATED, "limit": 5}


async def messages_stay_where_they_are(make: Opener, reopen: Opener) -> None:
    """In every state, with all of their meta, and can be moved on."""
    async with make() as storage:
        queue = await make_queue(storage)
        entries = [await bring(storage, queue, state, leased()) for state in State for _ in range(3)]
        entries[0] = await done(storage, Move(entries[0], State.READY, leased(), durable=False))
    async with reopen() as storage:
        for entry in entries:
            await is_at(storage, entry)
        for entry in entries:
            if entry.state is not State.REMOVED:
                await done(storage, Move(entry, State.DELAYED, leased()))


async def bodies_and_attributes_stay(make: Opener, reopen: Opener) -> None:
    """Large ones, staged ones, empty ones."""
    async with make() as storage:
        queue = await make_queue(storage)
        body = large_body(storage)
        staged = await storage.stage(chunked([body[:1000], body[1000:]]))
        entries = {
            await publish(storage, queue, b"", LARGE_ATTRIBUTES): (b"", LARGE_ATTRIBUTES),
            await publish(storage, queue, body, {"a": [1]}): (body, {"a": [1]}),
            await done(storage, Write(queue, new_id(), staged, {"b": 2})): (body, {"b": 2}),
        }
    async with reopen() as storage:
        for entry, (body, attributes) in entries.items():
            found = await stored(storage, entry)
            await found.body.aclose()
            assert found.properties.attributes == attributes, "attributes changed while the store was closed"
            assert await body_of(storage, entry) == body, "a body changed while the store was closed"


async def a_message_moved_into_a_younger_queue_stays(make: Opener, reopen: Opener) -> None:
    """A message stands in a queue by when it joined, not by its own age."""
    async with make() as storage:
        old = await make_queue(storage, "old")
        ready = await done(storage, Move(await publish(storage, old), State.READY))
        young = await make_queue(storage, "young")
        joined = await done(storage, Move(ready, State.READY, Meta(order=new_id().time), queue=young))
        held = await done(storage, Move(joined, State.DELAYED, leased()._replace(order=joined.meta.order)))
    async with reopen() as storage:
        await is_at(storage, held)


async def what_left_stays_away(make: Opener, reopen: Opener) -> None:
    """Unlinked messages, the former places of messages, and bodies that were staged and never written."""
    async with make() as storage:
        queue = await make_queue(storage)
        unlinked = await bring(storage, queue, State.REMOVED)
        await reap(storage, unlinked)
        before = await bring(storage, queue, State.READY)
        after = await done(storage, Move(before, State.DELAYED, leased()))
        await storage.stage(chunked([b"never written"]))
    async with reopen() as storage:
        for entry in (unlinked, before):
            await is_not_at(storage, entry)
        await is_at(storage, after)
        assert await storage.scan(State.NEW) == [], "something came into NEW while the store was closed"


async def records_stay(make: Opener, reopen: Opener) -> None:
    """As they were put last; dropped ones do not come back."""
    async with make() as storage:
        for key in ODD_KEYS:
            await put_record(storage, KINDS[0], key, {"old": key})
            await put_record(storage, KINDS[0], key, {"new": key})
        await put_record(storage, KINDS[0], "dropped", {})
        await drop_record(storage, KINDS[0], "dropped")
        await put_record(storage, QUEUE, "kept", SETTINGS)
        await put_record(storage, QUEUE, "dropped", SETTINGS)
        await drop_record(storage, QUEUE, "dropped")
    async with reopen() as storage:
        assert await storage.records(QUEUE) == {"kept": SETTINGS}, "queues changed while the store was closed"
        found = await storage.records(KINDS[0])
        assert found == {key: {"new": key} for key in ODD_KEYS}, f"records changed while the store was closed: {found}"
        assert not await put_record(storage, QUEUE, "kept", SETTINGS), "a queue from before is taken for a new one"


async def a_dropped_queue_stays_away(make: Opener, reopen: Opener) -> None:
    """Its leftovers do not come into one that is made after the store was opened again."""
    async with make() as storage:
        leftovers = await dropped(storage, await make_queue(storage))
    async with reopen() as storage:
        queue = await make_queue(storage)
        await stay_out(storage, leftovers)
        assert await storage.scan(State.READY, queue) == [], "messages of a dropped queue came back"
        await _works(storage, queue)


async def a_queue_made_again_stays_empty(make: Opener, reopen: Opener) -> None:
    """Nor into one that was made before the store was closed."""
    async with make() as storage:
        queue = await make_queue(storage)
        leftovers = await dropped(storage, queue)
        await make_queue(storage, queue)
        own = [await publish(storage, queue), await bring(storage, queue, State.DELAYED, leased())]
    async with reopen() as storage:
        await stay_out(storage, leftovers)
        for entry in own:
            await is_at(storage, await done(storage, Move(entry, State.READY)))
        await _works(storage, queue)


async def the_description_stays(make: Opener, reopen: Opener) -> None:
    """A store is the same when it is opened again."""
    async with make() as storage:
        description = storage.description
    async with reopen() as storage:
        assert storage.description == description, f"described as {description}, now as {storage.description}"


async def _works(storage: Storage, queue: str) -> None:
    await is_at(storage, await bring(storage, queue, State.READY))
    await reap_all(storage)


CHECKS: Final[tuple[ReopeningCheck, ...]] = (
    messages_stay_where_they_are,
    bodies_and_attributes_stay,
    a_message_moved_into_a_younger_queue_stays,
    what_left_stays_away,
    records_stay,
    a_dropped_queue_stays_away,
    a_queue_made_again_stays_empty,
    the_description_stays,
)
