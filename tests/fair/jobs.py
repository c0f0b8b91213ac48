"""Every operation that touches very many messages, as one client's job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from pamqp import commands

from mq.broker import Draft, Removal
from mq.message import Message
from tests.fair.world import BODY, DEAD_LETTERS, World, hold, publish

Run = Callable[[], Awaitable[object]]
Prepare = Callable[[World, int], Awaitable[Run]]
JOBS: Final[dict[str, Prepare]] = {}
"""Name -> brings the messages there, and returns the job itself."""


def job(prepare: Prepare) -> Prepare:
    JOBS[prepare.__name__] = prepare
    return prepare


# Publishing


@job
async def publish_over_amqp(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    return lambda: publish(client, "q", count, is_durable=world.is_durable)


@job
async def publish_in_one_call(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    drafts = [Draft(BODY, transient=not world.is_durable)] * count
    return lambda: world.serve(lambda: world.broker.publish_many("q", drafts))


@job
async def publish_with_keys(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    drafts = [Draft(BODY, key=str(number)) for number in range(count)]
    return lambda: world.serve(lambda: world.broker.publish_many("q", drafts))


@job
async def publish_to_a_full_queue(world: World, count: int) -> Run:
    """Each message drops the oldest one."""
    await world.fill("q", 100)
    await world.broker.change_settings("q", {"max_messages": 100, "overflow": "drop-head"})
    drafts = [Draft(BODY, transient=not world.is_durable)] * count
    return lambda: world.serve(lambda: world.broker.publish_many("q", drafts))


# Settling


@job
async def acknowledge_with_multiple(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    await world.fill("q", count)
    await hold(client, "q", count)

    async def run() -> None:
        await client.say(commands.Basic.Ack(count, True))
        await client.count("q")
        await trio.sleep(1)

    return run


@job
async def requeue_with_multiple(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    await world.fill("q", count)
    await hold(client, "q", count)
    await client.say(commands.Basic.Cancel("c"))

    async def run() -> None:
        await client.say(commands.Basic.Nack(count, True, True))
        await world.ready("q", count)

    return run


@job
async def requeue_to_the_back(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q", {"x-requeue": "back"})
    await world.fill("q", count)
    await hold(client, "q", count)
    await client.say(commands.Basic.Cancel("c"))

    async def run() -> None:
        await client.say(commands.Basic.Nack(count, True, True))
        await world.ready("q", count)

    return run


@job
async def reject_with_multiple(world: World, count: int) -> Run:
    """To a dead-letter exchange."""
    client = await world.connect()
    await client.declare("dead")
    await client.declare("q", DEAD_LETTERS)
    await publish(client, "q", count, is_durable=world.is_durable)
    await hold(client, "q", count)

    async def run() -> None:
        await client.say(commands.Basic.Nack(count, True, False))
        await world.ready("dead", count)

    return run


@job
async def reject_to_nowhere(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    await world.fill("q", count)
    await hold(client, "q", count)

    async def run() -> None:
        await client.say(commands.Basic.Nack(count, True, False))
        await client.count("q")
        await trio.sleep(1)

    return run


@job
async def settle_in_a_transaction(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    await world.fill("q", count)
    await hold(client, "q", count)

    async def run() -> None:
        await client.call(commands.Tx.Select())
        await client.say(commands.Basic.Ack(count, True))
        await client.call(commands.Tx.Commit())

    return run


@job
async def disconnect_a_consumer(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    await world.fill("q", count)
    await hold(client, "q", count)

    async def run() -> None:
        await client.stream.aclose()
        await world.ready("q", count)

    return run


@job
async def disconnect_many_consumers(world: World, count: int) -> Run:
    client = await world.connect()
    for number in range(min(1000, count // 2)):
        await client.consume(await client.declare(f"q{number}", exclusive=True), tag=str(number))

    async def run() -> None:
        await client.stream.aclose()
        while world.broker.declarations.knows("q0"):
            await trio.sleep(0.01)
        await trio.sleep(1)

    return run


# Dead letters


@job
async def dead_letter_by_the_broker(world: World, count: int) -> Run:
    """To a dead-letter queue, which keeps a history of each message."""
    await world.broker.create_queue("dead")
    await world.fill("q", count)
    await world.broker.change_settings("q", {"dead_letter_queue": "dead", "max_receives": 3})
    held = []
    while len(held) < count:
        held += await world.broker.hold("q", 256)

    async def run() -> None:
        await world.serve(lambda: world.broker.reject(held))
        await world.ready("dead", count)

    return run


@job
async def dead_letter_by_receives(world: World, count: int) -> Run:
    """The leases of all messages end at once, for the last time."""
    await world.broker.create_queue("dead")
    await world.fill("q", count)
    await world.broker.change_settings("q", {"dead_letter_queue": "dead", "max_receives": 1, "visibility": 60})
    leased = 0
    while leased < count:
        leased += len(await world.broker.fetch_many("q", min(1000, count - leased)))

    async def run() -> None:
        await trio.sleep(100)
        await world.ready("dead", count)

    return run


@job
async def fetch_what_was_received_too_often(world: World, count: int) -> Run:
    """Its limit was lowered after all messages had come back."""
    await world.broker.create_queue("dead")
    await world.fill("q", count)
    fetched: list[Message] = []
    while len(fetched) < count:
        fetched += await world.broker.fetch_many("q", min(1000, count - len(fetched)))
    for message in fetched:
        await world.broker.requeue("q", message.id, receipt=message.receipt)
    await world.broker.change_settings("q", {"dead_letter_queue": "dead", "max_receives": 1})

    async def run() -> None:
        await world.serve(lambda: world.broker.fetch_many("q", 1))
        await world.ready("dead", count)

    return run


@job
async def expire(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("dead")
    await client.declare("q", DEAD_LETTERS)
    await world.fill("q", count, ttl=60)

    async def run() -> None:
        await trio.sleep(100)
        await world.ready("dead", count)

    return run


@job
async def expire_by_the_broker(world: World, count: int) -> Run:
    await world.fill("q", count, ttl=60)

    async def run() -> None:
        await trio.sleep(100)
        await world.ready("q", 0)

    return run


@job
async def fetch_what_has_expired(world: World, count: int) -> Run:
    """A consumer is there before the timers."""
    await world.fill("q", count, ttl=60)

    async def run() -> None:
        await trio.sleep(60.01)
        await world.serve(lambda: world.broker.fetch_many("q", 1))
        await world.ready("q", 0)

    return run


@job
async def lower_a_limit(world: World, count: int) -> Run:
    await world.broker.create_queue("dead")
    await world.fill("q", count)

    async def run() -> None:
        patch = {"max_messages": 10, "overflow": "drop-head", "dead_letter_queue": "dead"}
        await world.serve(lambda: world.broker.change_settings("q", patch))
        await world.ready("q", 10)

    return run


@job
async def lower_a_limit_of_bytes(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        patch = {"max_bytes": 1000, "overflow": "drop-head"}
        await world.serve(lambda: world.broker.change_settings("q", patch))
        await world.ready("q", 10)

    return run


@job
async def redrive(world: World, count: int) -> Run:
    await world.broker.create_queue("to")
    await world.fill("q", count)
    return lambda: world.serve(lambda: world.broker.redrive("q", "to", count))


# Timers


@job
async def delays_end(world: World, count: int) -> Run:
    await world.fill("q", count, delay=60)

    async def run() -> None:
        await trio.sleep(60)
        await world.ready("q", count)

    return run


@job
async def delays_end_far_off(world: World, count: int) -> Run:
    await world.fill("q", count, delay=80_000)

    async def run() -> None:
        await trio.sleep(80_000)
        await world.ready("q", count)

    return run


@job
async def leases_end(world: World, count: int) -> Run:
    await world.fill("q", count)
    leased = 0
    while leased < count:
        leased += len(await world.broker.fetch_many("q", min(1000, count - leased), visibility=60))

    async def run() -> None:
        await trio.sleep(100)
        await world.ready("q", count)

    return run


@job
async def keys_expire(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    for at in range(0, count, 500):
        await world.broker.publish_many("q", [Draft(BODY, key=str(number)) for number in range(at, at + 500)])
    await world.broker.purge("q")

    async def run() -> None:
        await trio.sleep(86_399)
        await world.serve(lambda: world.broker.publish_many("q", [Draft(BODY, key="new")]))

    return run


# Queues


@job
async def purge(world: World, count: int) -> Run:
    await world.fill("q", count)
    return lambda: world.serve(lambda: world.broker.purge("q"))


@job
async def delete_a_queue(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        await world.serve(lambda: world.broker.delete_queue("q"))
        await trio.sleep(1)

    return run


@job
async def delete_a_queue_with_groups(world: World, count: int) -> Run:
    await world.fill("q", count)
    await world.broker.change_settings("q", {"groups": True})
    return lambda: world.serve(lambda: world.broker.delete_queue("q"))


@job
async def delete_a_unique_queue(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    await world.broker.change_settings("q", {"unique": True})
    for at in range(0, count, 500):
        await world.broker.publish_many("q", [Draft(b"%d" % number) for number in range(at, at + 500)])
    return lambda: world.serve(lambda: world.broker.delete_queue("q"))


@job
async def delete_a_queue_of_delayed_messages(world: World, count: int) -> Run:
    await world.fill("q", count // 2, delay=60)
    await world.fill("q", count - count // 2, delay=80_000)

    async def run() -> None:
        await world.serve(lambda: world.broker.delete_queue("q"))
        await world.serve(lambda: world.broker.create_queue("q"))

    return run


@job
async def delete_a_queue_of_expiring_messages(world: World, count: int) -> Run:
    await world.fill("q", count, ttl=600)

    async def run() -> None:
        await world.serve(lambda: world.broker.delete_queue("q"))
        await trio.sleep(1)

    return run


@job
async def close_with_an_exclusive_queue(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q", exclusive=True)
    await world.fill("q", count)

    async def run() -> None:
        await client.stream.aclose()
        while world.broker.declarations.knows("q"):
            await trio.sleep(0.01)
        await trio.sleep(1)

    return run


@job
async def switch_groups_on_and_off(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        await world.serve(lambda: world.broker.change_settings("q", {"groups": True}))
        await world.serve(lambda: world.broker.change_settings("q", {"groups": False}))

    return run


@job
async def change_priorities_and_fetch(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        await world.serve(lambda: world.broker.change_settings("q", {"max_priority": 5}))
        await world.serve(lambda: world.broker.fetch_many("q", 10))

    return run


@job
async def make_a_queue_unique(world: World, count: int) -> Run:
    await world.fill("q", count)
    return lambda: world.serve(lambda: world.broker.change_settings("q", {"unique": True}))


@job
async def list_queues(world: World, count: int) -> Run:
    for number in range(min(5000, count)):
        await world.broker.create_queue(f"q{number}")
    return lambda: world.serve(world.broker.queues)


# Consuming


@job
async def consume(world: World, count: int) -> Run:
    client = await world.connect()
    await client.declare("q")
    await world.fill("q", count)
    return lambda: hold(client, "q", count)


@job
async def fetch_and_remove(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        left = count
        while left:
            messages = await world.broker.fetch_many("q", min(1000, left))
            removals = [Removal(message.id, message.receipt) for message in messages]
            assert await world.broker.remove_many("q", removals) == [None] * len(messages)
            left -= len(messages)

    return lambda: world.serve(run)


@job
async def remove_in_one_call(world: World, count: int) -> Run:
    await world.fill("q", count)
    [inventory] = [inventory for inventory in world.broker.inventory() if inventory.queue == "q"]
    removals = [Removal(entry.id) for entry in inventory.entries]  # before the job: they are not its own work
    return lambda: world.serve(lambda: world.broker.remove_many("q", removals))


@job
async def claim_and_acknowledge(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        claims = world.broker.claims
        epoch = (await claims.start("q", "spark")).epoch
        batch = await claims.claim("q", "spark", 1, epoch, most=count)
        assert batch is not None
        assert batch.messages == count
        for start in range(0, count, 1000):
            for _, message in await claims.read("q", "spark", 1, epoch, start, start + 1000):
                await message.body.aclose()
        await claims.acknowledge("q", "spark", 1, epoch)

    return lambda: world.serve(run)


@job
async def lease_of_a_claim_ends(world: World, count: int) -> Run:
    await world.fill("q", count)
    claims = world.broker.claims
    epoch = (await claims.start("q", "spark")).epoch
    await claims.claim("q", "spark", 1, epoch, most=count, lease=60)

    async def run() -> None:
        await trio.sleep(100)
        await world.ready("q", count)

    return run


@job
async def write_job(world: World, count: int) -> Run:
    await world.broker.create_queue("q")
    for number in range(0, count, 1000):
        drafts = [Draft(BODY)] * min(1000, count - number)
        await world.broker.writes.add("q", "job", "part", number, drafts)

    async def run() -> None:
        await world.broker.writes.commit("q", "job", ["part"], count)

    return lambda: world.serve(run)


@job
async def browse(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        after: int | None = 0
        while after is not None:
            page = await world.broker.browsing.browse("q", after=after, most=1000)
            for seen in page.messages:
                await seen.message.body.aclose()
            after = page.after

    return lambda: world.serve(run)


@job
async def peek(world: World, count: int) -> Run:
    await world.fill("q", count)

    async def run() -> None:
        for state in ("ready", "delayed", "leased"):
            for seen in await world.broker.peek("q", state=state, most=1000):
                await seen.message.body.aclose()

    return lambda: world.serve(run)


WAITING: Final = frozenset(
    {
        "dead_letter_by_receives",
        "delays_end",
        "delays_end_far_off",
        "expire",
        "expire_by_the_broker",
        "fetch_what_has_expired",
        "keys_expire",
        "lease_of_a_claim_ends",
        "leases_end",
    }
)
"""Jobs that begin when a minute or more is over: they need a virtual clock."""
