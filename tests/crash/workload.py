"""Clients of a real daemon over HTTP, several at a time, that mark what they were told (:mod:`tests.crash.ledger`)."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from random import Random
from typing import Final, NamedTuple

from tests.crash.ledger import Mark, digest

KEPT: Final = "kept"
"""A queue that nobody fetches from."""
WORKED: Final = "worked"
"""A queue that consumers work on."""
LEASE_SECONDS: Final = 0.8
LOG_BYTES: Final = 1 << 16
"""Of a segment: what a few messages fill."""
LARGE: Final = 1024 * 1024
LONG_TYPE: Final = "text/plain; note=" + "n" * 3000
"""A content type that no extended attribute holds."""
_ANSWER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.02
_WAIT_SECONDS: Final = 0.2
"""Consumers wait: so some messages are leased by the batch that writes them."""
_LONGEST_SECONDS: Final = 60.0
ALONE: Final = 10
_MOST_REFUSALS: Final = 100


class Plan(NamedTuple):
    """Who does how much.

    Attributes:
        publishers: clients that publish, and ...
        messages: ... how many messages each.
        consumers: clients that fetch from WORKED, and remove most of what they get.
        churners: clients that make queues, use them, delete them and make them anew.
        rounds: how often each of those does it.
        has_log: whether it makes changes durable by a log, of small segments.
        has_keys: whether each publish has an idempotency key, its content's digest.
        has_large: whether nearly all bodies are too large for the log.
        lot: messages that a publisher sends in one request, in place of each; above 1 all of them are small.
    """

    publishers: int = 4
    messages: int = 12
    consumers: int = 2
    churners: int = 1
    rounds: int = 4
    daemons: int = 1
    has_log: bool = False
    has_keys: bool = False
    has_large: bool = False
    lot: int = 1


PLANS: Final = {
    "publish": Plan(consumers=0, churners=0, messages=16),
    "remove": Plan(publishers=3, messages=12, consumers=4, churners=0),
    "queues": Plan(publishers=0, consumers=0, churners=4, rounds=5),
    "everything": Plan(),
    "two peers": Plan(daemons=2),
    "log": Plan(has_log=True),
    "log keys": Plan(churners=0, has_log=True, has_keys=True),
    "log large": Plan(publishers=6, messages=8, consumers=1, churners=0, has_log=True, has_large=True),
    "log queues": Plan(publishers=1, consumers=0, churners=3, rounds=5, has_log=True),
    "log crowd": Plan(publishers=10, messages=3, consumers=8, churners=0, has_log=True, lot=16),
}


class Refused(Exception):
    """The store does not take changes any more: 503."""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    id: str
    type: str
    body: bytes


class Client:
    """One connection to one daemon.

    Args:
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, port: int, mark: Mark, stop: threading.Event, *, has_keys: bool = False) -> None:
        self._has_keys = has_keys
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
        self._mark = mark
        self._stop = stop

    def close(self) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: bytes | None = None, type: str = "") -> Reply:
        """Ask, and read the whole answer."""
        headers = {"content-type": type} if type else {}
        if self._has_keys and body is not None:
            headers["idempotency-key"] = digest(body, type)
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        header = answer.getheader
        return Reply(answer.status, header("x-message-id", ""), header("content-type", ""), answer.read())

    def insist(self, method: str, path: str, body: bytes | None = None, type: str = "") -> Reply:
        """Ask again while the daemon says that it is busy.

        Raises:
            Refused: it says so all the time, or until there is nothing to insist on any more.
        """
        for _ in range(_MOST_REFUSALS):
            reply = self.call(method, path, body, type)
            if reply.status != http.client.SERVICE_UNAVAILABLE:
                return reply
            if self._stop.wait(_PAUSE_SECONDS):
                break
        raise Refused(f"{method} {path}: {reply.body.decode()}")

    def create(self, queue: str) -> None:
        self._mark(f"creating {queue}")
        _expect(self.insist("PUT", f"/{queue}"), 201)
        self._mark(f"created {queue}")

    def delete(self, queue: str) -> None:
        self._mark(f"deleting {queue}")
        _expect(self.insist("DELETE", f"/{queue}"), 200)
        self._mark(f"deleted {queue}")

    def publish(self, queue: str, body: bytes, type: str) -> str:
        content = digest(body, type)
        self._mark(f"publishing {content}")
        if self._has_keys:
            self._mark(f"keyed {queue} {content}")
        reply = _expect(self.insist("POST", f"/{queue}/messages", body, type), 201)
        self._mark(f"published {reply.id} {queue} {content}")
        return reply.id

    def publish_lot(self, queue: str, bodies: Sequence[str], type: str) -> None:
        contents = [digest(body.encode(), type) for body in bodies]
        for content in contents:
            self._mark(f"publishing {content}")
        lines = "".join(json.dumps({"body": body, "content_type": type}) + "\n" for body in bodies)
        reply = _expect(self.insist("POST", f"/{queue}/messages/batch", lines.encode(), "application/x-ndjson"), 200)
        for content, line in zip(contents, reply.body.splitlines(), strict=True):
            outcome = json.loads(line)
            assert outcome["status"] == http.client.CREATED, outcome
            self._mark(f"published {outcome['id']} {queue} {content}")

    def fetch(self, queue: str, wait_seconds: float = 0) -> str | None:
        """The id of a message that is leased now; None when there is none, and none comes in so many seconds."""
        asked_ns = time.time_ns()
        reply = _expect(self.insist("GET", f"/{queue}/messages?wait={wait_seconds}"), 200, 204)
        if reply.status == http.client.NO_CONTENT:
            return None
        until_ns = asked_ns + round(LEASE_SECONDS * 1e9)
        self._mark(f"leased {reply.id} {queue} {digest(reply.body, reply.type)} {until_ns}")
        return reply.id

    def remove(self, queue: str, id: str) -> None:
        self._mark(f"removing {id}")
        if _expect(self.insist("DELETE", f"/{queue}/messages/{id}"), 202, 404).status == http.client.ACCEPTED:
            self._mark(f"removed {id}")


class Workload:
    """All clients of one plan.

    Args:
        random: says what messages are like, and which of them are removed.
    """

    def __init__(self, plan: Plan, ports: Sequence[int], mark: Mark, random: Random) -> None:
        self._stop = threading.Event()
        self._plan = plan
        self._ports = ports
        self._mark = mark
        self._random = random
        self._published = threading.Event()

    def run(self) -> None:
        """Let all of them work, and wait for their end. What goes wrong in one is raised here."""
        with_one(self._client(0), self._begin)
        plan = self._plan
        with ThreadPoolExecutor(plan.publishers + plan.consumers + plan.churners) as pool:
            publishers = self._start(pool, self._publish, plan.publishers)
            others = self._start(pool, self._consume, plan.consumers) + self._start(pool, self._churn, plan.churners)
            wait(publishers, _LONGEST_SECONDS)
            self._published.set()
            wait(others, _LONGEST_SECONDS)
            self._stop.set()
        self._mark("end")
        for ended in (*publishers, *others):
            ended.result()

    def _begin(self, client: Client) -> None:
        """Queues, and some messages one after another: what one costs when nobody shares its barrier."""
        for queue in (KEPT, WORKED):
            client.create(queue)
        self._mark("begin")
        for number in range(ALONE):
            client.publish(KEPT, f"alone {number}".encode(), "text/plain")
        self._mark("crowd")

    def _publish(self, client: Client, number: int, random: Random) -> None:
        for count in range(self._plan.messages):
            queue = KEPT if not self._plan.consumers or count % 3 == 0 else WORKED
            name = f"{number}.{count}"
            if self._plan.lot > 1:
                bodies = [f"{name}.{place} {random.randbytes(40).hex()}" for place in range(self._plan.lot)]
                client.publish_lot(queue, bodies, "text/plain")
            else:
                client.publish(queue, *self._content(name, count + number, random))

    def _content(self, name: str, turn: int, random: Random) -> tuple[bytes, str]:
        if self._plan.has_large and turn % 4:
            return name.encode() + random.randbytes(random.choice((20_000, 70_000, 300_000))), "text/plain"
        return _content(name, turn, random)

    def _consume(self, client: Client, number: int, random: Random) -> None:
        """Until everything was published, and nothing more comes for longer than a lease."""
        quiet_since = time.monotonic()
        while not self._published.is_set() or time.monotonic() < quiet_since + 1.2 * LEASE_SECONDS:
            id = client.fetch(WORKED, _WAIT_SECONDS)
            if id is None:
                if self._stop.is_set():
                    return
                continue
            quiet_since = time.monotonic()
            if random.random() < 0.7:
                client.remove(WORKED, id)

    def _churn(self, client: Client, number: int, random: Random) -> None:
        """Each round makes a queue, uses and deletes it; every other one then makes it anew."""
        for count in range(self._plan.rounds):
            queue = f"churn-{number}-{count}"
            self._use(client, queue, random)
            client.delete(queue)
            if count % 2:
                self._use(client, queue, random)

    def _use(self, client: Client, queue: str, random: Random) -> None:
        """Afterwards the queue has a message in READY, and perhaps one that is leased and one on its way out."""
        client.create(queue)
        ids = [client.publish(queue, *_content(queue, random.randrange(12), random)) for _ in range(3)]
        leased = client.fetch(queue)
        if random.random() < 0.5:
            client.remove(queue, leased or ids[-1])

    def _client(self, number: int) -> Client:
        port = self._ports[number % len(self._ports)]
        return Client(port, self._mark, self._stop, has_keys=self._plan.has_keys)

    def _start(
        self, pool: ThreadPoolExecutor, work: Callable[[Client, int, Random], None], count: int
    ) -> list[Future[None]]:
        return [pool.submit(self._work, work, number, Random(self._random.getrandbits(64))) for number in range(count)]

    def _work(self, work: Callable[[Client, int, Random], None], number: int, random: Random) -> None:
        with_one(self._client(number), lambda client: work(client, number, random))


def with_one(client: Client, work: Callable[[Client], None]) -> None:
    """Do some work, and close the connection."""
    try:
        work(client)
    finally:
        client.close()


def _content(name: str, turn: int, random: Random) -> tuple[bytes, str]:
    """A body and its content type: small, empty, a page, large, or with a long type."""
    if turn % 12 == 7:
        return name.encode() + random.randbytes(LARGE), "application/octet-stream"
    if turn % 6 == 5:
        return b"", f"text/plain; name={name.replace(' ', '_')}"
    if turn % 6 == 4:
        return name.encode(), f"{LONG_TYPE}; name={name.replace(' ', '_')}"
    return name.encode() + random.randbytes(random.choice((10, 200, 5000, 40_000))), "text/plain"


def _expect(reply: Reply, *statuses: int) -> Reply:
    assert reply.status in statuses, f"{reply.status}: {reply.body[:300]!r}"
    return reply
