"""Who hangs up is told of, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mq.web.http_connection import HangUps

Pair = tuple[trio.SocketStream, trio.SocketStream]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
    yield ours, theirs
    await ours.aclose()
    await theirs.aclose()


@pytest.fixture
def hang_ups(nursery: trio.Nursery) -> HangUps:
    hang_ups = HangUps()
    nursery.start_soon(hang_ups.run)
    return hang_ups


@pytest.mark.parametrize("how", ["close", "half-close"])
async def test_it_is_told_once(hang_ups: HangUps, pair: Pair, how: str) -> None:
    ours, theirs = pair
    told = trio.Event()
    with trio.fail_after(5):
        async with hang_ups.watch(ours.socket, told.set):
            await (theirs.aclose() if how == "close" else theirs.send_eof())
            await told.wait()
            assert not hang_ups._tell
    assert not hang_ups._tell


async def test_who_has_hung_up_before_is_told_of(hang_ups: HangUps, pair: Pair) -> None:
    ours, theirs = pair
    await theirs.send_all(b"more")
    await theirs.send_eof()
    told = trio.Event()
    with trio.fail_after(5):
        async with hang_ups.watch(ours.socket, told.set):
            await told.wait()
    assert await ours.receive_some() == b"more"  # nothing of it was taken


async def test_who_speaks_has_not_hung_up(hang_ups: HangUps, pair: Pair) -> None:
    ours, theirs = pair
    told = trio.Event()
    async with hang_ups.watch(ours.socket, told.set):
        await theirs.send_all(b"more")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not told.is_set()
    await theirs.send_eof()
    await trio.testing.wait_all_tasks_blocked(0.05)  # and nobody is told who does not listen any more
    assert not told.is_set()


async def test_a_number_that_another_socket_has_got_meanwhile(hang_ups: HangUps, pair: Pair) -> None:
    ours, _ = pair
    first, second = trio.Event(), trio.Event()
    async with hang_ups.watch(ours.socket, first.set):
        number = ours.socket.fileno()
        ours.socket.close()
        again, other = trio.socket.socketpair()
        assert number in (again.fileno(), other.fileno())
        if number == other.fileno():
            again, other = other, again
        watching = hang_ups.watch(again, second.set)
        await watching.__aenter__()
    other.close()
    with trio.fail_after(5):
        await second.wait()
    await watching.__aexit__(None, None, None)
    again.close()
    assert not first.is_set()


async def test_a_socket_that_is_closed_here_is_gone(hang_ups: HangUps, pair: Pair) -> None:
    ours, _ = pair
    ours.socket.close()
    told = trio.Event()
    async with hang_ups.watch(ours.socket, told.set):
        assert told.is_set()


async def test_after_its_end_nobody_is_there_any_more(pair: Pair) -> None:
    hang_ups, told = HangUps(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_ups.run)
        await trio.testing.wait_all_tasks_blocked()
        async with hang_ups.watch(pair[0].socket, told.set):
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
    assert not told.is_set()
    async with hang_ups.watch(pair[0].socket, told.set):
        assert told.is_set()


async def test_who_hangs_up_between_two_waits_is_told_of_in_the_second(hang_ups: HangUps, pair: Pair) -> None:
    ours, theirs = pair
    first, second = trio.Event(), trio.Event()
    async with hang_ups.watch(ours.socket, first.set):
        pass
    await theirs.send_eof()
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert not first.is_set()
    with trio.fail_after(5):
        async with hang_ups.watch(ours.socket, second.set):
            await second.wait()


async def test_a_connection_can_wait_again_and_again(hang_ups: HangUps, pair: Pair) -> None:
    ours, theirs = pair
    for _ in range(3):
        told = trio.Event()
        async with hang_ups.watch(ours.socket, told.set):
            await trio.lowlevel.checkpoint()
        assert not told.is_set()
    await theirs.send_eof()
    with trio.fail_after(5):
        async with hang_ups.watch(ours.socket, told.set):
            await told.wait()
