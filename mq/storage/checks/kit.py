"""What the checks have in common: messages brought where a check wants them, and what is asserted again and again."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import trio

from mq.lifecycle import State
from mq.message import Body, MessageId, MessageIds
from mq.storage.interface import (
    FRESH,
    QUEUE,
    Entry,
    Meta,
    Move,
    Operation,
    Outcome,
    Result,
    Storage,
    Stored,
    Unlink,
    Write,
)
from mq.storage.records import put_record

Opener = Callable[[], AbstractAsyncContextManager[Storage]]
"""Gives an open store for the length of a block."""

Check = Callable[[Storage], Awaitable[None]]
"""Raises AssertionError when the store, open and fresh, breaks a promise."""

ReopeningCheck = Callable[[Opener, Opener], Awaitable[None]]
"""(make, reopen) -> the same of a store that is closed and opened again."""

LARGE_BYTES: Final = 1 << 20
LARGE_ATTRIBUTES: Final = {"note": "ü" * 5_000}
"""More than an extended attribute, or a small column, would hold."""

PATIENCE: Final = 10_000
"""How often an Unlink may answer MORE before a check takes it for endless."""

_T = TypeVar("_T")
_ids: Final = MessageIds()
_receipts: Final = itertools.count(1)


def new_id() -> MessageId:
    """An id that no check has used."""
    return _ids.new()


def new_receipt() -> str:
    """A receipt that no check has used."""
    return f"{next(_receipts):016x}"


def leased() -> Meta:
    """The meta of a lease with a receipt of its own."""
    return Meta(deadline_ms=1_700_000_000_000, receives=1, receipt=new_receipt())


def large_body(storage: Storage) -> bytes:
    """A mebibyte in which no two blocks are equal, or as much of it as the store takes."""
    size = min(LARGE_BYTES, storage.description.max_body or LARGE_BYTES)
    return b"".join(number.to_bytes(8, "big") for number in range(size // 8))


async def chunked(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """`chunks`, as :meth:`Storage.stage` takes them."""
    for chunk in chunks:
        yield chunk


async def together(jobs: Iterable[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """Run all of them at once; their answers, in the order of the jobs. Assert on the answers, not inside a job."""
    answers: dict[int, _T] = {}

    async def run(number: int, job: Callable[[], Awaitable[_T]]) -> None:
        answers[number] = await job()

    async with trio.open_nursery() as nursery:
        for number, job in enumerate(jobs):
            nursery.start_soon(run, number, job)
    return [answers[number] for number in sorted(answers)]


async def one(storage: Storage, operation: Operation) -> Outcome:
    """The outcome of an operation in a batch of its own."""
    outcomes = await storage.commit([operation])
    assert len(outcomes) == 1, f"{len(outcomes)} outcomes of one operation: {outcomes}"
    return outcomes[0]


async def done(storage: Storage, operation: Write | Move) -> Entry:
    """Do it; where the message is now."""
    outcome = await one(storage, operation)
    assert outcome.result is Result.DONE, f"{outcome} of {operation}, not DONE"
    expected = operation.entry if isinstance(operation, Write) else operation.target
    assert outcome.entry == expected, f"{operation} is DONE with {outcome.entry}, not {expected}"
    return expected


async def refused(storage: Storage, operation: Operation, *results: Result) -> None:
    """Try it; it must end with one of `results`."""
    outcome = await one(storage, operation)
    assert outcome.result in results, f"{outcome} of {operation}, not {' or '.join(r.name for r in results)}"


async def make_queue(storage: Storage, name: str = "orders") -> str:
    """A queue of that name, which must be new; whatever is published from now on belongs to it."""
    settings = {"created": new_id().time}
    assert await put_record(storage, QUEUE, name, settings), f"queue {name}, which is new, was there already"
    return name


async def publish(
    storage: Storage,
    queue: str,
    body: bytes = b"body",
    attributes: Mapping[str, Any] | None = None,
    id: MessageId | None = None,
) -> Entry:
    """A message in NEW."""
    return await done(storage, Write(queue, id or new_id(), body, attributes or {}))


async def publish_twin(storage: Storage, queue: str, id: MessageId, body: bytes = b"body") -> Entry | None:
    """Write an id that the store has in another state or queue; None if the store refuses that, as it may."""
    write = Write(queue, id, body)
    outcome = await one(storage, write)
    assert outcome.result in (Result.DONE, Result.EXISTS), f"{outcome} of {write}, not DONE or EXISTS"
    return write.entry if outcome.result is Result.DONE else None


async def bring(storage: Storage, queue: str, state: State, meta: Meta = FRESH) -> Entry:
    """A message in `state`, with `meta` where the state allows one."""
    entry = await publish(storage, queue)
    return entry if state is State.NEW else await done(storage, Move(entry, state, meta))


async def stored(storage: Storage, entry: Entry) -> Stored:
    """Read a message that must be there; the caller closes its body."""
    found = (await storage.read([entry]))[0]
    assert found is not None, f"read gave None for {entry}, which is there"
    return found


async def body_of(storage: Storage, entry: Entry) -> bytes:
    """The bytes of a message that must be there."""
    return await whole((await stored(storage, entry)).body)


async def whole(body: Body) -> bytes:
    """All of a body at once; it is closed then."""
    try:
        return await body.read()
    finally:
        await body.aclose()


async def streamed(body: Body) -> bytes:
    """All of a body, chunk by chunk; it is closed then."""
    try:
        return b"".join([chunk async for chunk in body])
    finally:
        await body.aclose()


async def is_at(storage: Storage, entry: Entry) -> None:
    """The message is exactly there, by find, by scan and by read."""
    found = await storage.find(entry.queue, entry.id)
    expected = None if entry.state is State.REMOVED else entry
    assert found == expected, f"find gave {found}, not {expected}"
    listed = await storage.scan(entry.state, entry.queue)
    assert listed.count(entry) == 1, f"scan of {entry.state.name} gave {listed}, not {entry} once"
    if expected is not None:
        await body_of(storage, entry)


async def is_not_at(storage: Storage, entry: Entry) -> None:
    """The message is not there, by find, by scan and by read."""
    found = await storage.find(entry.queue, entry.id)
    assert found != entry, f"find still gives {entry}"
    listed = await storage.scan(entry.state, entry.queue)
    assert entry not in listed, f"scan of {entry.state.name} still lists {entry}"
    read = await storage.read([entry])
    assert read == [None], f"read gave {read} for {entry}, which is not there"


def removed(entry: Entry) -> Entry:
    """Where a removal brings a message."""
    return Entry(entry.queue, entry.id, State.REMOVED)


async def discard(storage: Storage, entry: Entry) -> None:
    """Take a message out of the store altogether."""
    removed = entry if entry.state is State.REMOVED else await done(storage, Move(entry, State.REMOVED))
    await reap(storage, removed)


async def reap(storage: Storage, entry: Entry) -> None:
    """Unlink an entry of REMOVED, however many parts that takes."""
    for _ in range(PATIENCE):
        outcome = await one(storage, Unlink(entry))
        if outcome.result is not Result.MORE:
            break
    assert outcome.result is Result.DONE, f"{outcome} of the Unlink of {entry}, not DONE"


async def reap_all(storage: Storage) -> None:
    """Empty REMOVED."""
    for entry in await storage.scan(State.REMOVED):
        await reap(storage, entry)
    left = await storage.scan(State.REMOVED)
    assert left == [], f"still in REMOVED after every Unlink: {left}"
