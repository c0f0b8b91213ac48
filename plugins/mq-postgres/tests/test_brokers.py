"""The broker on PostgreSQL, whole: what it answered is so after a restart, its own or the server's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from mq_postgres.testing.server import ROLE, Server, running, standbys_of

from mq.broker import Broker, open_broker
from mq.errors import NoSuchMessage, StorageError, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.confirmed import ConfirmedFile
from mq.storage.interface import QUEUE, Result, Write
from mq.storage.records import put_record
from mq.storage.registry import open_storage


async def test_what_was_answered_is_there_after_a_restart(place) -> None:
    large = b"".join(number.to_bytes(8, "big") for number in range((5 << 20) // 16))
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        ids = [await broker.publish("orders", b"%d" % number, {"n": number}) for number in range(20)]
        held = await broker.fetch("orders")
        assert held is not None
        done = await broker.fetch("orders")
        assert done is not None
        await broker.remove("orders", done.id, receipt=done.receipt)
        last = await broker.publish("orders", large)
    async with open_broker(place.address) as broker:
        assert [status.name for status in await broker.queues()] == ["orders"]
        rest = await broker.fetch_many("orders", 100)
        assert [message.id for message in rest] == [*ids[2:], last], "in order, without what is leased or removed"
        bodies = [(await message.body.read(), message.properties.attributes) for message in rest]
        assert bodies[:-1] == [(b"%d" % number, {"n": number}) for number in range(2, 20)]
        assert bodies[-1][0] == large
        await broker.requeue("orders", held.id, receipt=held.receipt)
        again = await broker.fetch("orders")
        assert again is not None
        assert (again.id, again.receives) == (held.id, 2)
        await broker.delete_queue("orders")
    async with open_broker(place.address) as broker:
        assert await broker.queues() == []


async def test_nothing_is_left_of_bodies_that_left(place) -> None:
    """Of large ones neither, nor of those that were staged and never written."""

    async def chunks():
        for _ in range(3):
            yield bytes(1 << 20)

    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        await broker.publish("orders", bytes(3 << 20))
        message = await broker.fetch("orders")
        assert message is not None
        await broker.remove("orders", message.id, receipt=message.receipt)
        await broker.publish("orders", bytes(3 << 20))
        ready = await broker.fetch("orders", wait=10)
        assert ready is not None
        await broker.requeue("orders", ready.id, receipt=ready.receipt)
        await broker.delete_queue("orders")
    async with open_storage(place.address) as storage:
        await storage.stage(chunks())
    async with open_broker(place.address):
        with place.server.admin() as admin:
            tables = [f"(SELECT count(*) FROM {place.schema}.{name})" for name in ("body", "chunk", "place")]
            await wait_until(lambda: admin.execute(f"SELECT {', '.join(tables)}".encode()).fetchone(), (0, 0, 0))


async def test_a_large_message_that_is_taken_stays_until_it_is_read(place) -> None:
    large = b"".join(number.to_bytes(8, "big") for number in range((5 << 20) // 16))
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        await broker.publish("orders", large)
        message = await broker.take("orders")
        assert message is not None
        await broker.publish("orders", b"next")
        assert await broker.take("orders") is not None  # the reaper has been there since
        assert await message.body.read() == large
        await message.body.aclose()
        with place.server.admin() as admin:
            count = f"SELECT count(*) FROM {place.schema}.chunk".encode()
            await wait_until(lambda: admin.execute(count).fetchone(), (0,))


async def wait_until(ask, answer) -> None:
    """Ask until that is the answer."""
    found = None
    with trio.move_on_after(20):
        while (found := ask()) != answer:
            await trio.sleep(0.02)
    assert found == answer


class Load:
    """Publishers and consumers who ask again whenever they are told to."""

    def __init__(self, broker: Broker, most: int) -> None:
        self._broker = broker
        self._most = most
        self.acknowledged: set[bytes] = set()
        self.got: list[bytes] = []

    async def publish(self, worker: int, workers: int) -> None:
        for number in range(worker, self._most, workers):
            body = b"%d" % number
            await until_done(lambda body=body: self._broker.publish("orders", body, key=body.decode()))
            self.acknowledged.add(body)

    async def fetch(self) -> None:
        while len(self.got) < self._most:
            message = await until_done(lambda: self._broker.fetch("orders", wait=0.5))
            if message is None:
                continue
            body = await until_done(message.body.read)
            with suppress(NoSuchMessage):  # it was removed, and the answer said that this was not known
                await until_done(lambda m=message: self._broker.remove("orders", m.id, receipt=m.receipt))
            self.got.append(body)


async def until_done(ask):
    while True:
        try:
            return await ask()
        except StorageError:
            await trio.sleep(0.05)  # Retry-After


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", pytest.param("asleep", marks=pytest.mark.proof)])
async def test_a_server_that_goes_costs_no_message(place, how: str) -> None:
    """Killed with SIGKILL and started again, or asleep for longer than the deadline, under load. The broker goes on."""
    place.options = "&deadline=1"
    server, address = place.server, place.address
    most, rounds = 240, 3
    with trio.fail_after(90):
        async with open_broker(address) as broker:
            load = Load(broker, most)
            await broker.create_queue("orders")
            async with trio.open_nursery() as nursery:
                for worker in range(4):
                    nursery.start_soon(load.publish, worker, 4)
                for _ in range(2):
                    nursery.start_soon(load.fetch)
                for number in range(1, rounds + 1):
                    while len(load.acknowledged) < most * number // (rounds + 1):
                        await trio.sleep(0.01)
                    if how == "killed":
                        server.kill()
                        server.start()  # not in a thread: the server ends with the thread that starts it
                    else:
                        server.pause()
                        await trio.sleep(1.5)
                        server.resume()
            assert await broker.fetch("orders") is None
        async with open_broker(address) as broker:
            assert await broker.fetch("orders") is None, "a removed message came back"
    assert len(load.acknowledged) == most
    assert set(load.got) == load.acknowledged
    assert len(load.got) == most, "none was handed out twice: no lease ended"


@pytest.fixture
def primary(installed: None) -> Iterator[Server]:
    """A server that ends in its test."""
    with running() as server:
        yield server


def address_of(*servers: Server) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgres://{ROLE}@{hosts}/{ROLE}?schema=orders&deadline=1"


@pytest.mark.in_turn(2)
@pytest.mark.slow
async def test_a_standby_that_is_promoted_under_load_has_all_that_was_confirmed(primary: Server) -> None:
    """Of two, of which each commit waits for one, it is the one that is further."""
    most = 240
    with trio.fail_after(90), standbys_of(primary, "one", "two") as standbys:
        async with open_broker(address_of(primary, *standbys)) as broker:
            load = Load(broker, most)
            await broker.create_queue("orders")
            async with trio.open_nursery() as nursery:
                for worker in range(4):
                    nursery.start_soon(load.publish, worker, 4)
                for _ in range(2):
                    nursery.start_soon(load.fetch)
                while len(load.acknowledged) < most // 2:
                    await trio.sleep(0.01)
                primary.kill()
                confirmed = set(load.acknowledged)
                max(standbys, key=Server.received).promote()
            assert await broker.fetch("orders") is None
        assert confirmed < set(load.got) == load.acknowledged
        assert len(load.got) == most, "none was handed out twice: no lease ended"


@pytest.mark.in_turn(2)
async def test_a_start_at_a_standby_without_what_was_confirmed_is_refused(primary: Server, tmp_path: Path) -> None:
    """However long mq was down; and what the text says to do helps."""

    @asynccontextmanager
    async def started(*servers: Server) -> AsyncIterator[Broker]:
        confirmed = ConfirmedFile(tmp_path)
        async with open_storage(address_of(*servers), confirmed=confirmed) as storage, open_broker(storage) as broker:
            yield broker

    async def bodies(broker: Broker) -> list[bytes]:
        return [await message.body.read() for message in await broker.fetch_many("orders", 10)]

    with trio.fail_after(90), standbys_of(primary, "behind", "whole") as (behind, whole):
        async with started(primary) as broker:
            await broker.create_queue("orders")
            await broker.publish("orders", b"on both")
            while behind.received() < primary.written():
                await trio.sleep(0.01)
            behind.kill()
            await broker.publish("orders", b"on one")
        primary.kill()
        behind.start()
        behind.promote()
        with pytest.raises(
            StorageUnusable, match="before mq was restarted: a standby without the confirmed changes was promoted"
        ) as refused:
            async with started(behind, whole):
                pytest.fail("what was confirmed is lost, and nothing says so")
        whole.promote()
        async with started(whole) as broker:
            assert await bodies(broker) == [b"on both", b"on one"]
        (file,) = await trio.Path(tmp_path).iterdir()
        assert f"remove {file}, then restart mq" in str(refused.value)
        await file.unlink()
        async with started(behind) as broker:
            assert await bodies(broker) == [b"on both"]


@pytest.mark.in_turn(2)
async def test_a_standby_without_what_was_confirmed_is_not_gone_on_with(primary: Server) -> None:
    with trio.fail_after(90), standbys_of(primary, "behind", "whole") as (behind, whole):
        async with open_broker(address_of(primary, behind, whole)) as broker:
            await broker.create_queue("orders")
            await broker.publish("orders", b"on both")
            behind.kill()  # one that only sleeps has in its socket what was sent to it
            await broker.publish("orders", b"on one")
            primary.kill()
            behind.start()
            behind.promote()
            with pytest.raises(StorageError, match=r"was promoted\. Promote a standby that has these changes"):
                await broker.publish("orders", b"nowhere")
            behind.stop()
            whole.promote()
            await until_done(lambda: broker.publish("orders", b"later"))
            got = [await until_done(lambda: broker.fetch("orders", wait=30)) for _ in range(3)]
            assert {await message.body.read() for message in got} == {b"on both", b"on one", b"later"}


@pytest.mark.in_turn(2)
async def test_nothing_is_read_from_a_primary_that_was_given_up(primary: Server) -> None:
    """It slept while its standby was promoted, believes that it is the primary still, and stands first in the address:
    a message that was confirmed since then is not there, and would be taken for gone."""
    with trio.fail_after(90), standbys_of(primary, "next") as (following,):
        async with open_storage(address_of(primary, following)) as storage:
            await put_record(storage, QUEUE, "orders", {"created": 0})
            before, since = (Write("orders", MessageIds().new(), b"", state=State.READY) for _ in range(2))
            assert (await storage.commit([before]))[0].result is Result.DONE
            assert await storage.find("orders", before.id) == before.entry
            primary.pause()
            following.promote()
            while (await storage.commit([since]))[0].result is not Result.DONE:
                await trio.sleep(0.05)
            primary.resume()
            assert None not in await storage.read([before.entry, since.entry])


async def test_nothing_is_read_from_a_server_that_lacks_what_was_confirmed(place) -> None:
    """Messages that it does not have would be taken for gone. Its sessions are new, as after a fail-over."""
    place.options = "&deadline=0.4"
    async with open_storage(place.address) as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        write = Write("orders", MessageIds().new(), b"confirmed", state=State.READY)
        assert (await storage.commit([write]))[0].result is Result.DONE
        assert await storage.scan(State.READY, "orders") == [write.entry]
        with place.server.admin() as admin:
            admin.execute(f"UPDATE {place.schema}.lane SET landed = landed - 1".encode())
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'mq-%'")
            with pytest.raises(StorageFull, match=r"was promoted\. Promote a standby that has these changes"):
                await storage.scan(State.READY, "orders")
            admin.execute(f"UPDATE {place.schema}.lane SET landed = landed + 1".encode())
        assert await storage.scan(State.READY, "orders") == [write.entry]
