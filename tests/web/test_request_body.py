"""A body is taken as it is asked for, and a client may not keep us waiting for ever. Time is virtual."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from mq.errors import BodyIncomplete
from mq.web.exchange import SLOWEST_BYTES_PER_SECOND, STALLED_SECONDS, BodyTooSlow
from mq.web.request_body import ArrivingBody

GONE = {"type": "http.disconnect"}


def piece(body: bytes, more: bool = True) -> dict[str, object]:
    return {"type": "http.request", "body": body, "more_body": more}


class Client:
    """Gives events, each after a pause in seconds; then nothing more."""

    def __init__(self, *events: tuple[float, dict[str, object]]) -> None:
        self._events = list(events)
        self.given = 0

    async def receive(self) -> dict[str, object]:
        if self.given == len(self._events):
            await trio.sleep_forever()
        pause, event = self._events[self.given]
        await trio.sleep(pause)
        self.given += 1
        return event


async def collect(arriving: ArrivingBody) -> Sequence[bytes]:
    return [chunk async for chunk in arriving]


async def test_chunks_come_in_order_and_empty_ones_are_left_out(autojump_clock: MockClock) -> None:
    client = Client((0, piece(b"a")), (0, piece(b"")), (0, piece(b"b")), (0, piece(b"", more=False)))
    assert await collect(ArrivingBody(client.receive)) == [b"a", b"b"]


async def test_the_last_chunk_may_hold_bytes(autojump_clock: MockClock) -> None:
    arriving = ArrivingBody(Client((0, piece(b"all", more=False))).receive)
    assert await collect(arriving) == [b"all"]
    assert await collect(arriving) == []


async def test_nothing_is_taken_before_it_is_asked_for(autojump_clock: MockClock) -> None:
    client = Client(*((0, piece(b"x")) for _ in range(10)))
    arriving = ArrivingBody(client.receive)
    await trio.sleep(1)
    assert client.given == 0
    await anext(arriving)
    await trio.sleep(1)
    assert client.given == 1


async def test_a_client_that_ends_early(autojump_clock: MockClock) -> None:
    arriving = ArrivingBody(Client((0, piece(b"half")), (0, GONE)).receive)
    assert await anext(arriving) == b"half"
    for _ in range(2):
        with pytest.raises(BodyIncomplete):
            await anext(arriving)


async def test_a_client_that_stalls(autojump_clock: MockClock) -> None:
    arriving = ArrivingBody(Client((0, piece(b"half"))).receive)
    await anext(arriving)
    started = trio.current_time()
    with pytest.raises(BodyTooSlow):
        await anext(arriving)
    assert trio.current_time() - started == pytest.approx(STALLED_SECONDS)


async def test_a_client_that_drips(autojump_clock: MockClock) -> None:
    arriving = ArrivingBody(Client(*((1, piece(b"x")) for _ in range(1000))).receive)
    started = trio.current_time()
    with pytest.raises(BodyTooSlow):
        await collect(arriving)
    assert trio.current_time() - started == pytest.approx(STALLED_SECONDS, rel=0.1)


async def test_a_slow_client_that_goes_on_is_served(autojump_clock: MockClock) -> None:
    chunk = bytes(SLOWEST_BYTES_PER_SECOND)
    events = [(1, piece(chunk)) for _ in range(10 * STALLED_SECONDS)]
    assert len(await collect(ArrivingBody(Client(*events, (0, piece(b"", more=False))).receive))) == len(events)


async def test_our_own_slowness_does_not_count(autojump_clock: MockClock) -> None:
    arriving = ArrivingBody(Client((0, piece(b"a")), (0, piece(b"b")), (0, piece(b"", more=False))).receive)
    async for _ in arriving:
        await trio.sleep(10 * STALLED_SECONDS)


async def test_discarding_tells_when_the_body_is_complete_and_goes_on(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    client = Client((1, piece(b"a")), (1, piece(b"b", more=False)), (1, GONE))
    arriving, complete = ArrivingBody(client.receive), trio.Event()
    nursery.start_soon(arriving.discard, complete)
    await complete.wait()
    assert (trio.current_time(), arriving.is_gone) == (2, False)
    await trio.sleep(2)
    assert arriving.is_gone


async def test_discarding_ends_with_the_client(autojump_clock: MockClock) -> None:
    complete = trio.Event()
    await ArrivingBody(Client((1, piece(b"a")), (1, GONE)).receive).discard(complete)
    assert complete.is_set()
