"""A thread of a store's own: what is asked of it is done there, in order, to its end."""

from __future__ import annotations

import threading
import time

import pytest
import trio
import trio.testing

from mq.storage.files.hop import OwnThread


async def test_what_is_asked_is_done_in_one_thread_that_is_another() -> None:
    own = OwnThread("own")
    seen = [await own.hop(threading.get_ident) for _ in range(3)]
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen
    own.end()


async def test_what_is_raised_there_is_raised_here() -> None:
    own = OwnThread("own")
    with pytest.raises(ZeroDivisionError):
        await own.hop(divmod, 1, 0)
    assert await own.hop(divmod, 7, 2) == (3, 1)
    own.end()


async def test_tasks_are_served_in_their_order() -> None:
    own, said = OwnThread("own"), list[int]()
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(own.hop, gate.wait)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            nursery.start_soon(own.hop, said.append, number)
            await trio.testing.wait_all_tasks_blocked()
        assert not own.is_free
        assert said == []
        gate.set()
    assert said == [0, 1, 2, 3, 4]
    assert own.is_free
    own.end()


async def test_who_is_cancelled_waits_for_the_end_and_gets_the_answer() -> None:
    own, gate, answers = OwnThread("own"), threading.Event(), list[bool]()

    async def ask() -> None:
        answers.append(await own.hop(gate.wait, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        gate.set()
    assert answers == [True]
    own.end()


async def test_who_was_cancelled_before_asks_for_nothing() -> None:
    own, said = OwnThread("own"), list[int]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await own.hop(said.append, 1)
    assert said == []
    own.end()


async def test_it_ends_and_another_begins_when_it_is_needed_again() -> None:
    own = OwnThread("own")
    own.end()
    first = await own.hop(threading.current_thread)
    own.end()
    assert not first.is_alive()
    assert await own.hop(divmod, 7, 2) == (3, 1)
    own.end()


async def test_how_late_the_event_loop_comes_to_what_was_done() -> None:
    own, gate = OwnThread("own"), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(own.hop, gate.wait)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        time.sleep(0.3)  # noqa: ASYNC251 - somebody keeps the loop to himself, and the thread ends meanwhile
    assert own.heard_late > 0.1
    since = trio.current_time()
    await own.hop(time.sleep, 0.1)
    assert own.heard_late <= trio.current_time() - since - 0.1
    own.end()
