"""Queues, their attributes and their tags, by boto3, in both protocols."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest
import trio

from mq.broker import Broker, BrokerConfig, QueueSettings, open_broker
from mq.broker.api import ALONE
from mq.message import QueueName
from mq.sqs.notes import NoteBook, Notes
from mq.storage.memory import MemoryStorage
from tests.sqs.clients import Client

MakeQueue = Callable[..., Any]


async def refusal(sqs: Client, asked: Callable[[], Awaitable[Any]]) -> str:
    """The code of the error that a call ends with."""
    with pytest.raises(sqs.exceptions.ClientError) as caught:
        await asked()
    assert caught.value.response["Error"]["Message"]
    return str(caught.value.response["Error"]["Code"])


async def test_a_queue_is_made_once_and_found_again(sqs: Client, broker: Broker) -> None:
    attributes = {"VisibilityTimeout": "12", "ReceiveMessageWaitTimeSeconds": "3", "MaximumMessageSize": "2048"}
    create = partial(sqs.create_queue, QueueName="q")
    url = (await create(Attributes=attributes))["QueueUrl"]
    assert (await create(Attributes=attributes))["QueueUrl"] == url
    assert (await create())["QueueUrl"] == url
    assert (await sqs.get_queue_url(QueueName="q"))["QueueUrl"] == url
    for name, other in (("VisibilityTimeout", "13"), ("ReceiveMessageWaitTimeSeconds", "0"), ("DelaySeconds", "1")):
        assert await refusal(sqs, partial(create, Attributes={name: other})) == "QueueAlreadyExists"
    assert (await broker.status("q")).settings == QueueSettings(visibility=12, ttl=345_600)


async def test_a_queue_without_a_visibility_has_the_daemons(sqs: Client, broker: Broker) -> None:
    await broker.create_queue("q")
    await sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "30"})


async def test_attributes(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue()
    shown = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    created = (await broker.status("q")).created_ns // 10**9
    assert shown == {
        "QueueArn": "arn:aws:sqs:eu-central-1:000000000000:q",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "CreatedTimestamp": str(created),
        "LastModifiedTimestamp": str(created),
        "VisibilityTimeout": "30",
        "DelaySeconds": "0",
        "MessageRetentionPeriod": "345600",
        "MaximumMessageSize": "1048576",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "false",
    }
    change = {
        "VisibilityTimeout": "0",
        "DelaySeconds": "900",
        "MessageRetentionPeriod": "60",
        "MaximumMessageSize": "1024",
        "ReceiveMessageWaitTimeSeconds": "20",
        "SqsManagedSseEnabled": "true",
        "Policy": "",
    }
    await sqs.set_queue_attributes(QueueUrl=url, Attributes=change)
    del change["Policy"]
    shown = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(change)))["Attributes"]
    assert shown == change
    assert "Attributes" not in await sqs.get_queue_attributes(QueueUrl=url)
    settings = (await broker.status("q")).settings
    assert (settings.visibility, settings.delay, settings.ttl) == (0.001, 900, 60)


_REFUSED: Final = (
    ("VisibilityTimeout", "43201", "InvalidAttributeValue"),
    ("VisibilityTimeout", "-1", "InvalidAttributeValue"),
    ("DelaySeconds", "901", "InvalidAttributeValue"),
    ("MessageRetentionPeriod", "59", "InvalidAttributeValue"),
    ("MaximumMessageSize", "1023", "InvalidAttributeValue"),
    ("MaximumMessageSize", "1048577", "InvalidAttributeValue"),
    ("ReceiveMessageWaitTimeSeconds", "x", "InvalidAttributeValue"),
    ("SqsManagedSseEnabled", "yes", "InvalidAttributeValue"),
    ("RedrivePolicy", "{", "InvalidAttributeValue"),
    ("RedrivePolicy", '{"maxReceiveCount": 3}', "InvalidAttributeValue"),
    ("RedriveAllowPolicy", '{"redrivePermission": "some"}', "InvalidAttributeValue"),
    ("RedriveAllowPolicy", '{"redrivePermission": "byQueue"}', "InvalidAttributeValue"),
    ("Policy", '{"Version": "2012-10-17"}', "AWS.SimpleQueueService.UnsupportedOperation"),
    ("KmsMasterKeyId", "alias/aws/sqs", "AWS.SimpleQueueService.UnsupportedOperation"),
    ("FifoQueue", "true", "InvalidParameterValue"),
    ("FifoQueue", "false", "InvalidAttributeName"),
    ("ContentBasedDeduplication", "true", "InvalidAttributeName"),
    ("Colour", "blue", "InvalidAttributeName"),
    ("QueueArn", "a", "InvalidAttributeName"),
)
"""Attribute, value, and the code of the refusal."""


async def test_attributes_that_are_refused(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue()
    before = await broker.status("q")
    for name, text, code in _REFUSED:
        both = {"DelaySeconds": "7", name: text}
        assert await refusal(sqs, partial(sqs.set_queue_attributes, QueueUrl=url, Attributes=both)) == code
        assert await refusal(sqs, partial(sqs.create_queue, QueueName="other", Attributes=both)) == code
    assert await broker.queues() == [before]


async def test_names_that_no_queue_may_have(sqs: Client) -> None:
    for name in ("a.b", "a b", "", "a" * 81, "-a", "größe", "a/b"):
        assert await refusal(sqs, partial(sqs.create_queue, QueueName=name)) == "InvalidParameterValue"


async def test_lists_in_pages(sqs: Client, broker: Broker) -> None:
    assert "QueueUrls" not in await sqs.list_queues()
    for number in range(5):
        await broker.create_queue(f"q{number}")
    await broker.create_queue("other")

    def names(answer: Any) -> list[str]:
        return [url.rpartition("/")[2] for url in answer["QueueUrls"]]

    assert names(await sqs.list_queues()) == ["other", "q0", "q1", "q2", "q3", "q4"]
    page = await sqs.list_queues(QueueNamePrefix="q", MaxResults=3)
    assert names(page) == ["q0", "q1", "q2"]
    rest = await sqs.list_queues(QueueNamePrefix="q", MaxResults=3, NextToken=page["NextToken"])
    assert (names(rest), "NextToken" in rest) == (["q3", "q4"], False)
    assert await refusal(sqs, partial(sqs.list_queues, MaxResults=1001)) == "InvalidParameterValue"
    assert await refusal(sqs, partial(sqs.list_queues, NextToken="ö")) == "InvalidParameterValue"


async def test_a_queue_that_is_deleted_is_gone_with_what_was_noted(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    url = await make_queue(MaximumMessageSize="1024")
    await sqs.tag_queue(QueueUrl=url, Tags={"a": "b"})
    await sqs.delete_queue(QueueUrl=url)
    gone = "AWS.SimpleQueueService.NonExistentQueue"
    assert await refusal(sqs, partial(sqs.delete_queue, QueueUrl=url)) == gone
    assert await refusal(sqs, partial(sqs.send_message, QueueUrl=url, MessageBody="b")) == gone
    await broker.create_queue("q")
    assert (await broker.settings("q")).sqs is None


async def test_notes_of_a_queue_are_not_those_of_a_later_one(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    url = await make_queue(MaximumMessageSize="1024")
    await sqs.tag_queue(QueueUrl=url, Tags={"a": "b"})
    await broker.delete_queue("q")  # by another door
    await broker.create_queue("q")
    assert "Tags" not in await sqs.list_queue_tags(QueueUrl=url)
    await sqs.send_message(QueueUrl=url, MessageBody="b" * 1025)


async def test_a_purge(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue()
    for _ in range(3):
        await sqs.send_message(QueueUrl=url, MessageBody="b")
    await sqs.receive_message(QueueUrl=url)
    await sqs.purge_queue(QueueUrl=url)
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 1)


async def test_tags(sqs: Client, make_queue: MakeQueue) -> None:
    url = (await sqs.create_queue(QueueName="q", tags={"team": "shop", "Größe": ""}))["QueueUrl"]
    await sqs.tag_queue(QueueUrl=url, Tags={"team": "office", "cost": "a=b/c"})
    await sqs.untag_queue(QueueUrl=url, TagKeys=["Größe", "none"])
    assert (await sqs.list_queue_tags(QueueUrl=url))["Tags"] == {"team": "office", "cost": "a=b/c"}
    for tags in ({"aws:a": "b"}, {"a": "b" * 257}, {f"k{number}": "" for number in range(49)}, {"a\x07": "b"}):
        if "a\x07" not in tags or sqs.made.meta.service_model.metadata["protocol"] == "json":
            assert await refusal(sqs, partial(sqs.tag_queue, QueueUrl=url, Tags=tags)) == "InvalidParameterValue"
    assert len((await sqs.list_queue_tags(QueueUrl=url))["Tags"]) == 2


async def test_permissions_are_mqs_own(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    add = partial(sqs.add_permission, QueueUrl=url, Label="l", AWSAccountIds=["1"], Actions=["*"])
    assert await refusal(sqs, add) == "AWS.SimpleQueueService.UnsupportedOperation"
    remove = partial(sqs.remove_permission, QueueUrl=url, Label="l")
    assert await refusal(sqs, remove) == "AWS.SimpleQueueService.UnsupportedOperation"


async def test_what_is_noted_outlives_the_broker(store: MemoryStorage) -> None:
    """It is a part of the queue's record, and goes with the queue."""
    async with open_broker(store, BrokerConfig()) as broker:
        for queue in ("q", "gone"):
            await broker.create_queue(queue)
            await NoteBook(broker).change(QueueName(queue), Notes({"a": "b"}, {"c": "d", "e": ""}, 7).setting())
        await broker.delete_queue("gone")
    async with open_broker(store, BrokerConfig()) as broker:
        assert await NoteBook(broker).read("q") == Notes({"a": "b"}, {"c": "d", "e": ""}, 7)
        await NoteBook(broker).change(QueueName("q"), Notes({"a": ""}, {"e": "f"}).setting())
        assert await NoteBook(broker).read("q") == Notes({}, {"c": "d", "e": "f"}, 7)
        await broker.create_queue("gone")
        assert await NoteBook(broker).read("gone") == Notes()
    assert set(await store.records("queue")) == {"q", "gone"}
    assert await store.records("sqs") == {}


async def test_change_counts_at_once_although_notes_were_read_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a node of a cluster, which keeps for a second what it has read."""
    await broker.create_queue("q")
    monkeypatch.setattr(Broker, "membership", ALONE._replace(node="a"))
    book, before = NoteBook(broker), broker.change_settings

    async def change_settings(*arguments: Any) -> QueueSettings:
        assert await book.recent("q") == Notes()
        return await before(*arguments)

    monkeypatch.setattr(broker, "change_settings", change_settings)
    await book.change(QueueName("q"), Notes({"a": "b"}).setting())
    assert await book.recent("q") == Notes({"a": "b"})


async def test_two_changes_of_tags_at_a_time_are_both_made(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(partial(sqs.tag_queue, QueueUrl=url, Tags={f"k{number}": "v"}))
    assert len((await sqs.list_queue_tags(QueueUrl=url))["Tags"]) == 8


async def test_urls_of_other_hosts_and_mere_names_will_do(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    for other in (url.replace("127.0.0.1", "mq.example"), "https://sqs.eu-central-1.amazonaws.com/123456789012/q", "q"):
        if sqs.made.meta.service_model.metadata["protocol"] == "json":
            await sqs.send_message(QueueUrl=other, MessageBody="b")
    # where the query protocol goes to the URL itself
    assert json.dumps(url).endswith('/000000000000/q"')
