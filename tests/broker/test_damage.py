"""A broker over a store that has found damage: queues rest until an operator decides."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.broker.background_check import KEY, KIND, PassProgress
from mq.errors import PublishPaused
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.hop import inline_hop
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import QUEUE, Damage, Health
from mq.storage.options import StorageOptions

LOGGED = Mount("ext4", persistent=True, atomic_rename=True, ordered=True, syncfs=True, logged=True)
DAY = 86_400.0
WEEK = 7 * 86_400


@asynccontextmanager
async def serving(root: Path, config: BrokerConfig = BrokerConfig()) -> AsyncIterator[Broker]:  # noqa: B008 - frozen
    """A broker on a root with a log, stopped cleanly at the end."""
    options = StorageOptions(log=True)
    storage = FolderStorage(
        "test:", str(root), LinuxCalls(), options, mount=lambda _: LOGGED, hop=inline_hop, syncfs=True
    )
    await storage.open()
    try:
        async with open_broker(storage, config) as broker:
            yield broker
    finally:
        await storage.aclose()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def record_of(root: Path, kind: str, start: str) -> Path:
    [found] = (root / "state" / "records" / kind).glob(f"{start}.*")
    return found


def health_of(broker: Broker) -> Health:
    health = broker.health
    assert health is not None
    return health


@pytest.mark.parametrize("how", [flip, lambda path: path.unlink(), lambda path: os.truncate(path, 9)])
async def test_queue_is_paused_when_its_record_is_damaged(tmp_path: Path, how: Callable[[Path], object]) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_queue("q")
        await broker.create_queue("other")
        await broker.change_settings("q", {"groups": True})
        await broker.publish("q", b"first")
    path = record_of(tmp_path, QUEUE, "kq")
    how(path)
    for _ in range(2):  # the pause outlives a restart
        async with serving(tmp_path) as broker:
            assert await broker.fetch("q") is None
            with pytest.raises(PublishPaused):
                await broker.publish("q", b"second")
            assert (await broker.status("other")).settings.paused is False
    async with serving(tmp_path) as broker:
        await broker.change_settings("q", {"paused": False, "publish_paused": False, "groups": True})
    async with serving(tmp_path) as broker:
        message = await broker.fetch("q")
        assert message is not None
        assert await message.body.read() == b"first"


async def test_damaged_record_is_named_counted_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_queue("q")
    path = record_of(tmp_path, QUEUE, "kq")
    flip(path)
    content = path.read_bytes()
    async with serving(tmp_path) as broker:
        assert [damage[:3] for damage in health_of(broker).damages] == [(QUEUE, "q", str(path))]
    assert str(path) in caplog.text
    assert "mq resume q" in caplog.text
    assert path.read_bytes() == content


async def test_idempotency_keys_stay_in_effect_when_their_queue_s_record_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"once", key="k")
    record_of(tmp_path, QUEUE, "kq").unlink()
    async with serving(tmp_path) as broker:
        await broker.change_settings("q", {"paused": False, "publish_paused": False})
        assert await broker.publish("q", b"once", key="k") == id


async def test_queue_rests_while_the_record_of_its_keys_is_damaged(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        for queue in ("q", "other"):
            await broker.create_queue(queue)
        await broker.publish("q", b"once", key="k")
    [segment] = (tmp_path / "state" / "records" / "key").iterdir()
    segment.write_bytes(segment.read_bytes() + b"x")
    async with serving(tmp_path) as broker:
        assert (await broker.status("q")).settings.publish_paused
        assert not (await broker.status("other")).settings.publish_paused
    async with serving(tmp_path) as broker:
        assert (await broker.status("q")).settings.publish_paused, "the damage is still there"
    segment.unlink()
    async with serving(tmp_path) as broker:
        assert not (await broker.status("q")).settings.publish_paused


async def test_root_that_lost_state_says_what_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_queue("letters")
        await broker.publish("letters", b"hello")
    shutil.rmtree(tmp_path / "state")
    async with serving(tmp_path) as broker:
        assert len(health_of(broker).damages) == 1
        assert (await broker.status("letters")).ready == 1
    for word in ("settings", "idempotency keys", "schedules", "letters"):
        assert word in caplog.text


@pytest.mark.parametrize("live", [False, True], ids=["after a clean stop", "after a kill"])
async def test_message_that_was_leased_once_and_rotted_is_kept(tmp_path: Path, live: bool) -> None:
    root = tmp_path / "root"
    async with serving(root) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"hello")
        assert await broker.fetch("q") is not None
        shutil.copytree(root, tmp_path / "live")
    root = tmp_path / "live" if live else root
    [leased] = (root / "delay").iterdir()
    flip(leased)
    async with serving(root) as broker:
        assert list((root / "delay").iterdir()) == [leased]
        assert (await broker.status("q")).leased == 1


async def test_folder_of_a_queue_that_is_gone_is_made_again_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"ttl": 60})
    shutil.rmtree(tmp_path / "queues" / "q")
    async with serving(tmp_path) as broker:
        assert (await broker.status("q")).settings.ttl == 60
        assert health_of(broker).damages[0].path == str(tmp_path / "queues" / "q")
    assert str(tmp_path / "queues" / "q") in caplog.text


# The background check


@pytest.mark.slow
async def test_background_check_finds_a_rotten_message_and_shows_its_progress(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, BrokerConfig(verify_seconds=DAY)) as broker:
        await broker.create_queue("q")
        ids = [await broker.publish("q", b"hello %d" % number) for number in range(40)]
        await broker.publish("q", b"later", delay=86_400 * 30)
        flip(tmp_path / "queues" / "q" / ids[30])
        health = health_of(broker)
        await trio.sleep(900)
        assert health.damaged == {}
        assert 0 < health.verified < 41
        assert 0 < health.progress < 1
        await trio.sleep(DAY)
        assert list(health.damaged) == [ids[30]]
        assert health.verified >= 41
        assert health.ended_seconds > 0
        record = (await broker.declarations.records(KIND))[KEY]
        assert record["damaged"] == [["q", ids[30], "the content does not match its checksum"]]
    assert f"queues/q/{ids[30]}" in caplog.text


async def test_background_check_goes_on_after_a_restart(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with serving(tmp_path) as broker:
        for queue in ("a", "b"):
            await broker.create_queue(queue)
            for number in range(20):
                await broker.publish(queue, b"hello %d" % number)
        progress = PassProgress(began_ms=1, queue="b", after=-1, checked=20, total=40)
        await broker.declarations.put(KIND, KEY, progress._asdict() | {"damaged": []})
    async with serving(tmp_path, BrokerConfig(verify_seconds=400)) as broker:
        while not health_of(broker).ended_seconds:
            await trio.sleep(10)
        assert health_of(broker).verified == 20


async def test_background_check_is_off_without_a_rate(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"hello")
        await trio.sleep(10 * WEEK)
        assert health_of(broker).verified == 0


def test_damage_is_a_plain_value() -> None:
    assert Damage(QUEUE, "q", "/root/x", "why").hint == b""
