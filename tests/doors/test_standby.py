"""Handing connections over: each is served once, by the owner, and none is lost while there is none."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.doors import standby
from mq.doors.listeners import CannotListen, listen
from mq.doors.standby import Doorway, Owner, Standby, StrangeOwner

SECONDS = 5


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short one, whatever the folder of the tests is called."""
    monkeypatch.chdir(tmp_path)
    return "turn"


def never() -> bool:
    return False


async def door() -> Doorway:
    return Doorway("http", await listen("127.0.0.1", 0))


async def connect(doorway: Doorway) -> trio.SocketStream:
    return await trio.open_tcp_stream(*doorway.listeners[0].socket.getsockname())


@asynccontextmanager
async def owning(path: str, doorway: Doorway, name: bytes) -> AsyncIterator[trio.CancelScope]:
    """An owner whose door answers each connection with a name."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(name)

    async with trio.open_nursery() as nursery:
        await nursery.start(Owner(path, [doorway], b"guards").run)
        nursery.start_soon(trio.serve_listeners, answer, doorway.serving())
        yield nursery.cancel_scope
        nursery.cancel_scope.cancel()


async def answer_to(stream: trio.SocketStream) -> bytes:
    with trio.fail_after(SECONDS):
        async with stream:
            return await stream.receive_some()


async def test_connections_are_served_by_the_owner_and_then_by_the_next_one(path: str) -> None:
    waiting = await door()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
        early = await connect(waiting)  # it waits until there is an owner
        for name in (b"first", b"second"):
            async with owning(path, Doorway("http", []), name):
                assert [await answer_to(each) for each in (early, await connect(waiting))] == [name, name]
            early = await connect(waiting)
        async with owning(path, Doorway("http", []), b"third"):
            assert await answer_to(early) == b"third"
        nursery.cancel_scope.cancel()
    waiting.close()


async def test_its_turn_comes_once_the_owner_is_gone(path: str) -> None:
    waiting, has_ended = await door(), False
    async with trio.open_nursery() as nursery:
        async with owning(path, Doorway("http", []), b"owner"):
            nursery.start_soon(Standby(path, [waiting], b"guards").wait, lambda: has_ended)
            assert await answer_to(await connect(waiting)) == b"owner"
        has_ended = True
    async with owning(path, waiting, b"next"):
        assert await answer_to(await connect(waiting)) == b"next"


async def test_what_is_kept_is_handed_to_the_next_owner_in_order(path: str) -> None:
    waiting = await door()
    streams = [await connect(waiting) for _ in range(3)]
    for listener in waiting.listeners:
        for _ in streams:
            waiting.keep(await listener.accept())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
        async with owning(path, Doorway("http", []), b"owner"):
            assert [await answer_to(each) for each in streams] == [b"owner"] * 3
        nursery.cancel_scope.cancel()
    waiting.close()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_connection_that_could_not_be_handed_over_is_kept(*, is_cancelled: bool) -> None:
    waiting = await door()
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stream = await connect(waiting)
    accepted = await waiting.listeners[0].accept()
    with ours, theirs, trio.CancelScope() as scope:
        if is_cancelled:
            scope.cancel()
        else:
            theirs.close()  # the owner has just ended
        await Standby("nowhere", [waiting], b"")._hand(waiting, ours, accepted)
    assert scope.cancelled_caught is is_cancelled
    kept = waiting.first_kept()
    assert kept is not None
    assert waiting.first_kept() is None
    async with kept:
        await kept.send_all(b"still there")
    assert await answer_to(stream) == b"still there"
    waiting.close()


async def test_a_door_that_the_owner_does_not_have_closes_them(path: str) -> None:
    waiting = Doorway("amqp", await listen("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
        async with owning(path, Doorway("http", []), b"owner"):
            assert await answer_to(await connect(waiting)) == b""
        nursery.cancel_scope.cancel()
    waiting.close()


async def test_an_owner_that_hangs_is_named_and_gets_nothing_more(
    quick_clock: MockClock, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = await door()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging:
        hanging.bind(path)
        hanging.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
            await trio.sleep(2 * standby.SILENT_SECONDS)
            assert f"kill -9 {os.getpid()}" in caplog.text
            nursery.cancel_scope.cancel()
    os.unlink(path)
    assert caplog.text.count("kill -9") == 1, "said once"
    async with owning(path, waiting, b"here"):
        assert await answer_to(await connect(waiting)) == b"here"


async def test_standby_answers_its_own_probe_while_the_owner_hangs_and_keeps_all_else(
    quick_clock: MockClock, path: str
) -> None:
    waiting = await door()
    waiting.probe = lambda first: b"alive" if first == b"probe" else None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging:
        hanging.bind(path)
        hanging.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
            work, probe = await connect(waiting), await connect(waiting)
            await work.send_all(b"work")
            await probe.send_all(b"probe")
            assert await answer_to(probe) == b"alive"
            nursery.cancel_scope.cancel()
    os.unlink(path)
    async with owning(path, waiting, b"here"):
        assert await answer_to(work) == b"here"


async def test_standby_hands_over_a_connection_that_says_nothing(quick_clock: MockClock, path: str) -> None:
    waiting = await door()
    waiting.probe = lambda _: None
    async with trio.open_nursery() as nursery, owning(path, Doorway("http", []), b"owner"):
        nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
        assert await answer_to(await connect(waiting)) == b"owner"
        nursery.cancel_scope.cancel()
    waiting.close()


async def test_standby_that_keeps_many_connections_leaves_others_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "MOST_ACCEPTED", 2)
    waiting = await door()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Standby("nowhere", [waiting], b"guards").wait, never)
        early = [await connect(waiting) for _ in range(3)]
        with trio.fail_after(SECONDS):
            while not waiting.is_crowded:
                await trio.sleep(0.01)
        late = [await connect(waiting) for _ in range(10)]
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked()
        kept = waiting.kept()
        assert len(kept) <= len(early)
        nursery.cancel_scope.cancel()
        for stream in (*early, *late, *kept):
            stream.socket.close()
    waiting.close()


async def test_an_owner_with_other_guards_is_refused(path: str) -> None:
    waiting = await door()
    async with owning(path, Doorway("http", []), b"owner"):
        with pytest.RaisesGroup(pytest.RaisesExc(StrangeOwner, match="the same --users")):
            await Standby(path, [waiting], b"others").wait(never)
    waiting.close()


async def test_only_this_user_reaches_the_socket(path: str) -> None:
    before = os.umask(0)
    try:
        async with owning(path, Doorway("http", []), b""):
            assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    finally:
        os.umask(before)
    with pytest.raises(FileNotFoundError):
        os.lstat(path)


async def test_of_another_user_nothing_is_taken(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "uid_of", lambda address: os.geteuid() + 1)
    async with owning(path, Doorway("http", []), b""):
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, trio.fail_after(SECONDS):
            await link.connect(path)
            assert await link.recv(16) == b"", "it is closed"


async def test_to_another_user_nothing_is_handed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "uid_of", lambda address: os.geteuid() + 1)
    waiting = await door()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.bind(path)
        stranger.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
            link, _ = await trio.to_thread.run_sync(stranger.accept)
            with link:
                link.settimeout(SECONDS)
                assert await trio.to_thread.run_sync(link.recv, 16) == b"", "it is closed without a word"
            nursery.cancel_scope.cancel()
    waiting.close()


async def test_a_link_that_refuses_a_connection_is_begun_anew_and_gets_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.ETOOMANYREFS, "too many")]
    with trio.socket.socket() as any_socket:
        kind = type(any_socket)
    sendmsg = kind.sendmsg

    async def refuse_once(self: trio.socket.SocketType, *given: Any) -> int:
        if refusals:
            raise refusals.pop()
        return await sendmsg(self, *given)

    monkeypatch.setattr(kind, "sendmsg", refuse_once)
    waiting = await door()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Standby(path, [waiting], b"guards").wait, never)
        async with owning(path, Doorway("http", []), b"owner"):
            assert await answer_to(await connect(waiting)) == b"owner"
        nursery.cancel_scope.cancel()
    assert not refusals
    waiting.close()


async def test_the_socket_of_a_dead_owner_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(path)
    async with owning(path, Doorway("http", []), b""):
        pass


async def test_anything_else_stays_where_it_is(path: str) -> None:
    os.mkdir(path)
    with pytest.raises(CannotListen, match="is not a socket"):
        await Owner(path, [], b"").run()
    os.rmdir(path)
