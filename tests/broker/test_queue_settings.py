"""Settings of a queue: all or nothing, durable, and refused with a reason where they make no sense."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from mq.broker import Broker, QueueSettings, open_broker
from mq.errors import Conflict, InvalidSetting, NoSuchQueue, StorageFull
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import take
from tests.cases import for_each
from tests.storage.disks import MOUNTS, open_disk

SOME: dict[str, Any] = {
    "visibility": 0.5,
    "delay": 12,
    "ttl": 3600.25,
    "max_messages": 10**12,
    "max_bytes": 1,
    "overflow": "drop-head",
    "max_receives": 3,
    "dead_letter_queue": "dead",
    "unique": True,
    "paused": True,
    "publish_paused": True,
    "key_window": 60,
    "retry_delay": 5,
    "retry_factor": 1.5,
    "retry_jitter": 0.5,
    "retry_max": 60,
    "max_priority": 9,
    "groups": True,
}


def test_every_setting_is_among_those_tried() -> None:
    assert set(SOME) == set(QueueSettings().values())


@pytest.mark.parametrize("name", SOME)
async def test_a_setting_is_durable_and_can_be_set_back(disk_address: str, opened: Opener, name: str) -> None:
    patch = {name: SOME[name]}
    if name == "max_receives":
        patch["dead_letter_queue"] = "dead"
    async with opened(disk_address) as broker:
        for queue in ("q", "dead"):
            await broker.create_queue(queue)
        default = (await broker.status("q")).settings
        changed = await broker.change_settings("q", patch)
        assert changed != default
    async with opened(disk_address) as broker:
        assert (await broker.status("q")).settings == changed
        assert getattr(changed, name) == SOME[name]
        await broker.change_settings("q", dict.fromkeys(patch))
    async with opened(disk_address) as broker:
        assert (await broker.status("q")).settings == default


@for_each(
    "patch",
    [
        *({"visibility": value} for value in (0, 0.0009, 43_200.1, "1y", True, float("nan"), [])),
        *({"delay": value} for value in (-1, 315_576_001, "soon")),
        *({"retry_delay": value} for value in (-1, 43_201, "soon")),
        *({"retry_factor": value} for value in (0.5, 101, True)),
        *({"retry_jitter": value} for value in (-0.1, 1.1)),
        *({"retry_max": value} for value in (0, 43_201)),
        *({"ttl": value} for value in (0, 315_576_001, {})),
        *({"max_messages": value} for value in (-1, 1.5, True, 10**12 + 1, "many")),
        *({"max_bytes": value} for value in (-1, 10**18 + 1)),
        *({"overflow": value} for value in ("drop-tail", 1, [])),
        *({"dead_letter_queue": value} for value in ("", "a/b", 7, "q")),
        *({"unique": value} for value in (1, "yes")),
        {"paused": 0},
        *({"key_window": value} for value in (0.5, 2_592_001)),
        {"max_receives": 0, "dead_letter_queue": "dead"},
        {"max_receives": 3},
        {"unknown": 1},
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(broker: Broker, patch: dict[str, Any]) -> None:
    await broker.create_queue("dead")
    before = await broker.change_settings("q", {"visibility": 7})
    with pytest.raises(InvalidSetting):
        await broker.change_settings("q", {"delay": 3, **patch})
    assert (await broker.status("q")).settings == before


async def test_an_unknown_setting_is_told_its_nearest(broker: Broker) -> None:
    with pytest.raises(InvalidSetting, match="did you mean visibility"):
        await broker.change_settings("q", {"visibilty": 1})


async def test_max_receives_and_its_queue_for_the_dead_go_together(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"max_receives": 3, "dead_letter_queue": "dead"})
    with pytest.raises(InvalidSetting, match="max_receives requires"):
        await broker.change_settings("q", {"dead_letter_queue": None})
    await broker.change_settings("q", {"dead_letter_queue": None, "max_receives": None})


async def test_a_dead_letter_queue_has_to_be_there_and_lead_nowhere_back(broker: Broker) -> None:
    with pytest.raises(Conflict, match="does not exist"):
        await broker.change_settings("q", {"dead_letter_queue": "dead"})
    for queue in ("a", "b"):
        await broker.create_queue(queue)
    await broker.change_settings("q", {"dead_letter_queue": "a"})
    await broker.change_settings("a", {"dead_letter_queue": "b"})
    for last in ("q", "a", "b"):
        with pytest.raises(InvalidSetting, match="in a loop"):
            await broker.change_settings("b", {"dead_letter_queue": last})


async def test_a_dead_letter_queue_takes_every_message_so_it_is_not_unique(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"dead_letter_queue": "dead"})
    with pytest.raises(Conflict, match="so it cannot have unique=true"):
        await broker.change_settings("dead", {"unique": True})
    await broker.change_settings("q", {"dead_letter_queue": None})
    await broker.change_settings("dead", {"unique": True})
    with pytest.raises(Conflict, match="queue dead has unique=true"):
        await broker.change_settings("q", {"dead_letter_queue": "dead"})


async def test_settings_of_no_queue(broker: Broker) -> None:
    with pytest.raises(NoSuchQueue):
        await broker.change_settings("nowhere", {"delay": 1})


async def test_a_queue_that_is_made_again_has_no_settings(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"paused": True})
        await broker.delete_queue("q")
        await broker.create_queue("q")
        assert (await broker.status("q")).settings == QueueSettings()
    async with opened(disk_address) as broker:
        assert (await broker.status("q")).settings == QueueSettings()


async def test_settings_that_the_disk_refuses_are_as_before(wall_clock: WallClock) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            before = await broker.change_settings("q", {"delay": 3})
            disk.calls.fail("open", errno.ENOSPC, path="state/records/queue/*")
            with pytest.raises(StorageFull):
                await broker.change_settings("q", {"delay": 4, "paused": True})
            assert (await broker.status("q")).settings == before
        async with open_broker(await disk.open()) as broker:
            assert (await broker.status("q")).settings == before


async def test_a_paused_queue_hands_nothing_out_and_takes_everything(broker: Broker) -> None:
    await broker.publish("q", b"before")
    message = await broker.fetch("q", visibility=3600)
    assert message is not None
    await broker.change_settings("q", {"paused": True})
    await broker.publish("q", b"x")
    assert await broker.fetch("q") is None
    assert await broker.take("q") is None
    assert await broker.fetch("q", wait=60) is None
    [seen] = await broker.peek("q")
    assert await seen.message.body.read() == b"x"
    await broker.remove("q", message.id)
    await broker.change_settings("q", {"paused": False})
    assert await take(broker) == b"x"


async def test_peers_learn_of_each_others_settings(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await one.create_queue("q")
        await one.change_settings("q", {"visibility": 5})
        assert (await other.status("q")).settings.visibility == 5
        await one.publish("q", b"x")
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        assert await take(other) == b"x"
        assert await other.fetch("q", wait=100) is not None
        assert trio.current_time() == pytest.approx(started + 5, abs=0.02)
        with pytest.raises(Conflict, match="unique"):
            await one.change_settings("q", {"unique": True})
