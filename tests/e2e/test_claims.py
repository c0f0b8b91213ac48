"""Claims whose leases end while they are acknowledged, and a daemon that is killed meanwhile: each message is in one
batch, and in no other.

A consumer takes batches over HTTP as Spark's source does; in every second run somebody else fetches what has come back.
``--claim-runs=N`` makes it long, with 10,000 messages a run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from mq.broker.config import MARGIN_SECONDS
from tests.e2e.clients import Answer, Broken, Caller, Down
from tests.e2e.daemon import Daemon

LEASES: Final = (1, 2, 3, 5)
SIZES: Final = (500, 2_000, 5_000, 10_000)
MANY: Final = 10_000
FEW: Final = 2_000
KILLS: Final = 5
FETCHES: Final = 60
_PAGE: Final = 1_000
_RUN_SECONDS: Final = 600.0
_PATIENCE_SECONDS: Final = 20.0
_CLAIM: Final = "/q/consumers/c/claim"
_TRIED_AGAIN: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


class Row(NamedTuple):
    """A message as the consumer read it."""

    id: str
    body: str


class Asking:
    """Asks a daemon that dies now and then until it answers."""

    def __init__(self, daemon: Daemon) -> None:
        self._caller = Caller([daemon])
        self._until = time.monotonic() + _RUN_SECONDS

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self._caller.close()

    def ask(self, method: str, target: str, body: bytes | None = None) -> Answer:
        while True:
            assert time.monotonic() < self._until, f"no answer to {method} {target}"
            try:
                answer = self._caller.call(method, target, body)
            except (Down, Broken):
                continue
            if answer.status not in _TRIED_AGAIN:
                return answer
            time.sleep(0.05)

    def members(self, method: str, target: str) -> dict[str, Any]:
        """The object in the answer, which has to be good news."""
        answer = self.ask(method, target)
        assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED), answer
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def lines(self, method: str, target: str, body: bytes | None = None) -> list[dict[str, Any]] | None:
        """The lines of the answer; None where a lease has ended, or nothing is there."""
        answer = self.ask(method, target, body)
        if answer.status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.NO_CONTENT):
            return None
        assert answer.status == HTTPStatus.OK, answer
        return [json.loads(line) for line in answer.body.splitlines()]


class Consumer:
    """Takes batch after batch: writes each to its sink, and acknowledges it when the lease ends, or about then.

    Args:
        lease: seconds.
        most: messages of a batch.
        renews: whether a batch that is written may be renewed before it is acknowledged. What somebody else has got by
            then is no more part of it.

    Attributes:
        sink: what was written, by the number of the batch.
        gone: when the acknowledgement of a message was answered, by its id.
    """

    def __init__(self, asking: Asking, random: Random, messages: int, lease: float, most: int, *, renews: bool) -> None:
        self.sink: dict[int, list[Row]] = {}
        self.gone: dict[str, float] = {}
        self.ends = 0.0
        self.acknowledges = threading.Event()
        self._asking = asking
        self._random = random
        self._messages = messages
        self._lease = lease
        self._most = most
        self._renews = renews
        self._epoch = 0

    def run(self) -> None:
        """Until it has had so many as there are, or nothing comes for long."""
        came = time.monotonic()
        while len(self.gone) < self._messages and time.monotonic() < came + _PATIENCE_SECONDS:
            if not self._epoch or self._random.random() < 0.1:  # started, or again, as after a crash
                self._epoch = self._asking.members("POST", "/q/consumers/c")["epoch"]
            batch = max(self.sink, default=0)
            if batch:
                self._acknowledge(batch)
            if self._claim(batch + 1) is not None:
                self.sink[batch + 1], came = self._read(batch + 1), time.monotonic()
            else:
                time.sleep(0.1)  # somebody else has it

    def _claim(self, batch: int) -> int | None:
        """How many messages it has; None where there is nothing to claim."""
        answer = self._asking.ask("PUT", f"{_CLAIM}?{self._named(batch)}&lease={self._lease}&max={self._most}")
        if answer.status == HTTPStatus.NO_CONTENT:
            return None
        assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED), answer
        self.ends = time.monotonic() + self._lease
        return int(json.loads(answer.body)["messages"])

    def _read(self, batch: int) -> list[Row]:
        """All of it, under one lease."""
        rows: list[Row] = []
        count = self._claim(batch) or 0
        while len(rows) < count:
            page = self._asking.lines("GET", f"{_CLAIM}?{self._named(batch)}&from={len(rows)}&to={count}&max={_PAGE}")
            if page is None:
                rows, count = [], self._claim(batch) or 0
            else:
                assert page, f"batch {batch} ends after {len(rows)} of {count} messages"
                rows += [Row(line["id"], line["body"]) for line in page]
        return rows

    def _acknowledge(self, batch: int) -> None:
        if self._renews and self._random.random() < 0.3:
            time.sleep(self._lease / 3)
            if self._asking.members("GET", "/q/consumers/c")["batch"] == batch:
                self._claim(batch)
        if self._random.random() < 0.8:
            time.sleep(max(0.0, self.ends - time.monotonic() + self._random.uniform(-0.3, 0.1)))
        self.acknowledges.set()
        answer = self._asking.ask("DELETE", f"{_CLAIM}?{self._named(batch)}")
        self.acknowledges.clear()
        assert answer.status == HTTPStatus.ACCEPTED, answer
        for row in self.sink[batch]:
            self.gone.setdefault(row.id, answer.answered)

    def _named(self, batch: int) -> str:
        return f"batch={batch}&epoch={self._epoch}"


class Fetched(NamedTuple):
    """A message that somebody else fetched, and when he asked."""

    id: str
    asked: float


def fetch_some(daemon: Daemon, random: Random, done: threading.Event) -> list[Fetched]:
    """What somebody gets who fetches some messages now and then, and forgets them."""
    found: list[Fetched] = []
    with Asking(daemon) as asking:
        for _ in range(FETCHES):
            if done.wait(random.uniform(0.0, 0.5)):
                break
            asked = time.monotonic()
            lines = asking.lines("GET", f"/q/messages?max={random.choice((1, 50, 500))}&visibility=1") or []
            found += [Fetched(line["id"], asked) for line in lines]
    return found


def kill_often(daemon: Daemon, random: Random, consumer: Consumer, done: threading.Event) -> int:
    """kill -9 at any instant, most often during an acknowledgement; the next start is at once, or when the names of the
    leases in the store say that they end. How often."""
    for kills in range(KILLS):
        if random.random() < 0.7:
            consumer.acknowledges.wait(random.uniform(1.0, 10.0))
            done.wait(random.expovariate(20.0))
        else:
            done.wait(random.uniform(0.0, 5.0))
        if done.is_set():
            return kills
        daemon.kill()
        if random.random() < 0.5:
            time.sleep(max(0.0, consumer.ends + MARGIN_SECONDS - time.monotonic() + random.uniform(-1.5, 0.2)))
        daemon.start()
    return KILLS


def run(root: Path, seed: int, messages: int, lease: float, *, is_shared: bool) -> str:
    """One run, judged. What it was, in a line.

    Raises:
        AssertionError: a message was in no batch, in two, or handed out when it was acknowledged.
    """
    random = Random(seed)
    bodies = [f"{number:06d}" for number in range(messages)]
    done = threading.Event()
    with Daemon(root, root.parent / f"{root.name}.log") as daemon, Asking(daemon) as asking:
        asking.ask("PUT", "/q")
        for start in range(0, messages, _PAGE):
            entries = "\n".join(json.dumps({"body": body}) for body in bodies[start : start + _PAGE])
            answers = asking.lines("POST", "/q/messages/batch", entries.encode()) or []
            assert [answer["status"] for answer in answers] == [HTTPStatus.CREATED] * len(answers)
        most = random.choice([size for size in SIZES if size <= 2_000 * lease])
        randoms = [Random(random.random()) for _ in range(3)]
        consumer = Consumer(asking, randoms[0], messages, lease, most, renews=not is_shared)
        with ThreadPoolExecutor(2) as pool:
            killing = pool.submit(kill_often, daemon, randoms[1], consumer, done)
            fetching = pool.submit(fetch_some, daemon, randoms[2], done) if is_shared else None
            try:
                consumer.run()
            finally:
                done.set()
            kills, fetched = killing.result(), [] if fetching is None else fetching.result()
        daemon.kill()
        daemon.start()
        left = asking.members("GET", "/q")
        assert (left["ready"], left["leased"], left["delayed"]) == (0, 0, 0), left
        daemon.stop()
        assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.last_words(60)
    found = Counter(row.body for rows in consumer.sink.values() for row in rows)
    lost, twice = set(bodies) - set(found), sum(found.values()) - len(found)
    late = [each for each in fetched if each.asked > consumer.gone.get(each.id, each.asked)]
    what = (
        f"seed {seed}: lease {lease} s, {len(consumer.sink)} batches of {most}, {kills} kills, {len(fetched)} fetched: "
        f"{len(found)} of {messages} messages, {twice} twice, {len(lost)} lost, {len(late)} handed out too late"
    )
    assert (twice, len(lost), len(late)) == (0, 0, 0), what
    return what


@pytest.mark.slow
def test_each_message_is_in_one_batch(claim_runs: int | None, seed: int) -> None:
    count, messages = (2, FEW) if claim_runs is None else (claim_runs, MANY)
    with tempfile.TemporaryDirectory(prefix="mq-") as folder:
        for number in range(count):
            lease = Random(seed).choice(LEASES[:2]) if claim_runs is None else LEASES[number // 2 % len(LEASES)]
            what = run(Path(folder, f"root{number}"), seed + number, messages, lease, is_shared=number % 2 == 1)
            sys.stdout.write(f"{what}\n")
            sys.stdout.flush()
