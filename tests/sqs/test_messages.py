"""Messages: what may be sent, how long leases last, and what receipt handles do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from mq.broker import Broker
from mq.message import BytesBody, Message, MessageId, Properties
from mq.sqs.door import SqsDoor
from mq.sqs.errors import SqsError
from mq.sqs.messages import Attribute, ReceiptHandle, md5_of
from tests.sqs.clients import Client
from tests.sqs.test_queues import refusal

MakeQueue = Callable[..., Any]


def text(value: str, type: str = "String") -> dict[str, Any]:
    return {"DataType": type, "StringValue": value}


# Digests


def test_the_digest_of_attributes_is_what_the_guide_says() -> None:
    """Put together by hand: lengths in four bytes, 1 before text and 2 before bytes, names sorted."""
    by_hand = (
        b"\x00\x00\x00\x01b\x00\x00\x00\x06Binary\x02\x00\x00\x00\x02\xff\x00"
        b"\x00\x00\x00\x01n\x00\x00\x00\x0aNumber.int\x01\x00\x00\x00\x0242"
        b"\x00\x00\x00\x01t\x00\x00\x00\x06String\x01\x00\x00\x00\x02\xc3\xb6"
    )
    attributes = {
        "t": Attribute("String", "ö"),
        "n": Attribute("Number.int", "42"),
        "b": Attribute("Binary", b"\xff\x00"),
    }
    assert md5_of(attributes) == hashlib.md5(by_hand, usedforsecurity=False).hexdigest()


# Sent


async def test_messages_that_are_refused(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue(MaximumMessageSize="1024")
    invalid, contents = "InvalidParameterValue", "InvalidMessageContents"
    for given, code in (
        ({"MessageBody": ""}, invalid),
        ({"MessageBody": "a\x00"}, contents),
        ({"MessageBody": "\ufffe"}, contents),
        ({"MessageBody": "b" * 1025}, invalid),
        ({"MessageBody": "b" * 1015, "MessageAttributes": {"a": text("bb")}}, None),
        ({"MessageBody": "b" * 1015, "MessageAttributes": {"a": text("bbb")}}, invalid),
        ({"MessageBody": "b", "DelaySeconds": 901}, invalid),
        ({"MessageBody": "b", "DelaySeconds": -1}, invalid),
        ({"MessageBody": "b", "MessageDeduplicationId": "d"}, invalid),
        ({"MessageBody": "b", "MessageGroupId": "g" * 129}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {f"a{number}": text("b") for number in range(11)}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"AWS.a": text("b")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a..b": text("b")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {".a": text("b")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a" * 257: text("b")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a": text("b", "Text")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a": text("")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a": text("one", "Number")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a": text("b", "Binary")}}, invalid),
        ({"MessageBody": "b", "MessageAttributes": {"a": text("\x1f")}}, contents),
        ({"MessageBody": "b", "MessageSystemAttributes": {"Other": text("b")}}, invalid),
    ):
        send = partial(sqs.send_message, QueueUrl=url, **given)
        if code is None:
            await send()
        else:
            assert await refusal(sqs, send) == code, given
    assert (await broker.status("q")).ready == 1


@pytest.mark.slow
async def test_batches_that_are_refused_as_a_whole(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url, old = await make_queue(), "AWS.SimpleQueueService."

    def entries(*ids: str, body: str = "b") -> list[dict[str, str]]:
        return [{"Id": id, "MessageBody": body} for id in ids]

    for given, code in (
        ([], "EmptyBatchRequest"),
        (entries(*map(str, range(11))), "TooManyEntriesInBatchRequest"),
        (entries("a", "a"), "BatchEntryIdsNotDistinct"),
        (entries("a", "b!"), "InvalidBatchEntryId"),
        (entries("a", "b", body="b" * (1 << 19)) + entries("c"), "BatchRequestTooLong"),
    ):
        assert await refusal(sqs, partial(sqs.send_message_batch, QueueUrl=url, Entries=given)) == old + code
    assert (await broker.status("q")).ready == 0
    await sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b", body="ö" * (1 << 18)))
    received = (await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10))["Messages"]
    assert [message["Body"] for message in received] == ["ö" * (1 << 18)] * 2


async def test_a_message_of_its_own_delay(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue(DelaySeconds="900")
    await sqs.send_message(QueueUrl=url, MessageBody="later")
    await sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    [message] = (await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10))["Messages"]
    assert message["Body"] == "now"
    assert (await broker.status("q")).delayed == 1


async def test_a_group_on_a_standard_queue_is_kept_and_shown(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    await sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="g-1")
    [message] = (await sqs.receive_message(QueueUrl=url, AttributeNames=["MessageGroupId"]))["Messages"]
    assert message["Attributes"] == {"MessageGroupId": "g-1"}


async def test_groups_of_a_standard_queue_take_turns(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    """And none waits for another message of its own group. What HTTP and AMQP fetch comes in the same order."""
    url = await make_queue()
    noisy = [{"Id": f"{n}", "MessageBody": f"noisy {n}", "MessageGroupId": "noisy"} for n in range(6)]
    await sqs.send_message_batch(QueueUrl=url, Entries=noisy)
    await sqs.send_message(QueueUrl=url, MessageBody="quiet 0", MessageGroupId="quiet")
    await sqs.send_message(QueueUrl=url, MessageBody="alone 0")
    received = [(await sqs.receive_message(QueueUrl=url))["Messages"][0]["Body"] for _ in range(4)]
    assert received == ["noisy 0", "quiet 0", "alone 0", "noisy 1"]
    fetched = await broker.fetch_many("q", 2)
    assert [await message.body.read() for message in fetched] == [b"noisy 2", b"noisy 3"]


# Received


async def test_attributes_that_are_asked_for(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    attributes = {name: text(name) for name in ("a", "b.one", "b.two", "c")}
    await sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=attributes)
    for wanted, found in (
        ([], []),
        (["a"], ["a"]),
        (["b.*", "c"], ["b.one", "b.two", "c"]),
        ([".*"], ["a", "b.one", "b.two", "c"]),
    ):
        receive = partial(sqs.receive_message, QueueUrl=url, VisibilityTimeout=0, WaitTimeSeconds=5)
        [message] = (await receive(MessageAttributeNames=wanted))["Messages"]
        assert sorted(message.get("MessageAttributes", {})) == found
        digest = md5_of({name: Attribute("String", name) for name in found}) if found else None
        assert message.get("MD5OfMessageAttributes") == digest
    await refusal(sqs, partial(receive, AttributeNames=["Colour"]))


async def test_numbers_out_of_range(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    for given in (
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"WaitTimeSeconds": -1},
        {"VisibilityTimeout": 43_201},
    ):
        asked = partial(sqs.receive_message, QueueUrl=url, **given)
        assert await refusal(sqs, asked) == "InvalidParameterValue"


async def test_a_queues_own_wait(sqs: Client, make_queue: MakeQueue, door: SqsDoor) -> None:
    """The receive waits until mq stops; then it is answered without a message."""
    url = await make_queue(ReceiveMessageWaitTimeSeconds="20")
    assert "Messages" not in await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(sqs.receive_message, QueueUrl=url))
            while not door._desk.waits._scopes:
                await trio.sleep(0.01)
            door.end()


# Receipt handles


async def test_a_handle_is_of_one_delivery(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    """Who was too late deletes nothing that another one works on; AWS answers the same."""
    url = await make_queue()
    await sqs.send_message(QueueUrl=url, MessageBody="b")
    [first] = (await sqs.receive_message(QueueUrl=url, VisibilityTimeout=0))["Messages"]
    [second] = (await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5))["Messages"]
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert (await broker.status("q")).leased == 1
    late = partial(sqs.change_message_visibility, QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert await refusal(sqs, partial(late, VisibilityTimeout=9)) == "AWS.SimpleQueueService.MessageNotInflight"
    change = partial(sqs.change_message_visibility, QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    await change(VisibilityTimeout=43_200)
    assert await refusal(sqs, partial(change, VisibilityTimeout=43_201)) == "InvalidParameterValue"
    delete = partial(sqs.delete_message, QueueUrl=url)
    await delete(ReceiptHandle=second["ReceiptHandle"])
    await delete(ReceiptHandle=second["ReceiptHandle"])
    assert (await broker.status("q")).leased == 0
    assert await refusal(sqs, partial(delete, ReceiptHandle="nonsense")) == "ReceiptHandleIsInvalid"


async def test_a_late_delete_of_what_nobody_got_since(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    """The work is done: nobody has to do it again."""
    url = await make_queue()
    for _ in range(2):
        await sqs.send_message(QueueUrl=url, MessageBody="b")
    received = (await sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, MaxNumberOfMessages=2))["Messages"]
    handles = [message["ReceiptHandle"] for message in received]
    while (await broker.status("q")).ready < 2:
        await trio.sleep(0.01)
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=handles[0])
    assert (await broker.status("q")).ready == 1
    await sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": handles[1]}])
    assert (await broker.status("q")).ready == 0


def test_handles_there_and_back() -> None:
    id = MessageId("00000000-0000-1000-8000-000000000001")
    message = Message("q", id, BytesBody(b""), Properties(0, None), 7, "0123456789abcdef")
    handle = ReceiptHandle.of(message)
    assert ReceiptHandle.parse(handle.text) == handle
    for wrong in ("", "ö", "a", handle.text[:-8], handle.text + "AAAA", "MQ=="):
        with pytest.raises(SqsError, match="receipt handle is invalid"):
            ReceiptHandle.parse(wrong)
