"""A connection ends by itself. Time is virtual, the socket a stand-in."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from mq.doors.listeners import PromptListener, plain_socket
from mq.doors.readers import Reader
from mq.turns import MESSAGE
from mq.web.fast_http1 import DirectSocket
from mq.web.http_connection import IdleWatch, WatchedStream


class Socket:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def watched() -> tuple[WatchedStream, trio.StapledStream]:
    ours, theirs = memory_stream_pair()
    ours.socket = Socket()  # what a SocketStream has besides
    return WatchedStream(ours), theirs


@pytest.fixture
def watch(nursery: trio.Nursery) -> IdleWatch:
    watch = IdleWatch(10)
    nursery.start_soon(watch.run)
    return watch


async def test_silence_ends_it(autojump_clock: MockClock, watch: IdleWatch) -> None:
    stream, _ = watched()
    await watch.serve(stream, trio.sleep_forever)
    assert trio.current_time() == 10
    assert stream.socket.is_closed


async def test_each_has_its_own_silence(autojump_clock: MockClock, watch: IdleWatch, nursery: trio.Nursery) -> None:
    ended = []

    async def serve(begin: float) -> None:
        await trio.sleep(begin)
        stream, _ = watched()
        await watch.serve(stream, trio.sleep_forever)
        ended.append((begin, trio.current_time()))

    async with trio.open_nursery() as serving:
        for begin in (0, 3, 30):  # the last one comes when nobody is left
            serving.start_soon(serve, begin)
    assert ended == [(0, 10), (3, 13), (30, 40)]


async def test_what_ends_by_itself_is_watched_no_more(autojump_clock: MockClock, watch: IdleWatch) -> None:
    stream, _ = watched()
    await watch.serve(stream, partial(trio.sleep, 1))
    await trio.sleep(20)
    assert not stream.socket.is_closed


async def test_while_we_are_at_work_the_silence_is_ours(autojump_clock: MockClock, watch: IdleWatch) -> None:
    stream, _ = watched()
    work = stream.work()

    async def serve() -> None:
        work.begin()
        await trio.sleep(100)
        work.end()
        await trio.sleep_forever()

    await watch.serve(stream, serve)
    assert trio.current_time() == 110


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_bytes_keep_it_open(autojump_clock: MockClock, watch: IdleWatch, direction: str) -> None:
    stream, theirs = watched()

    async def chatter() -> None:
        for _ in range(5):
            await trio.sleep(9)
            if direction == "out":
                await stream.send_all(b"x")
            else:
                await theirs.send_all(b"x")
                await stream.receive_some()
        await trio.sleep_forever()

    await watch.serve(stream, chatter)
    assert trio.current_time() == 55


@pytest.mark.parametrize("is_reading", [True, False], ids=["reads", "does-not-read"])
async def test_a_client_that_reads_slowly_gets_all_and_one_that_does_not_is_ended(
    is_reading: bool, autojump_clock: MockClock, watch: IdleWatch
) -> None:
    """Of a slow one the kernel tells for longer than the watch waits that there is no room to send."""
    body = bytes(range(256)) * 2048
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)
    theirs = trio.socket.socket()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    received = b""
    async with listener:
        await theirs.connect(listener.socket.getsockname())
        stream = WatchedStream(await PromptListener(listener).accept())

    async def read() -> None:
        nonlocal received
        while is_reading and len(received) < len(body):
            await trio.sleep(2)
            received += await theirs.recv(8 * 1024)

    async def send() -> None:
        with suppress(trio.ClosedResourceError):
            await DirectSocket(stream).send(body)

    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await watch.serve(stream, send)
            if is_reading:
                assert trio.current_time() > 40
            else:
                assert stream.socket.fileno() == -1, "it was closed"
                assert trio.current_time() <= 20
        assert not is_reading or received == body
    await stream.aclose()


async def test_cancelling_it_closes_the_sockets(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    stream, _ = watched()
    watch = IdleWatch(10)

    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            while not stream.socket.is_closed:
                await trio.sleep(0.1)

    with trio.move_on_after(1):
        async with trio.open_nursery() as both:
            both.start_soon(watch.run)
            both.start_soon(watch.serve, stream, shielded)
    assert stream.socket.is_closed
    assert trio.current_time() < 2


async def test_a_socket_that_was_closed_here_has_no_more_to_read_and_refuses_to_send() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = socket.create_connection(listener.socket.getsockname())
        accepted = await PromptListener(listener).accept()
    assert plain_socket(accepted) is not None
    with theirs:
        stream = WatchedStream(accepted)
        direct = DirectSocket(stream)
        await direct.send(b"there")
        assert theirs.recv(100) == b"there"
        theirs.send(b"back")
        assert await direct.receive(100) == b"back"
        stream.socket.close()
        assert await direct.receive(100) == b""
        with pytest.raises(trio.BrokenResourceError):
            await direct.send(b"more")


class CountedSocket:
    """A socket that counts the looks for bytes, and those in vain."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self.looks = self.vain = 0

    def fileno(self) -> int:
        return self._plain.fileno()

    def recv(self, size: int) -> bytes:
        self.looks += 1
        try:
            return self._plain.recv(size)
        except BlockingIOError:
            self.vain += 1
            raise


async def test_looks_for_bytes_grow_rarer_while_they_are_in_vain() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = socket.create_connection(listener.socket.getsockname())
        accepted = await PromptListener(listener).accept()
    plain = plain_socket(accepted)
    assert plain is not None
    with theirs:
        stream = WatchedStream(accepted)
        direct = DirectSocket(stream)
        direct._plain = counted = CountedSocket(plain)  # type: ignore[assignment]
        for _ in range(16):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(direct.receive, 100)
                await trio.testing.wait_all_tasks_blocked()
                theirs.send(b"later")
        assert (counted.looks, counted.vain) == (16 + 5, 5)  # before 1, 2, 4, 8 and 16 waits
        for _ in range(15):
            theirs.send(b"at once")
            await direct.receive(100)
        assert not direct._waits
        assert counted.vain == 5
        await stream.aclose()


class PaidReader(Reader):
    """Counts the units of work that it pays for."""

    paid = 0

    async def pay(self, units: int) -> None:
        self.paid += units
        await super().pay(units)


async def test_bytes_that_are_dropped_are_work_as_well(autojump_clock: MockClock) -> None:
    """What a client goes on to send behind its last request must not delay the other clients."""
    stream, client = watched()
    reader = PaidReader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.linger, reader)
        for _ in range(10):
            await client.send_all(bytes(64 * 1024))
            await trio.testing.wait_all_tasks_blocked()
        await client.send_eof()
    assert reader.paid == 10 * MESSAGE
