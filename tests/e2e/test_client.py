"""The clients and the program against the real daemon: over sockets, through its death, behind TLS, among peers."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
import trustme

from mq.client import Access, AsyncClient, Client, Conflict, NotAllowed, Retry, TooLarge, Unreachable
from tests.access.files import OTHER_TOKEN, TOKEN, write_users
from tests.e2e import prepared
from tests.e2e.daemon import TREE, Daemon

pytestmark = pytest.mark.slow

CHUNK = bytes(range(256)) * 4096
CHUNKS = 20
WRITERS = 3
KILLS = 5


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # nobody there, and nobody asks
    with Client(f"http://127.0.0.1:{daemon.port}") as client:
        client.create_queue("q")
        yield client


def test_long_bodies_are_streamed_both_ways(client: Client) -> None:
    client.publish("q", lambda: iter([CHUNK] * CHUNKS))
    digest, length = hashlib.sha256(), 0
    with client.stream("q") as stream:
        assert stream is not None
        for chunk in stream:
            digest.update(chunk)
            length += len(chunk)
        client.remove(stream.message)
    assert length == CHUNKS * len(CHUNK)
    assert digest.digest() == hashlib.sha256(CHUNK * CHUNKS).digest()


def test_a_stream_that_is_not_read_leaves_the_client_in_order(client: Client) -> None:
    client.publish("q", CHUNK * CHUNKS)
    with client.stream("q") as stream:
        assert stream is not None
        next(iter(stream))
    assert client.queue("q").leased == 1


async def test_the_same_on_trio(client: Client) -> None:
    async def chunks() -> trio.abc.ReceiveChannel[bytes]:
        for _ in range(CHUNKS):
            yield CHUNK

    async with AsyncClient(client.access) as async_client:
        await async_client.publish("q", chunks)
        async with async_client.stream("q") as stream:
            assert stream is not None
            assert sum([len(chunk) async for chunk in stream]) == CHUNKS * len(CHUNK)


async def test_a_stream_that_is_not_read_on_trio(client: Client) -> None:
    client.publish("q", CHUNK * CHUNKS)
    async with AsyncClient(client.access) as async_client:
        async with async_client.stream("q") as stream:
            assert stream is not None
            await anext(stream)
        gc.collect()
        assert (await async_client.queue("q")).leased == 1


def test_too_long_is_told_though_it_was_still_being_sent(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path / "root", tmp_path / "log", "--max-body", "1MiB") as daemon,
        Client(f"http://127.0.0.1:{daemon.port}") as client,
    ):
        client.create_queue("q")
        with pytest.raises(TooLarge):
            client.publish("q", CHUNK * 2)
        outcomes = client.publish_many("q", [CHUNK[: 1 << 19]] * 5)
        assert [outcome.status for outcome in outcomes] == [201] * 5


async def test_who_waits_gets_the_message_and_who_gave_up_takes_none(client: Client) -> None:
    async with AsyncClient(client.access) as waiting:
        with trio.move_on_after(0.3):
            await waiting.fetch("q", wait=60)
        async with trio.open_nursery() as nursery:
            got: list[bytes] = []

            async def wait() -> None:
                message = await waiting.fetch("q", wait=60)
                assert message is not None
                got.append(message.body)

            nursery.start_soon(wait)
            await trio.sleep(0.2)  # real time: another process has to have it in line
            await waiting.publish("q", b"hello")
        assert got == [b"hello"]


def test_nothing_is_lost_or_doubled_while_the_daemon_dies(tmp_path: Path, free_port: int) -> None:
    """Publishers that know nothing but the client, on a daemon that is killed five times."""
    url, retry = f"http://127.0.0.1:{free_port}", Retry(patience=100, first=0.02, longest=0.2)
    published: list[str] = []
    enough = threading.Event()

    def write(writer: int) -> None:
        with Client(url, retry=retry) as client:
            for number in itertools.count():
                if enough.is_set():
                    return
                client.publish("q", f"{writer}-{number}")
                published.append(f"{writer}-{number}")

    with Daemon(tmp_path / "root", tmp_path / "log", "--port", str(free_port)) as daemon, Client(url) as client:
        client.create_queue("q")
        with ThreadPoolExecutor(WRITERS) as writers:
            writing = [writers.submit(write, writer) for writer in range(WRITERS)]
            try:
                for _ in range(KILLS):
                    enough.wait(0.3)
                    daemon.kill()
                    daemon.start()
            finally:
                enough.set()
            for done in writing:
                done.result()
        stored = Counter(message.body.decode() for message in client.browse("q"))
    assert len(published) > WRITERS
    assert stored == Counter(published)


def test_among_peers_keys_are_refused_and_can_be_left_out(tmp_path: Path) -> None:
    with Daemon(tmp_path / "root", tmp_path / "log", "--peers", "1") as daemon:
        url = f"http://127.0.0.1:{daemon.port}"
        with Client(url) as client, Client(url, keys=False) as unkeyed:
            client.create_queue("q")
            with pytest.raises(Conflict):
                client.publish("q", b"x")
            unkeyed.publish("q", b"x")
            assert [outcome.status for outcome in unkeyed.publish_many("q", [b"x", b"y"])] == [201, 201]


def test_behind_tls_with_users_and_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("me@example.org")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, pem in enumerate(server.cert_chain_pems):
        pem.write_to_path(tmp_path / "cert.pem", append=number > 0)
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    users = write_users(tmp_path / "users.toml", '[users.me]\ntokens = ["TOKEN"]\nadminister = ["*"]\n')
    flags = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-client-ca", "ca.pem")
    guarded = [str(tmp_path / flag) if flag.endswith(".pem") else flag for flag in flags]
    with TLSDaemon(tmp_path / "root", tmp_path / "log", "--users", users, *guarded) as daemon:
        url = f"https://127.0.0.1:{daemon.port}"
        files = {"ca": tmp_path / "ca.pem", "certificate": tmp_path / "own.pem"}
        with Client(Access(url=url, token=TOKEN, **files)) as client:
            assert client.create_queue("q")
        with Client(Access(url=url, token=OTHER_TOKEN, **files)) as stranger, pytest.raises(NotAllowed):
            stranger.create_queue("q")
        with Client(Access(url=url, token=TOKEN), retry=Retry(patience=0)) as unsure, pytest.raises(Unreachable):
            unsure.create_queue("q")
        environment = {"MQ_URL": url, "MQ_TOKEN": TOKEN, "MQ_CA": str(files["ca"])}
        done = mq("queues", **environment, MQ_CERTIFICATE=str(files["certificate"]))
        assert (done.returncode, done.stdout) == (0, b"q\t0\t0\t0\t\t0\tdisk\t\n")


class TLSDaemon(Daemon):
    """Ready when it says where it listens."""

    def _is_ready(self, begin: int) -> bool:
        _, found, port = self.log.read_text().rpartition(" on https://127.0.0.1:")
        self.port = int(port.split()[0]) if found else 0
        return bool(found)


# The program, as a shell runs it


def mq(*args: str, input: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")} | environment
    command = [sys.executable, "-m", "mq", *args]
    return prepared.run(command, input=input, capture_output=True, cwd=TREE, env=env, timeout=60)


def test_a_session_of_the_program(daemon: Daemon, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{daemon.port}"
    assert mq("queue", "create", "work", MQ_URL=url).returncode == 0
    assert len(mq("send", "work", input=CHUNK * CHUNKS, MQ_URL=url).stdout.strip()) == 36
    archive = str(tmp_path / "work.tar.gz")
    done = mq("export", "work", archive, MQ_URL=url)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert mq("receive", "work", MQ_URL=url).stdout == CHUNK * CHUNKS
    assert mq("receive", "work", MQ_URL=url).returncode == 3
    assert mq("import", "work", archive, MQ_URL=url).stdout == b"1\n"
    assert mq("doctor", str(daemon.root), "--pause", "0.1").stdout.endswith(
        b" (while a daemon is running): no problems found\n"
    )


def test_a_reader_that_goes_away_gives_the_message_back(client: Client, daemon: Daemon) -> None:
    client.publish("q", CHUNK * CHUNKS)
    command = f"{sys.executable} -m mq receive q | head -c 10"
    env = os.environ | {"MQ_URL": f"http://127.0.0.1:{daemon.port}"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, cwd=TREE, env=env, timeout=60, check=False)
    assert done.stdout == CHUNK[:10]
    assert done.stderr == b""
    assert client.queue("q").ready == 1
