"""Requests over HTTP and SQS, exchanges and schedules, with very many messages, queues, bindings or schedules."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import trio
from pamqp import commands

from mq import turns
from mq.amqp.server.exchanges import TopologyPublisher, declared
from mq.broker import Draft
from mq.doors.budget import Budget
from mq.doors.exchanges import Exchanges
from mq.message import QueueName
from mq.schedules.schedule import KIND, Schedule
from mq.schedules.scheduler import Scheduler
from mq.sqs.door import SqsDoor
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from tests.amqp.dialling import Client
from tests.amqp.talking import words
from tests.fair.jobs import Prepare, Run
from tests.fair.world import BODY, World

REQUESTS: Final[dict[str, Prepare]] = {}
"""Name -> brings the messages there, and returns the requests themselves."""

_BATCH: Final = 1000
_SQS_BATCH: Final = 10
_MANY: Final = 10_000
"""Queues, bindings or schedules, at most."""
_TEXT: Final = BODY.decode()


def request(prepare: Prepare) -> Prepare:
    REQUESTS[prepare.__name__] = prepare
    return prepare


class Doors:
    """The HTTP and SQS servers of a world, without connections."""

    def __init__(self, world: World, schedules: Scheduler | None = None) -> None:
        exchanges, amqp = Exchanges(), world.house.door
        exchanges.told_by(partial(declared, amqp.topology))
        exchanges.publisher = TopologyPublisher(amqp.topology, amqp.copies, amqp.dead_letters)
        budget = Budget()
        endpoints = Endpoints(
            world.broker, 1 << 20, budget=budget, connections=amqp.seen, exchanges=exchanges, schedules=schedules
        )
        self._sqs = SqsDoor(endpoints, world.broker, budget, world.nursery)

    async def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
        """The answer to a request, which succeeds."""
        path, _, query = target.partition("?")
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with aclosing(_once(body)) as stream:
            asked = Request(method, path.encode(), query.encode(), given, stream, len(body))
            reply = await self._sqs.handle(asked)
            whole = (
                reply.body if isinstance(reply.body, bytes) else b"".join([bytes(part) async for part in reply.body])
            )
        assert reply.status < 300, whole
        return whole

    async def act(self, action: str, **wanted: Any) -> Mapping[str, Any]:
        """The answer to an action of SQS, which succeeds."""
        headers = {"content_type": "application/x-amz-json-1.0", "x_amz_target": f"AmazonSQS.{action}", "host": "mq"}
        answer = await self.ask("POST", "/", json.dumps(wanted).encode(), **headers)
        found: Mapping[str, Any] = json.loads(answer) if answer else {}
        assert not found.get("Failed")
        return found


def _url(queue: str) -> str:
    return f"http://mq/000000000000/{queue}"


async def _once(body: bytes) -> AsyncGenerator[bytes]:
    if body:
        yield body


def _batches(count: int, most: int = _BATCH) -> Iterator[int]:
    for at in range(0, count, most):
        yield min(most, count - at)


# HTTP


@request
async def publish_json_lines(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    doors, lines = Doors(world), b'{"body": "%s"}\n' % BODY

    async def run() -> None:
        for size in _batches(count):
            await doors.ask("POST", "/q/messages/batch", lines * size, content_type="application/jsonl")

    return lambda: world.serve(run)


@request
async def publish_json_array(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    doors = Doors(world)

    async def run() -> None:
        for size in _batches(count):
            document = json.dumps([{"body": _TEXT}] * size).encode()
            await doors.ask("POST", "/q/messages/batch", document, content_type="application/json")

    return lambda: world.serve(run)


@request
async def publish_multipart(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    doors, part = Doors(world), b"--x\r\nContent-Type: text/plain\r\n\r\n%s\r\n" % BODY

    async def run() -> None:
        for size in _batches(count):
            body = part * size + b"--x--\r\n"
            await doors.ask("POST", "/q/messages/batch", body, content_type="multipart/mixed; boundary=x")

    return lambda: world.serve(run)


@request
async def fetch_and_delete_batches(world: World, count: int) -> Run:
    await world.fill("q", count)
    doors = Doors(world)

    async def run() -> None:
        for size in _batches(count):
            lines = await doors.ask("GET", f"/q/messages?max={size}", accept="application/jsonl")
            removals = await turns.apart(len(lines), partial(_removals, lines))
            await doors.ask("POST", "/q/messages/delete", removals)

    return lambda: world.serve(run)


def _removals(lines: bytes) -> bytes:
    """The client's own work, in a thread."""
    found = map(json.loads, lines.splitlines())
    return "\n".join(json.dumps({"id": each["id"], "receipt": each["receipt"]}) for each in found).encode()


@request
async def browse_over_http(world: World, count: int) -> Run:
    """As ``mq export`` does."""
    await world.fill("q", count)
    doors = Doors(world)

    async def run() -> None:
        after = 0
        for _ in _batches(count):
            lines = await doors.ask("GET", f"/q/browse?after={after}&max={_BATCH}", accept="application/jsonl")
            after = max(json.loads(line)["sequence"] for line in lines.splitlines())

    return lambda: world.serve(run)


@request
async def preview(world: World, count: int) -> Run:
    await world.fill("q", count)
    doors = Doors(world)
    return lambda: world.serve(lambda: doors.ask("GET", "/q/preview?max=1000"))


@request
async def ranges(world: World, count: int) -> Run:
    await world.fill("q", count)
    doors = Doors(world)
    return lambda: world.serve(lambda: doors.ask("GET", "/q/ranges"))


@request
async def purge_over_http(world: World, count: int) -> Run:
    await world.fill("q", count)
    doors = Doors(world)
    return lambda: world.serve(lambda: doors.ask("POST", "/q/purge"))


@request
async def redrive_over_http(world: World, count: int) -> Run:
    await world.fill("q", count)
    await world.broker.create_queue("to")
    doors = Doors(world)

    async def run() -> None:
        for size in _batches(count):
            await doors.ask("POST", "/q/redrive", b'{"to": "to", "max": %d}' % size)

    return lambda: world.serve(run)


# SQS


@request
async def sqs_batches(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    doors = Doors(world)
    entries = [{"Id": str(number), "MessageBody": _TEXT} for number in range(_SQS_BATCH)]

    async def run() -> None:
        for _ in _batches(min(count, 20_000), _SQS_BATCH):
            await doors.act("SendMessageBatch", QueueUrl=_url("q"), Entries=entries)
        for _ in _batches(min(count, 20_000), _SQS_BATCH):
            found = await doors.act("ReceiveMessage", QueueUrl=_url("q"), MaxNumberOfMessages=_SQS_BATCH)
            gone = [
                {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                for number, each in enumerate(found["Messages"])
            ]
            await doors.act("DeleteMessageBatch", QueueUrl=_url("q"), Entries=gone)

    return lambda: world.serve(run)


@request
async def sqs_large_batch(world: World, count: int) -> Run:
    """A mebibyte of characters that JSON escapes."""
    await world.broker.create_queue("q")
    doors = Doors(world)
    entries = [{"Id": str(number), "MessageBody": "é" * 50_000} for number in range(_SQS_BATCH)]

    async def run() -> None:
        await doors.act("SendMessageBatch", QueueUrl=_url("q"), Entries=entries)
        await doors.act("ReceiveMessage", QueueUrl=_url("q"), MaxNumberOfMessages=_SQS_BATCH)

    return lambda: world.serve(run)


@request
async def sqs_purge(world: World, count: int) -> Run:
    await world.fill("q", count)
    doors = Doors(world)
    return lambda: world.serve(lambda: doors.act("PurgeQueue", QueueUrl=_url("q")))


@request
async def sqs_move_task(world: World, count: int) -> Run:
    await world.fill("dead", count)
    await world.broker.create_queue("to")
    doors = Doors(world)
    arn = "arn:aws:sqs:us-east-1:000000000000:"

    async def run() -> None:
        await world.broker.change_settings("to", {"dead_letter_queue": "dead", "max_receives": 3})
        await doors.act("StartMessageMoveTask", SourceArn=f"{arn}dead", DestinationArn=f"{arn}to")
        await world.ready("to", count)

    return lambda: world.serve(run)


# Many queues


async def _make_queues(world: World, count: int) -> None:
    for number in range(min(_MANY, count)):
        await world.broker.create_queue(f"queue-{number}")
    for number in range(0, min(_MANY, count), 10):
        await world.broker.publish(f"queue-{number}", BODY)


def _of_all_queues(name: str, target: str) -> None:
    async def prepare(world: World, count: int) -> Run:
        await _make_queues(world, count)
        doors = Doors(world)
        return lambda: world.serve(lambda: doors.ask("GET", target))

    prepare.__name__ = name
    request(prepare)


_of_all_queues("list_queues_over_http", "/-/queues")
_of_all_queues("stats_of_queues", "/-/stats")
_of_all_queues("rates_of_queues", "/-/rates?sort=ready&filter=9&max=1000")
_of_all_queues("metrics_of_queues", "/-/metrics")
_of_all_queues("dead_letters_of_queues", "/-/dead-letters")


@request
async def sqs_list_queues(world: World, count: int) -> Run:
    await _make_queues(world, count)
    doors = Doors(world)

    async def run() -> None:
        await doors.act("ListQueues", QueueNamePrefix="queue-9", MaxResults=1000)
        await doors.act("ListQueues")
        await doors.act("ListDeadLetterSourceQueues", QueueUrl=_url("queue-1"))

    return lambda: world.serve(run)


@request
async def watch_queues(world: World, count: int) -> Run:
    """The first event of the console, by another order for each of several users."""
    await _make_queues(world, count)
    doors = Doors(world)

    async def run() -> None:
        for sort in ("name", "ready", "oldest", "publish"):
            with trio.move_on_after(3):
                await doors.ask("GET", f"/-/events?sort={sort}&filter=queue&max=1000&seconds=1")

    return lambda: world.serve(run)


# Exchanges


async def _bind(client: Client, binds: Sequence[commands.Queue.Bind]) -> None:
    for at in range(0, len(binds), 500):
        some = binds[at : at + 500]
        for bind in some:
            bind.nowait = True
        await client.stream.send_all(b"".join(words(bind) for bind in some))
        await client.count(some[0].queue)


async def _bound(world: World, count: int, kind: str, *, keys: bool) -> Client:
    """An exchange with many bindings: to one queue by many patterns, or to many queues."""
    client = await world.connect()
    durable = world.is_durable
    await client.call(commands.Exchange.Declare(exchange="x", exchange_type=kind, durable=durable))
    many = min(_MANY if keys else 2000, count)
    for number in range(1 if keys else many):
        await client.declare(f"q{number}", durable=durable)
    binds = [
        commands.Queue.Bind(queue=f"q{0 if keys else number}", exchange="x", routing_key=f"*.k{number}.#.end")
        for number in range(many)
    ]
    await _bind(client, binds)
    return client


@request
async def bind_by_many_patterns(world: World, count: int) -> Run:
    client = await world.connect()
    await client.call(commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=world.is_durable))
    await client.declare("q", durable=world.is_durable)
    binds = [
        commands.Queue.Bind(queue="q", exchange="x", routing_key=f"*.k{number}.#.end")
        for number in range(min(_MANY, count))
    ]
    return lambda: _bind(client, binds)


@request
async def publish_through_many_patterns(world: World, count: int) -> Run:
    client = await _bound(world, count, "topic", keys=True)

    async def run() -> None:
        for number in range(20):
            key = f"a.k{number}." + ".".join(["b"] * 40) + ".end"
            await client.publish(key, BODY, exchange="x", delivery_mode=1)
        await client.count("q0")

    return run


@request
async def publish_to_many_queues(world: World, count: int) -> Run:
    client = await _bound(world, count, "fanout", keys=False)

    async def run() -> None:
        await client.publish("", *([BODY] * 5), exchange="x", delivery_mode=1)
        await client.count("q0")

    return run


@request
async def publish_by_headers(world: World, count: int) -> Run:
    client = await world.connect()
    await client.call(commands.Exchange.Declare(exchange="x", exchange_type="headers", durable=world.is_durable))
    await client.declare("q", durable=world.is_durable)
    binds = [
        commands.Queue.Bind(queue="q", exchange="x", arguments={"x-match": "any", "a": str(number), "b": "c"})
        for number in range(min(_MANY, count))
    ]
    await _bind(client, binds)

    async def run() -> None:
        await client.publish("", *([BODY] * 20), exchange="x", delivery_mode=1, headers={"a": "7", "d": "e"})
        await client.count("q")

    return run


@request
async def delete_an_exchange_of_many_bindings(world: World, count: int) -> Run:
    client = await _bound(world, count, "topic", keys=True)
    return lambda: client.call(commands.Exchange.Delete(exchange="x"))


@request
async def delete_a_queue_of_many_bindings(world: World, count: int) -> Run:
    client = await _bound(world, count, "topic", keys=True)
    return lambda: client.call(commands.Queue.Delete(queue="q0"))


@request
async def list_exchanges(world: World, count: int) -> Run:
    await _bound(world, count, "topic", keys=True)
    doors = Doors(world)
    return lambda: world.serve(lambda: doors.ask("GET", "/-/exchanges"))


# Consumers


@request
async def list_consumers(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    for number in range(min(4000, count)):
        await client.consume("q", tag=str(number))
    doors = Doors(world)

    async def run() -> None:
        await doors.ask("GET", "/-/consumers?max=1000")
        await doors.ask("GET", "/-/connections?max=1000")

    return lambda: world.serve(run)


@request
async def deliver_to_many_consumers(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    for number in range(min(4000, count)):
        await client.consume("q", tag=str(number), no_ack=True)

    async def run() -> None:
        for size in _batches(min(count, 5000), 500):
            await world.broker.publish_many("q", [Draft(BODY, transient=not world.is_durable)] * size)
        await world.ready("q", 0)

    async def listen() -> None:
        while await client.stream.receive_some():
            pass

    world.nursery.start_soon(listen)
    return run


@request
async def delete_a_queue_of_many_consumers(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    for number in range(min(4000, count)):
        await client.consume("q", tag=str(number))
    return lambda: world.serve(lambda: world.broker.delete_queue("q"))


# Schedules


async def _scheduler(world: World, count: int, **when: Any) -> Scheduler:
    await world.broker.create_queue("q")
    now_ms = world.broker.clock.wall_ms()
    puts = [
        Schedule(f"s{number}", QueueName("q"), Draft(BODY), start_ms=now_ms, changed_ms=now_ms, **when)
        for number in range(min(_MANY, count))
    ]
    for schedule in puts:
        await world.broker.declarations.put(KIND, schedule.name, schedule.record())
    return Scheduler(world.broker)


@request
async def schedules_that_missed_many_runs(world: World, count: int) -> Run:
    """A month of minutes."""
    scheduler = await _scheduler(world, count, cron="* * * * *", zone="Europe/Berlin")
    await scheduler.load()
    await trio.sleep(30 * 86_400)

    async def run() -> None:
        world.nursery.start_soon(scheduler.run)
        await world.ready("q", min(_MANY, count))
        scheduler.end()

    return run


@request
async def load_schedules(world: World, count: int) -> Run:
    scheduler = await _scheduler(world, count, cron="0 3 29 2 *", zone="Europe/Berlin")
    return lambda: world.serve(scheduler.load)


@request
async def list_schedules(world: World, count: int) -> Run:
    scheduler = await _scheduler(world, count, every=60.0)
    await scheduler.load()
    doors = Doors(world, scheduler)
    return lambda: world.serve(lambda: doors.ask("GET", "/-/schedules?max=1000"))


WAITING: Final = frozenset({"schedules_that_missed_many_runs"})
"""Requests that come after a month: they need a virtual clock."""
