"""Large bodies: on their way to the medium before their message is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import trio

from mq.lifecycle import State
from mq.message import checksum
from mq.storage.checks.kit import (
    LARGE_ATTRIBUTES,
    Check,
    body_of,
    chunked,
    done,
    is_at,
    large_body,
    leased,
    make_queue,
    new_id,
    publish,
    refused,
    stored,
    streamed,
    together,
)
from mq.storage.interface import Move, Result, Storage, Write

CHUNKS: Final = {
    "none": (),
    "empty": (b"", b""),
    "one": (b"body",),
    "uneven": (b"", b"a", b"bc" * 40_000, b"", bytes(range(256)), b"d"),
}


async def a_staged_body_comes_back_exactly(storage: Storage) -> None:
    """However it was cut into chunks."""
    queue = await make_queue(storage)
    body = large_body(storage)
    large = tuple(body[start : start + 70_001] for start in range(0, len(body), 70_001))
    for name, chunks in {**CHUNKS, "large": large}.items():
        body = b"".join(chunks)
        staged = await storage.stage(chunked(chunks))
        assert (staged.size, staged.checksum) == (len(body), checksum(body)), f"size and checksum staged ({name})"
        entry = await done(storage, Write(queue, new_id(), staged, LARGE_ATTRIBUTES))
        await is_at(storage, entry)
        found = await stored(storage, entry)
        assert found.properties.size == len(body), f"the size of a staged body ({name}): {found.properties}"
        assert found.properties.attributes == LARGE_ATTRIBUTES, f"the attributes of a staged body ({name})"
        assert await streamed(found.body) == body, f"the staged body ({name}) came back changed"


async def a_staged_body_moves_like_any_other(storage: Storage) -> None:
    """To READY, leased and back."""
    queue = await make_queue(storage)
    staged = await storage.stage(chunked([b"staged"]))
    entry = await done(storage, Write(queue, new_id(), staged))
    for state in (State.READY, State.DELAYED, State.READY):
        entry = await done(storage, Move(entry, state, leased()))
        assert await body_of(storage, entry) == b"staged", f"the staged body changed on its way to {state.name}"


async def a_staged_body_is_no_message_yet(storage: Storage) -> None:
    """Nothing of it can be seen before its Write, and nothing is left once it is discarded."""
    staged = await storage.stage(chunked([b"staged"]))
    await _is_empty(storage, "after stage")
    await staged.discard()
    await _is_empty(storage, "after discard")


async def a_written_body_is_not_discarded(storage: Storage) -> None:
    """Discard does nothing once the Write is done."""
    queue = await make_queue(storage)
    staged = await storage.stage(chunked([b"staged"]))
    entry = await done(storage, Write(queue, new_id(), staged))
    await staged.discard()
    assert await body_of(storage, entry) == b"staged", "discard took a message's body away"


async def a_staged_write_overwrites_nothing(storage: Storage) -> None:
    """EXISTS, as for any Write."""
    queue = await make_queue(storage)
    entry = await publish(storage, queue, b"first", {"a": 1})
    staged = await storage.stage(chunked([b"second"]))
    await refused(storage, Write(queue, entry.id, staged, {"b": 2}), Result.EXISTS)
    found = await stored(storage, entry)
    assert found.properties.attributes == {"a": 1}, f"a Write that answered EXISTS changed {found.properties}"
    assert await streamed(found.body) == b"first", "a Write that answered EXISTS changed the body"
    await staged.discard()


async def a_refused_write_leaves_its_staged_body(storage: Storage) -> None:
    """Nothing was changed, so it can still be written: under another id, or later when there is room."""
    queue = await make_queue(storage)
    taken = await publish(storage, queue)
    staged = await storage.stage(chunked([b"staged"]))
    for _ in range(2):
        await refused(storage, Write(queue, taken.id, staged), Result.EXISTS)
    entry = await done(storage, Write(queue, new_id(), staged))
    assert await body_of(storage, entry) == b"staged", "the staged body changed by a Write that was refused"


async def what_chunks_raise_passes_through(storage: Storage) -> None:
    """And nothing is left behind; the store goes on."""

    class CutShort(Exception):
        pass

    async def cut_short() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        raise CutShort

    try:
        await storage.stage(cut_short())
    except CutShort:
        pass
    else:
        raise AssertionError("stage hid what its chunks raised")
    await _is_empty(storage, "after an error in its chunks")
    await a_staged_body_moves_like_any_other(storage)


async def staging_can_be_cancelled(storage: Storage) -> None:
    """While it waits for the next chunk; nothing is left behind."""

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        scope.cancel()
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        await storage.stage(stuck())
    assert scope.cancelled_caught, "stage went on without its last chunk"
    await _is_empty(storage, "after a cancelled stage")


async def bodies_are_staged_side_by_side(storage: Storage) -> None:
    """And written in one batch; each comes with its own message."""
    queue = await make_queue(storage)
    bodies = [b"%d " % number * 1000 for number in range(8)]
    staged = await together(partial(storage.stage, chunked([body[:500], body[500:]])) for body in bodies)
    outcomes = await storage.commit([Write(queue, new_id(), body) for body in staged])
    for outcome, body in zip(outcomes, bodies, strict=True):
        assert outcome.entry is not None, f"{outcome} of a staged Write, not DONE"
        assert await body_of(storage, outcome.entry) == body, "the body that another task staged"


async def _is_empty(storage: Storage, when: str) -> None:
    for state in (State.NEW, State.DELAYED, State.REMOVED):
        listed = await storage.scan(state)
        assert listed == [], f"{when}, {state.name} holds {listed}"


CHECKS: Final[tuple[Check, ...]] = (
    a_staged_body_comes_back_exactly,
    a_staged_body_moves_like_any_other,
    a_staged_body_is_no_message_yet,
    a_written_body_is_not_discarded,
    a_staged_write_overwrites_nothing,
    a_refused_write_leaves_its_staged_body,
    what_chunks_raise_passes_through,
    staging_can_be_cancelled,
    bodies_are_staged_side_by_side,
)
