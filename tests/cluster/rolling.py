"""Rolling restarts under load: the master is stopped and started again, over and over, while clients work at each node.

``python -m tests.cluster.rolling --restarts 20`` prints what each take-over took, and what the clients saw. With
``--postgres`` the messages are in PostgreSQL. A publisher at each node keeps many messages unconfirmed, a consumer at
each node acknowledges all that comes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pika
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from tests.cluster.daemons import Nodes, three_daemons

QUEUE: Final = "q"
PROBE: Final = "probe"
"""The queue whose publishes tell that a master serves."""
UNCONFIRMED: Final = 40
"""Messages that a publisher sends before it waits."""
PREFETCH: Final = 50
WORK_SECONDS: Final = 3.0
"""Between a node's start and the next master's end."""
DRAIN_SECONDS: Final = 60.0
RECONNECT_SECONDS: Final = 0.2
INTERNAL_ERROR: Final = 541


class Sightings:
    """What all clients saw. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.confirmed: set[bytes] = set()
        self.first_deliveries: Counter[bytes] = Counter()
        self.delivered: set[bytes] = set()
        self.closed: Counter[int] = Counter()

    def confirm(self, bodies: list[bytes]) -> None:
        with self._lock:
            self.confirmed.update(bodies)

    def deliver(self, body: bytes, redelivered: bool) -> None:
        with self._lock:
            self.delivered.add(body)
            self.first_deliveries[body] += not redelivered

    def close(self, reply_code: int) -> None:
        with self._lock:
            self.closed[reply_code] += 1

    @property
    def lost(self) -> int:
        """Messages that were confirmed, and never delivered."""
        with self._lock:
            return len(self.confirmed - self.delivered)

    @property
    def stored_twice(self) -> int:
        """Messages that came more than once without the mark of a redelivery: under two ids."""
        with self._lock:
            return sum(count > 1 for count in self.first_deliveries.values())


class RollingClients:
    """A publisher and a consumer at each node, in threads, which connect again whenever their connection ends."""

    def __init__(self, ports: list[int], seen: Sightings) -> None:
        self._seen = seen
        self._no_more_publishing = threading.Event()
        self._is_over = threading.Event()
        self._publishers, self._consumers = (
            [
                threading.Thread(target=self._again_and_again, args=(work, port, number))
                for number, port in enumerate(ports)
            ]
            for work in (self._publish, self._consume)
        )

    def __enter__(self) -> RollingClients:
        for thread in (*self._publishers, *self._consumers):
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._no_more_publishing.set()
        self._is_over.set()
        for thread in (*self._publishers, *self._consumers):
            thread.join()

    def drain(self) -> None:
        """Publish no more, and wait until all that is confirmed was delivered."""
        self._no_more_publishing.set()
        for thread in self._publishers:
            thread.join()
        ends = time.monotonic() + DRAIN_SECONDS
        while self._seen.lost and time.monotonic() < ends:
            time.sleep(0.1)

    def _again_and_again(self, work: Callable[[Any, str], None], port: int, number: int) -> None:
        connects = 0
        over = self._no_more_publishing if work == self._publish else self._is_over
        while not over.is_set():
            connects += 1
            parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, socket_timeout=3)
            try:
                with pika.BlockingConnection(parameters) as connection:
                    work(connection, f"{number}-{connects}")
                    return
            except ConnectionClosedByBroker as error:
                self._seen.close(error.reply_code)
            except (AMQPError, OSError):
                pass  # the node is down, or the queue's master is not known yet
            over.wait(RECONNECT_SECONDS)

    def _publish(self, connection: Any, name: str) -> None:
        channel = connection.channel()
        raw = channel._impl  # pika's blocking channel waits for each confirm
        sent: dict[int, bytes] = {}

        def confirmed(frame: Any) -> None:
            tag, multiple = frame.method.delivery_tag, frame.method.multiple
            tags = [each for each in sent if each == tag or (multiple and each < tag)]
            bodies = [sent.pop(each) for each in tags]
            if isinstance(frame.method, pika.spec.Basic.Ack):
                self._seen.confirm(bodies)

        raw.confirm_delivery(confirmed)
        number = 0
        while not self._no_more_publishing.is_set():
            while len(sent) < UNCONFIRMED:
                number += 1
                sent[number] = f"{name}-{number}".encode()
                raw.basic_publish("", QUEUE, sent[number], pika.BasicProperties(delivery_mode=2))
            connection.process_data_events(0.02)

    def _consume(self, connection: Any, name: str) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        is_consuming = False

        def cancelled(_: object) -> None:
            nonlocal is_consuming
            is_consuming = False

        def deliver(channel: Any, method: Any, properties: object, body: bytes) -> None:
            self._seen.deliver(body, method.redelivered)
            channel.basic_ack(method.delivery_tag)

        channel.add_on_cancel_callback(cancelled)
        while not self._is_over.is_set():
            if not is_consuming:
                channel.basic_consume(QUEUE, deliver)
                is_consuming = True
            connection.process_data_events(0.05)


def take_over_seconds(nodes: Nodes, master: str) -> float:
    """Stop the master; how long it takes from the signal until the next one confirms a publish."""
    other = next(name for name in nodes.daemons if name != master)
    term = nodes.sees(other)["term"]
    stopping = threading.Thread(target=nodes.daemons[master].stop)
    began = time.monotonic()
    stopping.start()
    nodes.wait(lambda: bool(nodes.sees(other)["term"] != term))
    nodes.wait(lambda: nodes.ask(other, "POST", f"/{PROBE}/messages", b"x").status_code == 201)
    seconds = time.monotonic() - began
    stopping.join()
    return seconds


def roll(
    nodes: Nodes, restarts: int, show: Callable[[str], object], delivered_before: int = 0
) -> tuple[Sightings, list[float]]:
    """Restart the master `restarts` times under load; what the clients saw, and the seconds of each take-over.

    Args:
        delivered_before: messages to deliver before the first restart. They stay in removed/ for a minute.
    """
    seen, seconds = Sightings(), []
    master = nodes.master()
    for queue in (QUEUE, PROBE):
        assert nodes.ask(master, "PUT", f"/{queue}?store=cluster").status_code == 201
    with RollingClients(list(nodes.amqp_ports.values()), seen) as clients:
        while len(seen.delivered) < delivered_before:
            time.sleep(0.1)
        for number in range(1, restarts + 1):
            time.sleep(WORK_SECONDS)
            master = nodes.master()
            seconds.append(take_over_seconds(nodes, master))
            nodes.daemons[master].start()
            show(
                f"{number}: {master} restarted, taken over after {seconds[-1]:.2f} s; {len(seen.confirmed)} confirmed, "
                f"{seen.stored_twice} stored twice, connections closed by reply code: {dict(seen.closed)}"
            )
        nodes.master()
        clients.drain()
    return seen, seconds


@contextmanager
def three_nodes_on(store: str, folder: Path) -> Iterator[Nodes]:
    """Three daemons whose members and names are in an etcd, and whose messages are in `store`: etcd or postgres."""
    from mq_etcd.testing.cluster import running as running_etcd
    from mq_postgres.testing.server import ROLE
    from mq_postgres.testing.server import running as running_postgres

    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd())
        address = ""
        if store == "postgres":
            server = stack.enter_context(running_postgres())
            address = f"postgres://{ROLE}@127.0.0.1:{server.port}/{ROLE}?schema=rolling&sslmode=disable"
        yield stack.enter_context(three_daemons(etcd.endpoints[0], folder, address))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--postgres", action="store_true", help="messages in PostgreSQL instead of etcd")
    parser.add_argument("--delivered-before", type=int, default=0, help="messages delivered before the first restart")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mq-rolling-"))
    print(f"logs of the daemons: {folder}")
    with three_nodes_on("postgres" if given.postgres else "etcd", folder) as nodes:
        seen, seconds = roll(nodes, given.restarts, lambda line: print(line, flush=True), given.delivered_before)
    closed = seen.closed[INTERNAL_ERROR]
    print(
        f"{len(seen.confirmed)} confirmed, {seen.lost} lost, {seen.stored_twice} stored twice, {closed} connections "
        f"closed with {INTERNAL_ERROR}; take-over {statistics.median(seconds):.2f} s (median)"
    )
    sys.exit(1 if seen.lost or seen.stored_twice or closed else 0)


if __name__ == "__main__":
    main()
