"""The daemon's processor time for what SQS asks, against the same over mq's own HTTP.

Both speak over bare sockets, 32 connections at a time, and take turns in one run: each turn sends messages, and then
receives and deletes them. A request is written on all connections before the first answer is read, so that the daemon
gathers as many as come together. The processor time is what the kernel says of the daemon's process. A batch of ten
over mq's own HTTP stands beside that over SQS: what the broker and the store take for ten messages is in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from benchmarks.figures import Figure, at_most, median_ratio, spread
from benchmarks.http import BODY, Client, _daemon, _processor_seconds

CONNECTIONS: Final = 32
BATCH: Final = 10
SEND, SEND_BATCH, TAKE = "SendMessage", "SendMessageBatch of ten, a message", "ReceiveMessage and DeleteMessage"
OWN, OWN_BATCH, OWN_TAKE = "publish", "publish of ten together, a message", "fetch and remove"
WANTED: Final = {SEND: 1.3, SEND_BATCH: 0.35, TAKE: 1.4, OWN_BATCH: None}
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
    costs: dict[str, list[float]] = {name: [] for name in (*WANTED, OWN, OWN_TAKE)}
    with _daemon(folder) as (port, pid):
        crowd = Crowd(port, pid)
        crowd.ask([("PUT", "/http", b"", ()), ("PUT", "/sqs", b"", ())])
        for turn in range(rounds + 1):
            taken = _turn(crowd, messages)
            for name in costs if turn else ():
                costs[name].append(taken[name])
    return [_figure(name, bound, costs) for name, bound in WANTED.items()]


def _figure(name: str, bound: float | None, costs: dict[str, list[float]]) -> Figure:
    against = OWN_TAKE if name == TAKE else OWN
    title = f"SQS: processor time of {name}, against {against} over HTTP"
    if name == OWN_BATCH:
        title = f"HTTP: processor time of {name}, against {against}"
    ratio = median_ratio(costs[name], costs[against])
    note = f"{spread(costs[name], 'µs')} against {spread(costs[against], 'µs')}"
    return Figure(title, ratio, note=note) if bound is None else at_most(title, ratio, bound, note=note)


def _turn(crowd: Crowd, count: int) -> dict[str, float]:
    text = BODY.decode()
    publish = [("POST", "/http/messages", BODY, ())] * count
    send = [_action("SendMessage", MessageBody=text)] * count
    entries = [{"Id": f"{place}", "MessageBody": text} for place in range(BATCH)]
    send_batch = [_action("SendMessageBatch", Entries=entries)] * (count // BATCH)
    lines = (json.dumps({"body": text}).encode() + b"\n") * BATCH
    own_batch = [("POST", "/http/messages/batch", lines, ("Content-Type: application/x-ndjson",))] * (count // BATCH)
    batched = count // BATCH * BATCH
    return {
        OWN: crowd.microseconds(lambda: crowd.ask(publish), count),
        SEND: crowd.microseconds(lambda: crowd.ask(send), count),
        OWN_TAKE: crowd.microseconds(lambda: _take_http(crowd, count), count),
        TAKE: crowd.microseconds(lambda: _take_sqs(crowd, count), count),
        SEND_BATCH: crowd.microseconds(lambda: crowd.ask(send_batch), batched),
        "its messages away": crowd.microseconds(lambda: _take_sqs(crowd, batched), batched),
        OWN_BATCH: crowd.microseconds(lambda: crowd.ask(own_batch), batched),
        "these, too": crowd.microseconds(lambda: _take_http(crowd, batched), batched),
    }


def _take_http(crowd: Crowd, count: int) -> None:
    lines = crowd.ask([("GET", "/http/messages?max=1&wait=10", b"", ())] * count)
    crowd.ask([("DELETE", f"/http/messages/{json.loads(line)['id']}", b"", ()) for line in lines])


def _take_sqs(crowd: Crowd, count: int) -> None:
    answers = crowd.ask([_action("ReceiveMessage", WaitTimeSeconds=10)] * count)
    handles = [json.loads(answer)["Messages"][0]["ReceiptHandle"] for answer in answers]
    crowd.ask([_action("DeleteMessage", ReceiptHandle=handle) for handle in handles])
