"""A connection ends by itself. Time is virtual, the socket a stand-in."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from mq.web.watched import WatchedStream


class Socket:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def watched() -> tuple[WatchedStream, trio.StapledStream]:
    ours, theirs = memory_stream_pair()
    ours.socket = Socket()  # what a SocketStream has besides
    return WatchedStream(ours), theirs


async def test_silence_ends_it(autojump_clock: MockClock) -> None:
    stream, _ = watched()
    await stream.close_when_silent(10)
    assert trio.current_time() == 10
    assert stream.socket.is_closed


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_bytes_keep_it_open(autojump_clock: MockClock, nursery: trio.Nursery, direction: str) -> None:
    stream, theirs = watched()

    async def chatter() -> None:
        for _ in range(5):
            await trio.sleep(9)
            if direction == "out":
                await stream.send_all(b"x")
            else:
                await theirs.send_all(b"x")
                await stream.receive_some()

    nursery.start_soon(chatter)
    await stream.close_when_silent(10)
    assert trio.current_time() == 55


async def test_cancelling_it_closes_the_socket(autojump_clock: MockClock) -> None:
    stream, _ = watched()
    with trio.move_on_after(1):
        await stream.close_when_silent(10)
    assert stream.socket.is_closed
