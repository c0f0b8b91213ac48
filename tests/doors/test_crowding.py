"""How many connections one address may have, and all of them."""

from __future__ import annotations

import logging
import resource
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import trio
from hypercorn.typing import Scope
from trio.testing import MockClock

from mq.amqp.server import listener as amqp_server
from mq.broker import open_broker
from mq.doors.connections import MOST_LINES, QUIET_SECONDS, Crowd, FewLines, Peer
from mq.web import serve as web_server
from mq.web.proxies import NO_BASE_PATH


def enter(stack: ExitStack, crowd: Crowd, address: str, count: int = 1) -> list[bool]:
    return [stack.enter_context(crowd.room(address, handle=3)) for _ in range(count)]


async def test_an_address_has_so_many_and_no_more() -> None:
    crowd = Crowd(3)
    with ExitStack() as stack, ExitStack() as leaving:
        assert enter(leaving, crowd, "192.0.2.1") == [True]
        assert enter(stack, crowd, "192.0.2.1", 4) == [True, True, False, False]
        assert enter(stack, crowd, "192.0.2.2") == [True]
        leaving.close()
        assert enter(stack, crowd, "192.0.2.1", 2) == [True, False]
    assert not crowd._counts


async def test_a_network_of_ipv6_is_one_address() -> None:
    crowd = Crowd(1)
    with ExitStack() as stack:
        assert enter(stack, crowd, "2001:db8::1") == [True]
        assert enter(stack, crowd, "2001:db8::2") == [False]
        assert enter(stack, crowd, "2001:db8:0:1::1") == [True]


@pytest.mark.parametrize(("most", "address"), [(1, "127.0.0.1"), (1, "::1"), (1, "::ffff:127.0.0.1"), (0, "192.0.2.1")])
async def test_this_machine_is_not_counted_and_0_counts_nobody(most: int, address: str) -> None:
    crowd = Crowd(most)
    with ExitStack() as stack:
        assert enter(stack, crowd, address, 5) == [True] * 5


async def test_the_log_says_so_once_a_minute(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(1)
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        enter(stack, crowd, "192.0.2.1", 100)
        await trio.sleep(QUIET_SECONDS)
        enter(stack, crowd, "192.0.2.1")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "192.0.2.1" in said[0]
    assert said[0].endswith("the maximum number of connections: 1 (--connections-per-address)")
    assert said[1].endswith(" (98 more since the last such line)")


async def test_lines_that_clients_cause_are_few_and_the_others_are_counted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    lines = FewLines(logging.getLogger("mq.test"), logging.INFO, "%s was closed: %s")
    with caplog.at_level(logging.INFO):
        for number in range(MOST_LINES + 40):
            lines.write(number, "why")
        await trio.sleep(QUIET_SECONDS)
        lines.write("one", "more")
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "0 was closed: why"
    assert said[MOST_LINES:] == [
        "suppressed 40 more log messages of this kind: %s was closed: %s",
        "one was closed: more",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("most_handles", "reserved"), [(1024, 128), (65_536, 128), (100, 25)])
async def test_open_files_are_kept_for_the_store(
    most_handles: int, reserved: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also from connections of this machine, and where no address has a limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (most_handles, 1 << 20))
    crowd = Crowd(0)
    room = [handle for handle in range(most_handles) if ExitStack().enter_context(crowd.room("127.0.0.1", handle))]
    assert room == list(range(most_handles - reserved))
    [said] = [record.getMessage() for record in caplog.records]
    assert f"mq can open at most {most_handles} files" in said
    assert f"{reserved} of them are reserved for the store" in said


async def test_open_files_without_a_limit_have_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinity is -1, which is less than any handle."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with Crowd(0).room("127.0.0.1", 1_000_000) as has_room:
        assert has_room


@pytest.mark.parametrize("protocol", ["http", "amqp"])
async def test_each_protocol_closes_connections_over_the_limit(
    protocol: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real sockets, which seem to come from elsewhere."""
    module: Any = {"http": web_server, "amqp": amqp_server}[protocol]
    monkeypatch.setattr(module, "peer_of", lambda socket: Peer("192.0.2.1", 1))
    crowd = Crowd(2)
    async with open_broker("memory:") as broker:
        serve: Any
        if protocol == "http":

            async def app(scope: Scope, receive: Any, send: Any) -> None: ...

            app.handler, app.needs_login = None, False  # type: ignore[attr-defined]
            app.base_path = NO_BASE_PATH  # type: ignore[attr-defined]
            app.heads = {}  # type: ignore[attr-defined]
            serve = partial(web_server.serve, app, crowd=crowd)  # type: ignore[arg-type]
        else:
            serve = partial(amqp_server.serve, amqp_server.AmqpState(broker), crowd=crowd, version="0")
        urls = await nursery.start(partial(serve, "127.0.0.1", 0, stop=trio.sleep_forever))
        port = int(urls[0].rpartition(":")[2])
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        with trio.fail_after(10):
            assert await streams[2].receive_some() == b""
        with trio.move_on_after(0.05) as silence:
            await streams[0].receive_some()
        assert silence.cancelled_caught
        for stream in streams:
            await stream.aclose()
        nursery.cancel_scope.cancel()
