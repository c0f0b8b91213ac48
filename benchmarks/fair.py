"""How long another client waits during one client's job of very many messages, and what the job costs a message.

The job's client and the other one are programs of their own, over AMQP. The other one publishes a message, confirmed
and transient, and gets it, on a queue of its own, again and again. Figures are of transient messages of 100 bytes.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import pika

from benchmarks.counts import processor_seconds
from benchmarks.figures import Figure, at_most
from benchmarks.systems.mq import MqAmqp

MOST_MS: Final = 100.0
"""The longest round trip that a job may cause."""
_BODY: Final = b"x" * 100
_TRANSIENT: Final = pika.BasicProperties(delivery_mode=1)
_DEAD: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
_PATIENCE_SECONDS: Final = 600.0
_PAUSE_SECONDS: Final = 0.01
_OF_A_ROUND: Final = 0.0015
"""About the processor seconds of one of the other client's rounds, which are not the job's."""

Job = Callable[[int, int], Callable[[], object]]
"""From a port and a number of messages to the job itself."""


def measure(folder: str, messages: int) -> list[Figure]:
    """Each job once, with so many messages."""
    figures: list[Figure] = []
    with MqAmqp().start(Path(folder)) as server:
        [port] = server.ports
        for name, prepare in JOBS.items():
            job = prepare(port, messages)
            with _bystander(port) as stop:
                began, used = time.monotonic(), processor_seconds(server.pids)
                job()
                seconds, used = time.monotonic() - began, processor_seconds(server.pids) - used
                times = [1e3 * each for each in stop()]
            note = f"median {median(times):.1f} ms of {len(times)}; the job took {seconds:.1f} s"
            if name != "nothing":
                note += f", {(used - _OF_A_ROUND * len(times)) / messages * 1e6:.0f} µs of processor time a message"
            figures.append(
                at_most(f"another client's longest round trip: {name}", max(times), MOST_MS, "ms", note=note)
            )
    return figures


@contextmanager
def _bystander(port: int) -> Iterator[Callable[[], list[float]]]:
    """Another client, in a process of its own. Call what this yields to stop it: the seconds of its rounds."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_go_round, args=(port, theirs), daemon=True)
    process.start()
    ours.recv()

    def stop() -> list[float]:
        ours.send(None)
        times: list[float] = ours.recv()
        return times

    try:
        yield stop
    finally:
        process.join(10)
        process.kill()


def _go_round(port: int, said: Connection) -> None:
    channel = _connect(port).channel()
    channel.confirm_delivery()
    queue = uuid.uuid4().hex
    channel.queue_declare(queue)
    times: list[float] = []
    for number in range(1_000_000):
        began = time.monotonic()
        channel.basic_publish("", queue, b"x", _TRANSIENT)
        channel.basic_get(queue, auto_ack=True)
        if number < 20:  # the first ones bring up what they need
            continue
        if number == 20:
            said.send(None)
        times.append(time.monotonic() - began)
        if said.poll():
            break
        time.sleep(_PAUSE_SECONDS)
    said.send(times)


# The jobs


def _connect(port: int) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))


def _filled(port: int, messages: int, arguments: dict[str, Any] | None = None, **more: Any) -> tuple[Any, Any]:
    """A connection and its channel, and a queue `q` with so many messages, made anew."""
    connection = _connect(port)
    channel = connection.channel()
    for queue in ("q", "dead"):
        channel.queue_delete(queue)
    channel.queue_declare("dead")
    channel.queue_declare("q", arguments=arguments, **more)
    _publish(channel, messages)
    return connection, channel


def _publish(channel: Any, messages: int) -> None:
    for _ in range(messages):
        channel.basic_publish("", "q", _BODY, _TRANSIENT)
    _until(channel, "q", messages)


def _held(connection: Any, channel: Any, messages: int) -> None:
    """Consume so many messages, and acknowledge none."""
    last = 0

    def take(_: Any, method: Any, *__: Any) -> None:
        nonlocal last
        last = method.delivery_tag

    channel.basic_consume("q", take)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while last < messages and time.monotonic() < deadline:
        connection.process_data_events(0.5)


def _until(channel: Any, queue: str, messages: int) -> None:
    """Wait until a queue has so many messages."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while channel.queue_declare(queue, passive=True).method.message_count != messages:
        if time.monotonic() > deadline:
            raise RuntimeError(f"queue {queue} never had {messages} messages")
        time.sleep(0.1)


def _ending(end: Callable[[Any, int], object], queue: str, *, are_moved: bool) -> Job:
    """The end of all deliveries of a connection at once, and which queue has them all afterwards, or none."""

    def prepare(port: int, messages: int) -> Callable[[], None]:
        connection, channel = _filled(port, messages, _DEAD)
        _held(connection, channel, messages)
        other = _connect(port).channel()

        def job() -> None:
            end(channel, messages)
            _until(other, queue, messages if are_moved else 0)

        return job

    return prepare


def _requeue(channel: Any, last: int) -> None:
    channel.basic_cancel(channel.consumer_tags[0])
    channel.basic_nack(last, multiple=True, requeue=True)


def _expiring(port: int, messages: int) -> Callable[[], None]:
    _, channel = _filled(port, 0)
    channel.queue_delete("q")
    channel.queue_declare("q", arguments=_DEAD | {"x-message-ttl": 1000 * (10 + messages // 1000)})
    _publish(channel, messages)
    return lambda: _until(channel, "dead", messages)


def _on_channel(act: Callable[[Any, int], object], *, is_filled: bool = True) -> Job:
    """What a channel does, with the messages in the queue or without."""

    def prepare(port: int, messages: int) -> Callable[[], object]:
        _, channel = _filled(port, messages if is_filled else 0)
        return partial(act, channel, messages)

    return prepare


JOBS: Final[dict[str, Job]] = {
    "nothing": lambda port, messages: lambda: time.sleep(3),
    "publish without confirms": _on_channel(_publish, is_filled=False),
    "acknowledge with multiple": _ending(lambda channel, last: channel.basic_ack(last, True), "q", are_moved=False),
    "requeue with multiple": _ending(_requeue, "q", are_moved=True),
    "reject with multiple, to a dead-letter queue": _ending(
        lambda channel, last: channel.basic_nack(last, multiple=True, requeue=False), "dead", are_moved=True
    ),
    "a consumer vanishes": _ending(  # pika has no other way to go without a word
        lambda channel, _: channel.connection._impl._transport._sock.shutdown(2), "q", are_moved=True
    ),
    "expire, to a dead-letter queue": _expiring,
    "purge": _on_channel(lambda channel, _: channel.queue_purge("q")),
    "delete the queue": _on_channel(lambda channel, _: channel.queue_delete("q")),
}
"""Each brings the messages there, and returns the job itself."""
