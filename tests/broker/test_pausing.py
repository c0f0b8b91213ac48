"""Publishing and delivery of a queue, paused by an operator: who waits, who is refused, and what comes all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mq.broker import BrokerConfig, Draft, open_broker
from mq.errors import PublishPaused


async def test_a_paused_queue_takes_nothing_and_says_what_ends_that(autojump_clock: MockClock) -> None:
    async with open_broker("memory:", BrokerConfig()) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"before", key="k")
        await broker.change_settings("q", {"publish_paused": True})
        with pytest.raises(PublishPaused, match="mq resume q"):
            await broker.publish("q", b"x")
        assert await broker.publish("q", b"before", key="k") == id  # it is there: nothing is published
        message = await broker.fetch("q")
        assert message is not None
        await broker.remove("q", message.id)
        await broker.change_settings("q", {"publish_paused": False})
        await broker.publish("q", b"x")


def clock_ns() -> int:
    return int((1_700_000_000 + trio.current_time()) * 1e9)


async def test_what_dies_or_is_moved_comes_all_the_same(autojump_clock: MockClock) -> None:
    async with open_broker("memory:", BrokerConfig(), clock_ns=clock_ns) as broker:
        for name in ("q", "dead", "other"):
            await broker.create_queue(name)
        await broker.change_settings("q", {"dead_letter_queue": "dead", "max_receives": 1})
        await broker.publish("q", b"x", ttl=5)
        for name in ("dead", "other"):
            await broker.change_settings(name, {"publish_paused": True})
        await trio.sleep(10)
        assert (await broker.status("dead")).ready == 1
        assert (await broker.redrive("dead", "other")).moved == 1
        [outcome] = await broker.publish_many("other", [Draft(b"x", is_dead_letter=True)])
        assert not isinstance(outcome, Exception)


async def test_who_fetches_waits_as_if_it_were_empty(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    async with open_broker("memory:", BrokerConfig()) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"paused": True})
        await broker.publish("q", b"x")
        assert await broker.fetch("q", wait=5) is None
        assert await broker.take("q") is None
        assert await broker.hold("q", 1) == []
        got = []

        async def fetch() -> None:
            got.append((await broker.fetch("q", wait=60), trio.current_time()))

        nursery.start_soon(fetch)
        await trio.sleep(20)
        assert got == []
        resumed = trio.current_time()
        await broker.change_settings("q", {"paused": False})
        await trio.sleep(1)
        [(message, at)] = got
        assert message is not None
        assert at == resumed


async def test_a_restart_keeps_both(tmp_path: Path) -> None:
    store = f"posix:{tmp_path}"
    async with open_broker(store, BrokerConfig()) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"paused": True, "publish_paused": True})
    async with open_broker(store, BrokerConfig()) as broker:
        settings = (await broker.status("q")).settings
        assert (settings.paused, settings.publish_paused) == (True, True)
        with pytest.raises(PublishPaused):
            await broker.publish("q", b"x")
