"""Three nodes whose members and names are in etcd, and whose messages are in PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.cluster.split_storage import ConfirmedRecord, SplitStorage
from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Write
from mq.storage.memory import MemoryStorage
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from mq.storage.registry import make_storage, open_storage
from tests.cluster.daemons import Nodes, three_daemons

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]


def bodies(nodes: Nodes, node: str) -> list[bytes]:
    found = []
    while (reply := nodes.ask(node, "GET", "/q/messages?visibility=600")).status_code == 200:
        found.append(reply.content)
    return found


async def test_a_node_that_becomes_master_knows_what_was_confirmed_before(place) -> None:
    """From the coordinator's store: the node before was another one. Here a server comes back without some of it."""

    @asynccontextmanager
    async def led(term: int) -> AsyncIterator[SplitStorage]:
        messages = make_storage(f"{place.address}&term={term}", StorageOptions(confirmed=ConfirmedRecord(names)))
        split = SplitStorage(names, messages)
        try:
            await split.open()
            yield split
        finally:
            await messages.aclose()

    names = MemoryStorage()
    async with led(1) as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        for _ in range(3):
            await storage.commit([Write("orders", MessageIds().new(), b"confirmed")])
    with place.server.admin() as admin:
        admin.execute(f"UPDATE {place.schema}.lane SET landed = landed - 1".encode())
    with pytest.raises(
        StorageUnusable,
        match=r"a standby without the confirmed changes was promoted.* delete the key of the record confirmed mq/",
    ):
        async with led(2):
            pytest.fail("what was confirmed is lost, and nothing says so")
    with place.server.admin() as admin:
        assert admin.execute(f"SELECT epoch FROM {place.schema}.fence".encode()).fetchone() == (1,), "nothing is taken"
        admin.execute(f"UPDATE {place.schema}.lane SET landed = landed + 1".encode())
    async with led(2) as storage:
        assert len(await storage.scan(State.NEW)) == 3


async def test_the_coordinator_hears_what_is_confirmed_while_a_master_lives(place) -> None:
    names = MemoryStorage()
    await names.open()
    noting = ConfirmedRecord(names)
    async with open_storage(place.address, confirmed=noting) as storage:
        await put_record(storage, "exchange", "a", {})
        with place.server.admin() as admin:
            row = admin.execute(f"SELECT landed FROM {place.schema}.lane".encode()).fetchone()
        assert row is not None
        with trio.fail_after(30):
            while await noting.recall(f"mq/{place.schema}") != row[0]:
                await trio.sleep(0.01)


def test_what_was_confirmed_outlives_masters_that_die_or_sleep(place, tmp_path: Path) -> None:
    from mq_etcd.testing.cluster import running as running_etcd

    with running_etcd() as etcd, three_daemons(etcd.endpoints[0], tmp_path, place.address) as nodes:
        first = nodes.master()
        assert nodes.ask("b", "PUT", "/q?store=cluster").status_code == 201
        for number in range(20):
            assert nodes.ask("abc"[number % 3], "POST", "/q/messages", b"%d" % number).status_code == 201
        with place.server.admin() as admin:
            rows = admin.execute(f"SELECT count(*) FROM {place.schema}.place".encode()).fetchone()
        assert rows == (20,), "they are in PostgreSQL"
        asleep = nodes.daemons[first]
        os.kill(asleep.pid, signal.SIGSTOP)
        others = [name for name in "abc" if name != first]
        nodes.wait(
            lambda: (
                nodes.sees(others[0])["term"] == nodes.sees(others[1])["term"]
                and any(nodes.sees(name)["role"] == "master" for name in others)
            )
        )
        assert nodes.ask(others[0], "POST", "/q/messages", b"20").status_code == 201
        os.kill(asleep.pid, signal.SIGCONT)
        nodes.wait(lambda: nodes.sees(first)["role"] == "mirror")
        second = nodes.master()
        assert second != first
        leased = nodes.ask(first, "GET", "/q/messages?visibility=600")
        assert leased.content == b"0"
        nodes.daemons[second].kill()
        third = nodes.master()
        assert bodies(nodes, third) == [b"%d" % number for number in range(21)], "what was leased is there again"


def test_a_large_message_outlives_the_master_that_was_taking_it(place, tmp_path: Path) -> None:
    """Its publisher is at another node, which sends it to the next master from its beginning."""
    from mq_etcd.testing.cluster import running as running_etcd

    body = os.urandom(24 << 20)
    with running_etcd() as etcd, three_daemons(etcd.endpoints[0], tmp_path, place.address) as nodes:
        first = nodes.master()
        one, other = (name for name in "abc" if name != first)
        assert nodes.ask(one, "PUT", "/q?store=cluster").status_code == 201
        with ThreadPoolExecutor(1) as threads, place.server.admin() as admin:
            published = threads.submit(nodes.ask, one, "POST", "/q/messages", body)

            def has_begun() -> bool:
                return admin.execute(f"SELECT count(*) FROM {place.schema}.chunk".encode()).fetchone() >= (3,)

            nodes.wait(has_begun)
            nodes.daemons[first].kill()
            assert published.result().status_code == 201
            assert bodies(nodes, other) == [body]
            row = admin.execute(f"SELECT count(*) FROM {place.schema}.chunk".encode()).fetchone()
            assert row == (24,), "of the master that died nothing is left"


class Cable:
    """A port whose connections lead to another one, until the cable is cut: then nothing comes through, and no end."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._is_cut = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut.set()

    def close(self) -> None:
        for each in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                if self._is_cut.is_set():
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open.append(server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self._is_cut.is_set():
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_master_that_is_cut_off_from_postgresql_alone_hands_over(place, tmp_path: Path) -> None:
    """It is a member still, and its neighbors reach it. A cluster goes on within three leases (here of two seconds)."""
    from mq_etcd.testing.cluster import running as running_etcd

    cables = {name: Cable(place.port) for name in "abc"}
    addresses = {name: place.address.replace(f":{place.port}/", f":{cables[name].port}/") for name in "abc"}
    with contextlib.ExitStack() as stack:
        for cable in cables.values():
            stack.callback(cable.close)
        etcd = stack.enter_context(running_etcd())
        nodes = stack.enter_context(three_daemons(etcd.endpoints[0], tmp_path, addresses))
        first = nodes.master()
        other = next(name for name in "abc" if name != first)
        assert nodes.ask(other, "PUT", "/q?store=cluster").status_code == 201
        assert nodes.ask(other, "POST", "/q/messages", b"1").status_code == 201
        term = nodes.sees(other)["term"]
        cables[first].cut()
        began = time.monotonic()
        nodes.wait(lambda: nodes.sees(other)["term"] != term and nodes.sees(first)["role"] != "master")
        nodes.wait(lambda: nodes.ask(other, "POST", "/q/messages", b"2").status_code == 201)
        sys.stderr.write(f"served again {time.monotonic() - began:.1f} s after the cable was cut\n")
        assert bodies(nodes, other) == [b"1", b"2"]
