"""Clients that die, and connections that break, after any of their commands."""

from __future__ import annotations

import itertools
import logging

import pytest
from mq_memcached import link
from mq_memcached.batches import LONGEST_PART
from mq_memcached.storage import MemcachedStorage
from mq_memcached.testing.server import Server
from mq_memcached.testing.wire import wire_to

from mq.errors import StorageError
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Entry, Meta, Move, Operation, Outcome, Result, Storage, Unlink, Write
from mq.storage.registry import open_storage

logger = logging.getLogger("test_dying")
IDS = MessageIds()
LEASE = Meta(deadline_ms=1, receives=1, receipt="f" * 16)
STEPS = 5
"""A message's life: written, delivered, leased, removed, unlinked."""


async def do(storage: Storage, operation: Operation) -> Outcome:
    [outcome] = await storage.commit([operation])
    return outcome


async def live(storage: Storage, answered: list[Outcome]) -> Entry:
    """A message's life; what was answered, as it comes."""
    entry = Entry("orders", IDS.new(), State.NEW)
    operations: list[Operation] = [
        Write("orders", entry.id, b"b" * 3 * LONGEST_PART),
        Move(entry, State.READY),
        Move(entry._replace(state=State.READY), State.DELAYED, LEASE),
        Move(Entry("orders", entry.id, State.DELAYED, LEASE), State.REMOVED, LEASE),
        Unlink(Entry("orders", entry.id, State.REMOVED, LEASE)),
    ]
    for operation in operations:
        answered.append(await do(storage, operation))
        if answered[-1].result is not Result.DONE:
            break
    return entry


async def lives(server: Server, allowed: int) -> tuple[list[Outcome], Entry, bool, int]:
    """Until the connection is cut after so many commands, for good: from the server's side that is a dead client."""
    answered: list[Outcome] = []
    with wire_to(server.port, allowed) as wire:
        storage = MemcachedStorage("memcached:test", link.Address("127.0.0.1", wire.port))
        try:
            await storage.open()
            await storage.put_record(QUEUE, "orders", {"created": 0})
            entry = await live(storage, answered)
        except StorageError:
            entry = Entry("orders", IDS.new(), State.NEW)
        finally:
            await storage.aclose()
        return answered, entry, wire.has_struck, len(wire.commands)


@pytest.mark.slow
async def test_a_client_that_dies_after_any_command_leaves_nothing_in_the_way(server: Server, no_grace: None) -> None:
    """Whatever was answered is so, the store works, and what the dead left is cleared away."""
    points = 0
    for allowed in itertools.count():
        answered, entry, was_cut, sent = await lives(server, allowed)
        done = sum(outcome.result is Result.DONE for outcome in answered)
        async with open_storage(server.address) as storage:
            await storage.put_record(QUEUE, "orders", {"created": 0})
            await check_whole(storage)
            await _is_where_it_was_left(storage, entry, done)
            await _works(storage)
            await _remove_all(storage)
            for _ in range(4):
                await storage.records(QUEUE)
                await storage.scan(State.REMOVED)
                await storage._reader.tidy("orders")  # type: ignore[attr-defined]
        left = {key for key in server.listed() if key[0] in "bes" and not key.startswith(("s:chains", "s:r."))}
        assert left == set(), f"after {sent} commands, {left} stayed for ever"
        points += 1
        if not was_cut:
            break
    assert done == STEPS
    assert points > 40, "a life has more commands than that"
    logger.info("died after each of %d commands", points - 1)


async def _is_where_it_was_left(storage: Storage, entry: Entry, done: int) -> None:
    """After its last answered step, or one further."""
    path = [None, (State.NEW, Meta()), (State.READY, Meta()), (State.DELAYED, LEASE), None, None]
    found = await storage.find("orders", entry.id)
    assert (None if found is None else (found.state, found.meta)) in path[done : done + 2], f"{done} steps, {found}"


async def _works(storage: Storage) -> None:
    answered: list[Outcome] = []
    await live(storage, answered)
    assert [outcome.result for outcome in answered] == [Result.DONE] * STEPS


async def _remove_all(storage: Storage) -> None:
    for state in (State.NEW, State.DELAYED):
        for entry in await storage.scan(state):
            await do(storage, Move(entry, State.REMOVED))
    for entry in await storage.scan(State.READY, "orders"):
        await do(storage, Move(entry, State.REMOVED))
    for entry in await storage.scan(State.REMOVED):
        await do(storage, Unlink(entry))


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
async def test_after_a_connection_broke_at_any_command_what_was_not_answered_is_undone(
    server: Server, at_once: bool
) -> None:
    """The same process goes on over a new connection: what it believes, that nothing happened, is so."""
    for allowed in itertools.count():
        answered: list[Outcome] = []
        cuts: list[int] = []

        def cut(cuts: list[int] = cuts) -> None:
            cuts.append(1)
            if at_once:
                wire.heal()

        with wire_to(server.port, strike=cut) as wire:
            storage = MemcachedStorage("memcached:test", link.Address("127.0.0.1", wire.port))
            await storage.open()
            await storage.put_record(QUEUE, "orders", {"created": 0})
            wire.cut_after(allowed)
            entry = await live(storage, answered)
            wire.heal()
            if answered[-1].result is not Result.DONE:
                assert not at_once or len(answered) == STEPS, f"it was not tried again: {answered}"
                answered.pop()
                await _goes_on(storage, entry, len(answered))
            await check_whole(storage)
            assert await storage.find("orders", entry.id) is None
            await storage.aclose()
        if not cuts:
            break
    assert allowed > 20, "a life has more commands than that"


async def _goes_on(storage: Storage, entry: Entry, step: int) -> None:
    """From the step that was not answered DONE, as if it had not been tried."""
    operations: list[Operation] = [
        Write("orders", entry.id, b"b"),
        Move(entry, State.READY),
        Move(entry._replace(state=State.READY), State.DELAYED, LEASE),
        Move(Entry("orders", entry.id, State.DELAYED, LEASE), State.REMOVED, LEASE),
        Unlink(Entry("orders", entry.id, State.REMOVED, LEASE)),
    ]
    for number, operation in enumerate(operations[step:], step):
        outcome = await do(storage, operation)
        done = {Result.DONE, Result.GONE} if isinstance(operation, Unlink) else {Result.DONE}
        assert outcome.result in done, f"step {number}, which was not answered, ended with {outcome}"


@pytest.mark.slow
async def test_what_is_done_stays_done_though_the_connection_breaks_before_all_is(server: Server) -> None:
    """A batch of many kinds, cut at each of its commands: each has its own outcome, and the second try changes none."""
    for allowed in itertools.count():
        cuts: list[int] = []

        def cut(cuts: list[int] = cuts) -> None:
            cuts.append(1)
            wire.heal()

        with wire_to(server.port, strike=cut) as wire:
            async with open_storage(f"memcached://127.0.0.1:{wire.port}/{allowed}") as storage:
                await storage.put_record(QUEUE, "orders", {"created": 0})
                new = [Entry("orders", IDS.new(), State.NEW) for _ in range(3)]
                await storage.commit([Write("orders", entry.id, b"body") for entry in new[:2]])
                await do(storage, Move(new[0], State.REMOVED))
                wire.cut_after(allowed)
                outcomes = await storage.commit(
                    [
                        Unlink(new[0]._replace(state=State.REMOVED)),
                        Move(new[1], State.DELAYED, LEASE),
                        Write("orders", new[2].id, b"body"),
                    ]
                )
                wire.heal()
                results = [outcome.result for outcome in outcomes]
                assert results[0] in (Result.DONE, Result.GONE)
                assert results[1:] == [Result.DONE] * 2, f"cut after {allowed} commands"
                assert await storage.scan(State.DELAYED) == [outcomes[1].entry]
                assert await storage.scan(State.NEW) == [new[2]]
                await check_whole(storage)
        if not cuts:
            break
    assert allowed > 8, "such a batch has more commands than that"
