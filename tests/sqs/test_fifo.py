"""FIFO queues: groups in order, deduplication, sequence numbers, attempts; in both protocols of SQS, by boto3."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mq.broker import Broker, Draft
from tests.e2e.daemon import Daemon
from tests.sqs.clients import Client, make_client

MakeQueue = Callable[..., Any]
FIFO = {"FifoQueue": "true"}


async def refusal(sqs: Client, call: Callable[[], Any]) -> str:
    """The code of the error."""
    with pytest.raises(sqs.exceptions.ClientError) as caught:
        await call()
    code: str = caught.value.response["Error"]["Code"]
    return code


@pytest.fixture
async def url(make_queue: MakeQueue) -> str:
    made: str = await make_queue("q.fifo", **FIFO, ContentBasedDeduplication="true")
    return made


async def send(sqs: Client, url: str, body: str, group: str, **more: Any) -> Any:
    return await sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)


async def receive(sqs: Client, url: str, most: int = 1, **more: Any) -> list[Any]:
    answer = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=most, AttributeNames=["All"], **more)
    found: list[Any] = answer.get("Messages", [])
    return found


def bodies(messages: list[Any]) -> list[str]:
    return [message["Body"] for message in messages]


async def test_a_group_comes_in_order_and_is_blocked_meanwhile(sqs: Client, url: str) -> None:
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")):
        await send(sqs, url, body, group)
    some = await receive(sqs, url, 2)
    assert bodies(some) == ["a1", "a2"]
    assert bodies(await receive(sqs, url, 10)) == ["b1"]
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=some[0]["ReceiptHandle"])
    assert await receive(sqs, url, 10) == []  # a2 is in flight
    await sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=some[1]["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(await receive(sqs, url, 10)) == ["a2", "a3"]


async def test_what_is_told_of_a_message(sqs: Client, url: str) -> None:
    first = await send(sqs, url, "a1", "a", MessageDeduplicationId="d1")
    second = await send(sqs, url, "a2", "a", MessageDeduplicationId="d2")
    assert len(first["SequenceNumber"]) == 20
    assert first["SequenceNumber"] < second["SequenceNumber"]
    told = [message["Attributes"] for message in await receive(sqs, url, 2)]
    assert [each["SequenceNumber"] for each in told] == [first["SequenceNumber"], second["SequenceNumber"]]
    assert [each["MessageDeduplicationId"] for each in told] == ["d1", "d2"]
    assert {each["MessageGroupId"] for each in told} == {"a"}


async def test_a_message_is_known_again_by_its_id_or_its_body(sqs: Client, url: str, broker: Broker) -> None:
    first = await send(sqs, url, "one", "a")
    again = await send(sqs, url, "one", "b")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    await send(sqs, url, "two", "a", MessageDeduplicationId="d")
    await send(sqs, url, "three", "a", MessageDeduplicationId="d")
    some = await receive(sqs, url, 10)
    assert bodies(some) == ["one", "two"]
    for message in some:
        await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    await send(sqs, url, "one", "a")  # also once it is deleted
    assert await receive(sqs, url, 10) == []
    assert (await broker.status("q.fifo")).settings.key_window == 300


async def test_deduplication_within_each_group(sqs: Client, make_queue: MakeQueue) -> None:
    more = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    url = await make_queue("q.fifo", **FIFO, **more)
    for group in ("a", "b", "a"):
        await send(sqs, url, group, group, MessageDeduplicationId="d")
    assert bodies(await receive(sqs, url, 10)) == ["a", "b"]
    attributes = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    assert attributes.items() >= (FIFO | more | {"ContentBasedDeduplication": "false"}).items()
    change = partial(sqs.set_queue_attributes, QueueUrl=url, Attributes={"DeduplicationScope": "queue"})
    assert await refusal(sqs, change) == "InvalidAttributeValue"


async def test_a_batch_keeps_its_order(sqs: Client, url: str) -> None:
    entries = [{"Id": f"{n}", "MessageBody": f"{n % 5}", "MessageGroupId": "a"} for n in range(10)]
    done = (await sqs.send_message_batch(QueueUrl=url, Entries=entries))["Successful"]
    assert [each["MessageId"] for each in done[:5]] == [each["MessageId"] for each in done[5:]]
    assert bodies(await receive(sqs, url, 10)) == list("01234")


async def test_an_attempt_that_is_repeated_gets_the_same(sqs: Client, url: str) -> None:
    for body in ("a1", "a2", "a3"):
        await send(sqs, url, body, "a")
    some = await receive(sqs, url, 2, ReceiveRequestAttemptId="x")
    again = await receive(sqs, url, 2, ReceiveRequestAttemptId="x")
    assert [(each["Body"], each["ReceiptHandle"]) for each in again] == [
        (each["Body"], each["ReceiptHandle"]) for each in some
    ]
    assert await receive(sqs, url, 2, ReceiveRequestAttemptId="y") == []
    for message in again:
        await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert bodies(await receive(sqs, url, 2, ReceiveRequestAttemptId="x")) == ["a3"]


async def test_what_a_fifo_queue_refuses(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url, invalid = await make_queue("q.fifo", **FIFO), "InvalidParameterValue"
    for given, code in (
        ({"MessageDeduplicationId": "d"}, "MissingParameter"),
        ({"MessageGroupId": "a"}, invalid),
        ({"MessageGroupId": "a b", "MessageDeduplicationId": "d"}, invalid),
        ({"MessageGroupId": "a", "MessageDeduplicationId": "d" * 129}, invalid),
        ({"MessageGroupId": "a", "MessageDeduplicationId": "d", "DelaySeconds": 1}, invalid),
    ):
        assert await refusal(sqs, partial(sqs.send_message, QueueUrl=url, MessageBody="b", **given)) == code, given
    assert (await broker.status("q.fifo")).ready == 0


async def test_a_queue_is_fifo_by_name_and_attribute(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    invalid, create = "InvalidParameterValue", partial(partial, sqs.create_queue)
    assert await refusal(sqs, create(QueueName="q.fifo")) == invalid
    assert await refusal(sqs, create(QueueName="q", Attributes=FIFO)) == invalid
    assert await refusal(sqs, create(QueueName="q.fifo", Attributes={"FifoQueue": "false"})) == invalid
    standard, fifo = await make_queue("q"), await make_queue("q.fifo", **FIFO)
    assert await make_queue("q.fifo", **FIFO) == fifo
    for url, target in ((standard, "q.fifo"), (fifo, "q")):
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:{target}", "maxReceiveCount": 1}
        change = partial(sqs.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
        assert await refusal(sqs, change) == invalid
    await broker.create_queue("plain.fifo")  # by another door
    code = await refusal(sqs, partial(sqs.get_queue_url, QueueName="plain.fifo"))
    assert code == "AWS.SimpleQueueService.UnsupportedOperation"


async def test_other_doors_see_the_groups(sqs: Client, url: str, broker: Broker) -> None:
    await send(sqs, url, "a1", "a")
    message = await broker.fetch("q.fifo")
    assert message is not None
    assert message.properties.attributes["group"] == "a"
    await broker.publish_many("q.fifo", [Draft(b"b1", {"group": "b"}, group="b"), Draft(b"none")])
    told = [message["Attributes"].get("MessageGroupId") for message in await receive(sqs, url, 10)]
    assert told == ["b", None]


@pytest.mark.slow
def test_order_and_deduplication_outlive_a_kill(daemon: Daemon) -> None:
    def sqs() -> Any:
        return make_client(f"http://127.0.0.1:{daemon.port}", "json")

    def send(body: str) -> Any:
        return sqs().send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0], MessageDeduplicationId=body)

    def receive() -> list[Any]:
        found: list[Any] = sqs().receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600)[
            "Messages"
        ]
        return found

    url = sqs().create_queue(QueueName="q.fifo", Attributes=FIFO)["QueueUrl"]
    first = send("a1")
    held = receive()
    assert bodies(held) == ["a1"]
    for body in ("a2", "b1"):
        send(body)
    daemon.kill()
    daemon.start()
    assert send("a1")["MessageId"] == first["MessageId"]
    assert bodies(receive()) == ["b1"]
    sqs().delete_message(QueueUrl=url, ReceiptHandle=held[0]["ReceiptHandle"])
    assert bodies(receive()) == ["a2"]
