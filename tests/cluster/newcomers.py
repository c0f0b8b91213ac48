"""Clients that come from outside and move between nodes: they make a queue at one node and publish to it at another at
once, to queues that others made, through exchanges, to names that two want; they purge, and let leases last longer.

A program: ``python -m tests.cluster.newcomers LOG SEED NAME=ADDRESS...``. None of its publishes is mandatory: what a
node confirms is all that it is told. Everything goes to the log as in :mod:`tests.cluster.load`, and beside that

* ``made``: a queue was made, ``place`` is ``cluster`` or the node that has it for itself;
* ``purging``: it may be gone; ``removed``: it is, since a purge was answered;
* ``extended``: a lease lasts for so many ``seconds`` from the instant ``asked``.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TextIO

import httpx
import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError, UnroutableError

WORKERS = 6
MOST_KNOWN = 100
PATIENCE_SECONDS = 25.0
PAUSE_SECONDS = 0.1
QUORUM = {"x-queue-type": "quorum"}
HTTP_PORT, AMQP_PORT = 8080, 5672
EXCHANGE = "amq.topic"
EXTENDED_SECONDS = 12.0


class Failed(Exception):
    """Nobody knows what became of it."""


class Log:
    """What all workers note."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def note(self, event: str, body: str, **more: Any) -> None:
        line = json.dumps({"at": time.monotonic_ns(), "event": event, "body": body, **more})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()


class Worker:
    """One client after the other."""

    def __init__(self, number: int, chance: random.Random, nodes: dict[str, str], known: list[str], log: Log) -> None:
        self._number = number
        self._chance = chance
        self._nodes = nodes
        self._known = known
        self._log = log
        self._count = itertools.count()
        self._http = httpx.Client(timeout=PATIENCE_SECONDS)

    def run(self) -> None:
        acts = (
            *(self.make_and_publish, self.publish, self.publish, self.publish, self.publish, self.publish),
            *(self.bind_and_publish, self.want_a_name, self.purge, self.extend, self.delete),
        )
        while True:
            try:
                self._chance.choice(acts)()
            except (Failed, httpx.HTTPError, AMQPError, OSError):
                time.sleep(PAUSE_SECONDS)
            time.sleep(PAUSE_SECONDS)

    # What they do

    def make_and_publish(self) -> None:
        queue = self._make(self._node())
        self._publish(self._node(), queue, 10)

    def publish(self) -> None:
        if self._known:
            self._publish(self._node(), self._chance.choice(self._known), 40)

    def bind_and_publish(self) -> None:
        """What one node has bound another one routes, through an exchange of the server's or of ours."""
        queue, exchange = self._make(self._node()), EXCHANGE
        if self._chance.random() < 0.5:
            exchange = f"x{self._number}"
            with self._channel(self._node()) as channel:
                channel.exchange_declare(exchange, "topic", durable=True)
        with self._channel(self._node()) as channel:
            channel.queue_bind(queue, exchange, f"{queue}.#")
        self._publish_amqp(self._node(), queue, 10, exchange=exchange, key=f"{queue}.x")

    def want_a_name(self) -> None:
        """A queue of one node and one of the cluster of the same name, one after the other or at the same time."""
        queue, one, other = self._name(), self._node(), self._node()
        tries = [(one, "disk"), (other, "cluster")]
        self._chance.shuffle(tries)
        with ThreadPoolExecutor(2) as pool:
            for node, place in tries:
                trying = pool.submit(self._try_to_make, queue, node, place)
                if self._chance.random() < 0.5:
                    trying.result()
        for node in (one, other):
            self._publish_http(node, queue, 2)

    def purge(self) -> None:
        queue = self._make(self._node(), is_shared=False)
        stored = self._publish(self._node(), queue, 8)
        held = self._http.get(self._at(self._node(), queue, "/messages?visibility=5"))
        if held.status_code not in (200, 204):
            return
        for body in stored:
            self._log.note("purging", body)
        if self._http.post(self._at(self._node(), queue, "/purge")).status_code == 200:
            for body in stored:
                if body != held.text:  # that one was leased, and may have been let be
                    self._log.note("removed", body)

    def extend(self) -> None:
        queue = self._make(self._node(), is_shared=False)
        self._publish(self._node(), queue, 2)
        asked = time.monotonic_ns()
        reply = self._http.get(self._at(self._node(), queue, "/messages?visibility=4"))
        if reply.status_code != 200:
            return
        id, body = reply.headers["x-message-id"], reply.text
        self._log.note("got", body, asked=asked, id=id)
        asked = time.monotonic_ns()
        path = self._at(self._node(), queue, f"/messages/{id}")
        extended = self._http.patch(
            path, json={"visibility": EXTENDED_SECONDS}, headers={"if-match": reply.headers["etag"]}
        )
        if extended.status_code == 200:
            self._log.note("extended", body, asked=asked, seconds=EXTENDED_SECONDS)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            asked = time.monotonic_ns()
            other = self._http.get(self._at(self._node(), queue, "/messages?visibility=1"))
            if other.status_code == 200:
                self._log.note("got", other.text, asked=asked, id=other.headers["x-message-id"])
            time.sleep(0.5)

    def delete(self) -> None:
        queue = self._make(self._node(), is_shared=False)
        if self._http.delete(self._at(self._node(), queue)).status_code != 200:
            return
        node = self._node()
        reply = self._http.post(self._at(node, queue, "/messages"), content=b"x")
        if reply.status_code not in (404, 503):
            self._log.note("ghost", queue, node=node, status=reply.status_code)

    # How it is done

    def _make(self, node: str, *, is_shared: bool = True) -> str:
        queue = self._name()
        if self._chance.random() < 0.5:
            if self._http.put(self._at(node, queue, "?store=cluster")).status_code not in (200, 201):
                raise Failed
        else:
            with self._channel(node) as channel:
                channel.queue_declare(queue, durable=True, arguments=QUORUM)
        self._log.note("made", "", queue=queue, place="cluster", node=node)
        if is_shared:
            self._known.append(queue)
            del self._known[:-MOST_KNOWN]
        return queue

    def _try_to_make(self, queue: str, node: str, place: str) -> None:
        try:
            reply = self._http.put(self._at(node, queue, f"?store={place}"))
        except httpx.HTTPError:
            return
        if reply.status_code in (200, 201):
            self._log.note("made", "", queue=queue, place="cluster" if place == "cluster" else node, node=node)

    def _publish(self, node: str, queue: str, count: int) -> list[str]:
        publish = self._publish_http if self._chance.random() < 0.3 else self._publish_amqp
        return publish(node, queue, count)

    def _publish_http(self, node: str, queue: str, count: int) -> list[str]:
        stored = []
        for _ in range(count):
            body = self._body(queue, node)
            if self._http.post(self._at(node, queue, "/messages"), content=body).status_code == 201:
                self._log.note("stored", body)
                stored.append(body)
        return stored

    def _publish_amqp(self, node: str, queue: str, count: int, *, exchange: str = "", key: str = "") -> list[str]:
        stored = []
        properties = pika.BasicProperties(delivery_mode=2)
        with self._channel(node) as channel:
            channel.confirm_delivery()
            for _ in range(count):
                body = self._body(queue, node)
                try:
                    channel.basic_publish(exchange, key or queue, body.encode(), properties)
                except (NackError, UnroutableError):
                    continue
                self._log.note("stored", body)
                stored.append(body)
        return stored

    @contextmanager
    def _channel(self, node: str) -> Iterator[BlockingChannel]:
        parameters = pika.ConnectionParameters(
            self._nodes[node],
            AMQP_PORT,
            heartbeat=5,
            socket_timeout=5,
            stack_timeout=10,
            blocked_connection_timeout=PATIENCE_SECONDS,
        )
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def _at(self, node: str, queue: str, more: str = "") -> str:
        return f"http://{self._nodes[node]}:{HTTP_PORT}/{queue}{more}"

    def _node(self) -> str:
        return self._chance.choice(list(self._nodes))

    def _name(self) -> str:
        return f"n{self._number}-{next(self._count)}"

    def _body(self, queue: str, node: str) -> str:
        body = f"{queue}-{self._number}-{next(self._count)}-at-{node}"
        self._log.note("try", body, queue=queue)
        return body


def main(arguments: Sequence[str]) -> None:
    path, seed, *nodes = arguments
    known: list[str] = []
    with open(path, "a") as file:
        log = Log(file)
        named = dict(each.split("=") for each in nodes)
        workers = [Worker(number, random.Random(f"{seed}.{number}"), named, known, log) for number in range(WORKERS)]
        with ThreadPoolExecutor(WORKERS) as pool:
            for done in [pool.submit(worker.run) for worker in workers]:
                done.result()


if __name__ == "__main__":
    main(sys.argv[1:])
