"""``python -m benchmarks.sqs``: the daemon's processor time for what SQS asks, against the same over mq's own HTTP.

Both speak over bare sockets, 32 connections at a time, and take turns in one run: each turn sends messages, and then
receives and deletes them. A request is written on all connections before the first answer is read, so that the daemon
gathers as many as come together. The processor time is what the kernel says of the daemon's process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from typing import Any, Final

from benchmarks.figures import Figure, at_most, median_ratio, spread
from benchmarks.http import BODY, Client, _daemon, _processor_seconds

CONNECTIONS: Final = 32
BATCH: Final = 10
SEND, SEND_BATCH, TAKE = "SendMessage", "SendMessageBatch of ten, a message", "ReceiveMessage and DeleteMessage"
WANTED: Final = {SEND: 1.3, SEND_BATCH: 0.35, TAKE: 1.4}
_URL: Final = "http://localhost/000000000000/sqs"


class Crowd:
    """Connections that ask at once.

    Args:
        port: of the daemon.
        pid: of its process.
    """

    def __init__(self, port: int, pid: int) -> None:
        self._clients = [Client(port) for _ in range(CONNECTIONS)]
        self._pid = pid

    def microseconds(self, work: Callable[[], object], count: int) -> float:
        """The daemon's processor time for some work, for each of `count`."""
        before = _processor_seconds(self._pid)
        work()
        return (_processor_seconds(self._pid) - before) / count * 1e6

    def ask(self, requests: list[tuple[str, str, bytes, tuple[str, ...]]]) -> list[bytes]:
        """The answers to requests, each with method, path, body and more lines of its head."""
        answers: list[bytes] = []
        for some in _slices(requests):
            for client, (method, path, body, lines) in zip(self._clients, some, strict=False):
                client.send(method, path, body, *lines)
            answers += [client.receive() for client, _ in zip(self._clients, some, strict=False)]
        return answers


def _slices(requests: list[Any]) -> list[list[Any]]:
    return [requests[start : start + CONNECTIONS] for start in range(0, len(requests), CONNECTIONS)]


def _action(name: str, **wanted: Any) -> tuple[str, str, bytes, tuple[str, ...]]:
    lines = (f"X-Amz-Target: AmazonSQS.{name}", "Content-Type: application/x-amz-json-1.0")
    return "POST", "/", json.dumps({"QueueUrl": _URL} | wanted).encode(), lines


def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """The three ratios.

    Args:
        folder: where the root is made.
        rounds: turns to count; one more warms up.
        messages: in a turn.
    """
    costs: dict[str, list[float]] = {name: [] for name in (SEND, SEND_BATCH, TAKE, "publish", "fetch and remove")}
    with _daemon(folder) as (port, pid):
        crowd = Crowd(port, pid)
        crowd.ask([("PUT", "/http", b"", ()), ("PUT", "/sqs", b"", ())])
        for turn in range(rounds + 1):
            taken = _turn(crowd, messages)
            for name in costs if turn else ():
                costs[name].append(taken[name])
    against = {SEND: "publish", SEND_BATCH: "publish", TAKE: "fetch and remove"}
    return [
        at_most(
            f"SQS: processor time of {name}, against {against[name]} over HTTP",
            median_ratio(costs[name], costs[against[name]]),
            bound,
            note=f"{spread(costs[name], 'µs')} against {spread(costs[against[name]], 'µs')}",
        )
        for name, bound in WANTED.items()
    ]


def _turn(crowd: Crowd, count: int) -> dict[str, float]:
    text = BODY.decode()
    publish = [("POST", "/http/messages", BODY, ())] * count
    send = [_action("SendMessage", MessageBody=text)] * count
    entries = [{"Id": f"{place}", "MessageBody": text} for place in range(BATCH)]
    send_batch = [_action("SendMessageBatch", Entries=entries)] * (count // BATCH)
    return {
        "publish": crowd.microseconds(lambda: crowd.ask(publish), count),
        SEND: crowd.microseconds(lambda: crowd.ask(send), count),
        "fetch and remove": crowd.microseconds(lambda: _take_http(crowd, count), count),
        TAKE: crowd.microseconds(lambda: _take_sqs(crowd, count), count),
        SEND_BATCH: crowd.microseconds(lambda: crowd.ask(send_batch), count // BATCH * BATCH),
        "take the batches": crowd.microseconds(lambda: _take_sqs(crowd, count // BATCH * BATCH), count),
    }


def _take_http(crowd: Crowd, count: int) -> None:
    lines = crowd.ask([("GET", "/http/messages?max=1&wait=10", b"", ())] * count)
    crowd.ask([("DELETE", f"/http/messages/{json.loads(line)['id']}", b"", ()) for line in lines])


def _take_sqs(crowd: Crowd, count: int) -> None:
    answers = crowd.ask([_action("ReceiveMessage", WaitTimeSeconds=10)] * count)
    handles = [json.loads(answer)["Messages"][0]["ReceiptHandle"] for answer in answers]
    crowd.ask([_action("DeleteMessage", ReceiptHandle=handle) for handle in handles])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-") as folder:
        for figure in measure(folder, given.rounds, given.messages):
            print(f"{figure.name}: {figure.value:.2f} ({figure.wanted}); {figure.note}")


if __name__ == "__main__":
    main()
