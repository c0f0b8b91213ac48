"""Three hosts of a cluster: each with a member of etcd, a node of mq, and clients of that node; and a witness."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.cluster.history import History
from tests.hosts.network import Host, Network, Process, made_network

NAMES = ("a", "b", "c")
QUEUE = "work"
PREFIX = "/chaos"
PASSWORD = "a secret of the cluster"
HTTP_PORT, AMQP_PORT, CLIENT_PORT, PEER_PORT = 8080, 5672, 2379, 2380
LEASE_SECONDS = 2
PATIENCE_SECONDS = 180.0
MQ = (sys.executable, "-m", "mq")
TERM = re.compile(r"node (\S+) is serving \d+ queues? in term (\d+)")


class Machine:
    """One host of the cluster, with what runs on it.

    Attributes:
        store: the address of the store of the cluster's messages; empty for etcd.
    """

    def __init__(self, name: str, network: Network, folder: Path, mq: tuple[str, ...], wrong_by: float) -> None:
        self.name = name
        self.host: Host = network[name]
        self._folder = folder
        self._mq = mq
        self._wrong_by = wrong_by
        self._others = [network[other] for other in NAMES if other != name]
        self._all = [network[other] for other in NAMES]
        self.etcd: Process
        self.node: Process
        self.clients: Process
        self.store = ""

    @property
    def http(self) -> str:
        """Where its node serves HTTP."""
        return f"http://{self.host.address}:{HTTP_PORT}"

    @property
    def endpoint(self) -> str:
        """Where its member of etcd serves."""
        return f"http://{self.host.address}:{CLIENT_PORT}"

    def leads_etcd(self) -> bool:
        with self.host.inside(), httpx.Client(timeout=5) as client:
            found = client.post(f"{self.endpoint}/v3/maintenance/status", json={}).json()
        return bool(found["leader"] == found["header"]["member_id"])

    def log(self, what: str) -> Path:
        return self._folder / f"{self.name}.{what}.log"

    def start_etcd(self) -> None:
        """Start its member of etcd, or start it again."""
        peers = ",".join(f"{host.name}=http://{host.address}:{PEER_PORT}" for host in self._all)
        peer = f"http://{self.host.address}:{PEER_PORT}"
        self.etcd = self.host.start(
            *("etcd", "--name", self.name, "--data-dir", str(self._folder / f"{self.name}.etcd")),
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", peers, "--logger", "zap", "--log-level", "warn"),
            "--pre-vote",  # or else a host that comes back costs the others their leader
            log=self.log("etcd"),
        )

    def start_node(self) -> None:
        first, second = (f"{host.address}:{AMQP_PORT}" for host in self._others)
        endpoints = ",".join(f"http://{host.address}:{CLIENT_PORT}" for host in [self.host, *self._others])
        file = self._folder / f"{self.name}.toml"
        file.write_text(
            f'name = "{self.name}"\nneighbor_1 = "{first}"\nneighbor_2 = "{second}"\n'
            f'coordinator = "etcd:{endpoints}?prefix={PREFIX}"\npassword = "{PASSWORD}"\n'
            f'lease_seconds = {LEASE_SECONDS}\nstore = "{self.store}"\n'
        )
        self.node = self.host.start(
            *self._mq,
            *("serve", "--cluster", str(file), "--root", str(self._folder / f"{self.name}.root"), "--insecure"),
            *("--address", self.host.address, "--port", str(HTTP_PORT), "--amqp-port", str(AMQP_PORT)),
            *("--log-level", "debug"),
            log=self.log("node"),
            environment=self._environment(),
        )

    def start_clients(self) -> None:
        self.clients = self.host.start(
            *(sys.executable, "-m", "tests.cluster.load", self.name, self.http),
            *(f"amqp://{self.host.address}:{AMQP_PORT}", QUEUE, str(self.log("clients"))),
            log=self.log("clients-errors"),
        )

    def _environment(self) -> Mapping[str, str]:
        if not self._wrong_by:
            return dict(os.environ)
        here = Path(__file__).parent / "wrong_clock"
        return {**os.environ, "PYTHONPATH": str(here), "WRONG_BY_SECONDS": str(self._wrong_by)}


class Machines:
    def __init__(self, network: Network, folder: Path, mq: tuple[str, ...], wrong_by: Mapping[str, float]) -> None:
        self._folder = folder
        self._network = network
        self.by_name = {name: Machine(name, network, folder, mq, wrong_by.get(name, 0.0)) for name in NAMES}
        self.faults: list[tuple[int, int, str]] = []
        self._newcomers: Process | None = None

    def start(self) -> None:
        """Start everything but the clients; a is the oldest node, then b."""
        for machine in self.by_name.values():
            machine.start_etcd()
        self.wait_until(lambda: all(self._says_healthy(machine) for machine in self.by_name.values()), "etcd is up")
        members = [machine.endpoint for machine in self.by_name.values()]
        self._network["w"].start(
            *(sys.executable, "-m", "tests.cluster.witness", f"{PREFIX}-members/", str(self.witness), *members),
            log=self._folder / "witness-errors.log",
        )
        for machine in self.by_name.values():
            machine.start_node()
            self.wait_until_member(machine)

    @property
    def witness(self) -> Path:
        """The witness's log."""
        return self._folder / "witness.log"

    def master(self) -> Machine:
        """Who serves, or did so last."""
        return self.by_name[max(self._terms(), default=(0, "a"))[1]]

    def term(self) -> int:
        return max(self._terms(), default=(0, ""))[0]

    def fault(self, what: str) -> None:
        """Something is about to be done to the cluster."""
        self.faults.append((time.monotonic_ns(), self.term(), what))

    def wait_for_term_after(self, term: int) -> None:
        """Until somebody serves in a later term."""
        self.wait_until(lambda: self.term() > term, f"somebody serves after term {term}")

    def wait_until_member(self, machine: Machine) -> None:
        """Until a node is a member, and sees a master."""

        def is_member() -> bool:
            found = self.get(machine, "/-/cluster")
            return found is not None and found["role"] != "alone" and bool(found["is_available"])

        self.wait_until(is_member, f"{machine.name} is a member")

    def get(self, machine: Machine, path: str) -> Mapping[str, object] | None:
        """What a node says at a path; None where it says nothing."""
        with machine.host.inside():
            try:
                with httpx.Client(timeout=5) as client:
                    reply = client.get(machine.http + path)
                    return reply.json() if reply.status_code == 200 else None  # type: ignore[no-any-return]
            except httpx.HTTPError:
                return None

    def start_newcomers(self, seed: int) -> None:
        """Start clients that move between the nodes."""
        nodes = [f"{machine.name}={machine.host.address}" for machine in self.by_name.values()]
        log = self._folder / "newcomers.clients.log"
        self._newcomers = self._network["w"].start(
            *(sys.executable, "-m", "tests.cluster.newcomers", str(log), str(seed), *nodes),
            log=self._folder / "newcomers-errors.log",
        )

    def drain(self, seconds: float = 60.0) -> None:
        """Receive what is left in all queues, at every node, and write it down."""
        lines = self.history().clients
        names = {QUEUE, *(str(line["queue"]) for line in lines if "queue" in line)}
        urls = [f"{machine.http}/{name}" for name in sorted(names) for machine in self.by_name.values()]
        queues = self._folder / "queues"
        queues.write_text("\n".join(urls))
        log = self._folder / "drain.clients.log"
        self._network["w"].run(
            *(sys.executable, "-m", "tests.cluster.draining", str(log), str(seconds), str(queues)), seconds=seconds + 60
        )

    def stop_clients(self) -> None:
        """Nobody asks for anything any more."""
        for machine in self.by_name.values():
            assert machine.clients.is_running(), machine.clients.last_words()
            machine.clients.kill()
        if self._newcomers is not None:
            assert self._newcomers.is_running(), self._newcomers.last_words()
            self._newcomers.kill()

    def report(self) -> str:
        """What was done, and how long it took to be served again, for people."""
        history = self.history()
        counts = ", ".join(f"{len(history.bodies(event))} {event}" for event in ("try", "stored", "unsure", "got"))
        masters = " ".join(node for _, node in sorted(history.masters))
        return "\n".join(
            [f"{counts}; masters {masters}", *(self._served(history, number) for number in range(len(self.faults)))]
        )

    def last_fault(self) -> str:
        """The last line of the report."""
        return self._served(self.history(), len(self.faults) - 1)

    def _served(self, history: History, number: int) -> str:
        at, term, what = self.faults[number]
        until = self.faults[number + 1][0] if number + 1 < len(self.faults) else None
        after = history.served_after(at, term)
        is_later = after is None or (until is not None and at + after * 1e9 > until)
        return f"{what}: {'the master stayed' if is_later else f'served by the next one after {after:.2f} s'}"

    def history(self) -> History:
        """What happened so far."""
        clients = self._folder.glob("*.clients.log")
        return History.read(clients, self._folder.glob("*.node.log"), self.witness)

    def _terms(self) -> Iterator[tuple[int, str]]:
        for machine in self.by_name.values():
            log = machine.log("node")
            if log.exists():
                for node, term in TERM.findall(log.read_text(errors="replace")):
                    yield int(term), node

    def _says_healthy(self, machine: Machine) -> bool:
        with machine.host.inside():
            try:
                with httpx.Client(timeout=1) as client:
                    return client.get(f"{machine.endpoint}/health").json().get("health") == "true"  # type: ignore[no-any-return]
            except (httpx.HTTPError, ValueError):
                return False

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"it does not come true that {what}"
            time.sleep(0.05)


@contextmanager
def three_machines(
    folder: Path,
    mq: tuple[str, ...] = MQ,
    wrong_by: Mapping[str, float] = {},
    *,
    has_clients: bool = True,
    has_postgres: bool = False,
) -> Iterator[Machines]:
    """A cluster that serves the queue, with clients at work on each node, for the length of the block; its messages in
    etcd, or in a PostgreSQL on a host of its own."""
    with made_network(*NAMES, "w", "p") as network, ExitStack() as stack:
        machines = Machines(network, folder, mq, wrong_by)
        if has_postgres:
            store = stack.enter_context(_postgres_at(network["p"]))
            for machine in machines.by_name.values():
                machine.store = store
        machines.start()
        first = machines.by_name["a"]
        with first.host.inside(), httpx.Client(timeout=10) as client:
            assert client.put(f"{first.http}/{QUEUE}?store=cluster").status_code == 201
        for machine in machines.by_name.values() if has_clients else ():
            machine.start_clients()
        yield machines


@contextmanager
def _postgres_at(host: Host) -> Iterator[str]:
    """The address of a store on a PostgreSQL of that host."""
    from mq_postgres.testing.server import ROLE, running

    with ExitStack() as stack:
        with host.inside():  # its processes are of the host where they are started
            server = stack.enter_context(running("-c", "listen_addresses=*"))
        with (server.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host {ROLE} all {host.address}/24 trust\n")
        with server.admin() as admin:
            admin.execute("SELECT pg_reload_conf()")
        yield f"postgres://{ROLE}@{host.address}:{server.port}/{ROLE}?schema=chaos&sslmode=disable"
