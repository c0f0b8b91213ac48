"""Sent, received, deleted: the main path, by boto3, in both protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from mq.broker import Broker
from tests.broker.inside import wiring_of
from tests.sqs.clients import Client

MakeQueue = Callable[..., Any]


async def test_a_message_there_and_back(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    sent = await sqs.send_message(QueueUrl=url, MessageBody="<hello> & größe\r\n")
    [message] = (await sqs.receive_message(QueueUrl=url, AttributeNames=["All"]))["Messages"]
    assert message["Body"] == "<hello> & größe\r\n"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "Messages" not in await sqs.receive_message(QueueUrl=url)
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    shown = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert shown["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0"


async def test_a_receive_waits_for_a_message(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue()
    found: list[str] = []

    async def receive() -> None:
        answer = await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
        found.extend(message["Body"] for message in answer["Messages"])

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            while not wiring_of(broker).waiters.queues:
                await trio.sleep(0.01)
            await sqs.send_message(QueueUrl=url, MessageBody="at last")
    assert found == ["at last"]


async def test_attributes_of_all_types(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    attributes = {
        "text": {"DataType": "String", "StringValue": "größe"},
        "Number": {"DataType": "Number.int", "StringValue": "12"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = await sqs.send_message(
        QueueUrl=url, MessageBody="b", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    answer = await sqs.receive_message(
        QueueUrl=url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["AWSTraceHeader"]
    )
    [message] = answer["Messages"]
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"] == {"AWSTraceHeader": trace["AWSTraceHeader"]["StringValue"]}


async def test_batches_and_their_partial_failures(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    entries = [{"Id": f"e{number}", "MessageBody": f"m{number}"} for number in range(9)]
    answer = await sqs.send_message_batch(QueueUrl=url, Entries=[*entries, {"Id": "bad", "MessageBody": "\x00"}])
    assert [each["Id"] for each in answer["Successful"]] == [f"e{number}" for number in range(9)]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidMessageContents", True)
    received = (await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10))["Messages"]
    assert sorted(message["Body"] for message in received) == [f"m{number}" for number in range(9)]
    handles = [message["ReceiptHandle"] for message in received]
    changes = [{"Id": "a", "ReceiptHandle": handles[0], "VisibilityTimeout": 0}]
    changes += [{"Id": "b", "ReceiptHandle": "nonsense", "VisibilityTimeout": 1}]
    answer = await sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)
    assert ([each["Id"] for each in answer["Successful"]], answer["Failed"][0]["Id"]) == (["a"], "b")
    [again] = (await sqs.receive_message(QueueUrl=url))["Messages"]
    removals = [
        {"Id": f"d{place}", "ReceiptHandle": each} for place, each in enumerate([again["ReceiptHandle"], *handles[1:]])
    ]
    answer = await sqs.delete_message_batch(QueueUrl=url, Entries=removals)
    assert len(answer["Successful"]) == 9
    counts = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesNotVisible"])
    assert counts["Attributes"] == {"ApproximateNumberOfMessagesNotVisible": "0"}


async def test_what_other_doors_send_and_fetch(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue()
    await broker.publish("q", b"\xff\x00", {"attributes": {"kind": "b"}})
    [message] = (await sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"]))["Messages"]
    assert (message["Body"], message["MessageAttributes"]["mq.encoding"]["StringValue"]) == ("/wA=", "base64")
    assert message["MessageAttributes"]["kind"]["StringValue"] == "b"
    attributes = {"Kind": {"DataType": "String", "StringValue": "a"}}
    await sqs.send_message(QueueUrl=url, MessageBody="back", MessageAttributes=attributes)
    fetched = await broker.fetch("q")
    assert fetched is not None
    assert await fetched.body.read() == b"back"
    assert fetched.properties.attributes["attributes"] == {"kind": "a"}


async def test_a_queue_that_is_not_there(sqs: Client) -> None:
    with pytest.raises(sqs.exceptions.ClientError) as caught:
        await sqs.get_queue_url(QueueName="none")
    assert caught.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
