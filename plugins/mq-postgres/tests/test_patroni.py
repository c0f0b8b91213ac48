"""PostgreSQL under Patroni as the README sets it up: its primary is lost, sleeps and is switched over while mq is under
load. What a client was told is so, and mq goes on by itself."""

from __future__ import annotations

import http.client
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mq_postgres.testing.patroni import Patroni, running

from tests.documents import blocks
from tests.e2e.daemon import Daemon

logger = logging.getLogger(__name__)

README = Path(__file__).resolve().parent.parent / "README.md"
PACKAGES = ("patroni[etcd3]==4.1.5", "psycopg[binary]>=3.2")
PATIENCE_SECONDS = 60.0
LONGEST_OUTAGE_SECONDS = 20 + 2 * 10 + 10
"""Patroni's ttl, two of mq's deadlines for those who were asking, and what a busy machine adds."""
STORED, REMOVED = (200, 201), (202, 404)
PUBLISHERS, CONSUMERS = 4, 2

pytestmark = [
    pytest.mark.proof,
    pytest.mark.root,  # each member is a machine, with processes of its own
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]


@pytest.fixture(scope="session")
def programs(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of patroni and patronictl, in an environment of their own."""
    folder = tmp_path_factory.mktemp("patroni") / "own"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=PATIENCE_SECONDS)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot fetch {PACKAGES[0]}: {done.stderr[-300:]}")
    return folder / "bin"


@contextmanager
def cluster(programs: Path, mode: str, *, is_strict: bool) -> Iterator[Patroni]:
    """A cluster of Patroni by the README's file, and its role and schema by the README's SQL."""
    from mq_etcd.testing.cluster import running as running_etcd

    [file] = [text for text in blocks(README, "yaml") if text.startswith("scope:")]
    for shown, meant in (
        ("synchronous_mode: quorum", f"synchronous_mode: {mode}"),
        ("synchronous_mode_strict: true", f"synchronous_mode_strict: {str(is_strict).lower()}"),
    ):
        assert shown in file
        file = file.replace(shown, meant)
    with running_etcd() as etcd, running(file, etcd.endpoints[0].removeprefix("http://"), programs) as patroni:
        until_synchronous(patroni, mode)
        with patroni.leading().admin() as admin:
            admin.execute("CREATE ROLE mq LOGIN PASSWORD 'hunter2'")
            admin.execute("CREATE DATABASE mq")
        with patroni.leading().admin("mq") as admin:
            admin.execute("CREATE SCHEMA orders AUTHORIZATION mq")
        yield patroni


def until_synchronous(patroni: Patroni, mode: str) -> None:
    """Until Patroni would promote as many standbys as there are to be."""
    wait(lambda: len(patroni.synchronous()) >= (2 if mode == "quorum" else 1), patroni.logs)


def wait(is_so: Callable[[], bool], log: Callable[[], str], seconds: float = PATIENCE_SECONDS) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, log()
        time.sleep(0.05)  # real servers, in real time


class Load:
    """Publishers and consumers over HTTP, who ask again whenever they are told to.

    Attributes:
        confirmed: bodies of messages that are stored, by what publishers were told.
        got: bodies of messages that consumers had, in their order.
        refusals: what they were told instead.
        longest: seconds between two confirmations.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._is_ending = False
        self.confirmed: list[bytes] = []
        self.got: list[bytes] = []
        self.refusals: list[tuple[int, bytes]] = []
        self.longest = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """They run for the length of the block, and then consume what is left."""
        workers = [threading.Thread(target=self._publish, args=(number,)) for number in range(PUBLISHERS)]
        workers += [threading.Thread(target=self._consume) for _ in range(CONSUMERS)]
        for worker in workers:
            worker.start()
        try:
            yield
        finally:
            self._is_ending = True
            for worker in workers:
                worker.join(PATIENCE_SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None, key: str = "") -> tuple[int, bytes, str]:
        """The status, the body, and whose message it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self._daemon.port, timeout=60)
        try:
            connection.request(method, path, body, {"Idempotency-Key": key} if key else {})
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.getheader("X-Message-Id", "")
        finally:
            connection.close()

    def _publish(self, worker: int) -> None:
        number = 0
        while not self._is_ending:
            body = b"%d-%d" % (worker, number)
            number += 1
            if self._until("POST", "/orders/messages", STORED, body):
                with self._lock:
                    now = time.monotonic()
                    self.longest = max(self.longest, now - self._last)
                    self._last = now
                    self.confirmed.append(body)
            time.sleep(0.01)  # it is about faults, and other tests want the processor, too

    def _consume(self) -> None:
        while True:
            status, body, id = self.ask("GET", "/orders/messages?wait=1&visibility=600")
            if status == 200:
                self._until("DELETE", f"/orders/messages/{id}", REMOVED)
                self.got.append(body)
            elif status == 204 and self._is_ending:
                return
            elif status != 204:
                self._refused(status, body)

    def _until(self, method: str, path: str, done: tuple[int, ...], body: bytes | None = None) -> bool:
        """Ask until it is done; a publisher stops when the end comes: its message is not confirmed."""
        while not (self._is_ending and method == "POST"):
            status, reply, _ = self.ask(method, path, body, "" if body is None else body.decode())
            if status in done:
                return True
            self._refused(status, reply)
        return False

    def _refused(self, status: int, reply: bytes) -> None:
        self.refusals.append((status, reply))
        time.sleep(0.2)  # Retry-After, on a clock that a test can wait for


@contextmanager
def loaded(patroni: Patroni, folder: Path) -> Iterator[Load]:
    """A daemon over the cluster, under load; at the end what was confirmed was got, once."""
    password = folder / "password"
    password.write_text("hunter2\n")
    password.chmod(0o600)
    hosts = ",".join(f"127.0.0.1:{member.port}" for member in patroni.members.values())
    address = f"postgres://mq@{hosts}/mq?schema=orders&password-file={password}"
    with Daemon(folder / "root", folder / "log", f"--storage={address}") as daemon:
        load = Load(daemon)
        assert load.ask("PUT", "/orders")[0] == 201
        with load.running():
            goes_on(load, patroni)
            yield load
            goes_on(load, patroni)
        assert load.ask("GET", "/orders/messages")[0] == 204
        assert set(load.confirmed) - set(load.got) == set(), "confirmed, and lost"
        assert len(load.got) == len(set(load.got)), "handed out twice, though no lease ended"
        assert {status for status, _ in load.refusals} <= {503}
        daemon.stop()


def goes_on(load: Load, patroni: Patroni) -> None:
    """Messages are confirmed and consumed, and mq was not started again."""
    confirmed, got = len(load.confirmed), len(load.got)
    wait(
        lambda: len(load.confirmed) >= confirmed + 50 and len(load.got) >= got + 50,
        lambda: f"{load.refusals[-3:]} {patroni.logs()}",
    )


@pytest.mark.parametrize(("mode", "is_strict"), [("quorum", True), ("on", False)])
def test_nothing_confirmed_is_lost_with_a_primary(programs: Path, tmp_path: Path, mode: str, is_strict: bool) -> None:
    """Killed with all of its machine; then it comes back, and another one is lost by ``patronictl switchover``."""
    with cluster(programs, mode, is_strict=is_strict) as patroni, loaded(patroni, tmp_path) as load:
        lost = patroni.leading()
        assert "ANY 1 (" in patroni.setting("synchronous_standby_names") or mode == "on"
        lost.kill()
        assert patroni.leading(but=lost) is not lost
        goes_on(load, patroni)
        assert load.longest < LONGEST_OUTAGE_SECONDS
        logger.info("%s: %.1f s without a confirmation after a kill", mode, load.longest)
        lost.start()
        patroni.wait_for(3)
        until_synchronous(patroni, mode)
        load.longest = 0.0
        before, candidate = patroni.leading(), patroni.synchronous()[0]
        patroni.ctl("switchover", "--leader", before.name, "--candidate", candidate.name, "--force")
        assert patroni.leading(but=before) is candidate
        goes_on(load, patroni)
        assert load.longest < LONGEST_OUTAGE_SECONDS
        logger.info("%s: %.1f s without a confirmation by a switchover", mode, load.longest)
        until_synchronous(patroni, mode)


def test_a_primary_that_slept_costs_nothing(programs: Path, tmp_path: Path) -> None:
    """Its sessions are open still, and it believes for a moment that it is the primary."""
    with cluster(programs, "quorum", is_strict=True) as patroni, loaded(patroni, tmp_path) as load:
        asleep = patroni.leading()
        asleep.pause()
        patroni.leading(but=asleep)
        goes_on(load, patroni)
        asleep.resume()
        goes_on(load, patroni)
        patroni.wait_for(3)
        until_synchronous(patroni, "quorum")


def test_nothing_is_confirmed_by_a_primary_without_a_standby(programs: Path, tmp_path: Path) -> None:
    """In the strict mode. Publishers hear 503 until a standby is there, and what they ask again is stored once."""
    with cluster(programs, "quorum", is_strict=True) as patroni, loaded(patroni, tmp_path) as load:
        alone = patroni.leading()
        standbys = [member for member in patroni.members.values() if member is not alone]
        for standby in standbys:
            standby.kill()
        refused = len(load.refusals)
        wait(lambda: len(load.refusals) >= refused + PUBLISHERS, patroni.logs)
        confirmed = len(load.confirmed)
        wait(lambda: len(load.refusals) >= refused + 2 * PUBLISHERS, patroni.logs)
        assert len(load.confirmed) == confirmed
        standbys[0].start()
        goes_on(load, patroni)
