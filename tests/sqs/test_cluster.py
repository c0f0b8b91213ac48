"""A cluster queue over SQS: sent at one node, received and deleted at others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mq.broker.api import CLUSTER
from mq.doors.budget import Budget
from mq.sqs.door import SqsDoor
from mq.web.exchange import Request
from tests.cluster import nodes
from tests.cluster.nodes import Host, three_nodes


async def ask(host: Host, door: SqsDoor, action: str, **wanted: Any) -> tuple[int, Any]:
    body = json.dumps({"QueueUrl": "q", **wanted}).encode()
    headers = {"host": host.name, "x-amz-target": f"AmazonSQS.{action}"}
    reply = await door.handle(Request("POST", b"/", b"", headers, body, len(body)))
    assert isinstance(reply.body, bytes)
    return reply.status, json.loads(reply.body or b"{}")


async def test_a_queue_is_the_same_at_every_node(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        hosts = [cluster.hosts[name] for name in "abc"]
        doors = [SqsDoor(each.endpoints, each.node.broker, Budget(), each.nursery) for each in hosts]
        (a, at_a), (b, at_b), (c, at_c) = zip(hosts, doors, strict=True)
        assert (await b.http("PUT", "/q?store=cluster")).status == 201
        assert (await ask(a, at_a, "CreateQueue", QueueName="q"))[0] == 200
        attributes = {"kind": {"DataType": "Binary", "BinaryValue": "/w=="}}
        status, sent = await ask(b, at_b, "SendMessage", MessageBody="hello", MessageAttributes=attributes)
        assert status == 200
        _, answer = await ask(c, at_c, "ReceiveMessage", MessageAttributeNames=["All"], WaitTimeSeconds=5)
        [message] = answer["Messages"]
        assert (message["MessageId"], message["MessageAttributes"]) == (sent["MessageId"], attributes)
        handle = message["ReceiptHandle"]
        assert (await ask(a, at_a, "ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=60))[0] == 200
        assert (await ask(a, at_a, "DeleteMessage", ReceiptHandle=handle))[0] == 200
        _, shown = await ask(b, at_b, "GetQueueAttributes", AttributeNames=["All"])
        assert shown["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0"
        _, other = await ask(c, at_c, "GetQueueAttributes", AttributeNames=["CreatedTimestamp"])
        assert shown["Attributes"]["CreatedTimestamp"] == other["Attributes"]["CreatedTimestamp"] != "0"
        assert (await b.http("PATCH", "/q", b'{"sqs": {"tags": {"a": "b"}}}')).status == 400, "that is for SQS alone"
        assert (await ask(c, at_c, "DeleteQueue"))[0] == 200
        assert (await ask(a, at_a, "GetQueueAttributes"))[0] == 400


class Station:
    """SQS at one node."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._door = SqsDoor(host.endpoints, host.node.broker, Budget(), host.nursery)

    async def ask(self, action: str, **wanted: Any) -> Any:
        """The answer to an action, which succeeds."""
        status, answer = await ask(self.host, self._door, action, **wanted)
        assert status == 200, answer
        return answer

    async def attributes(self, queue: str) -> dict[str, str]:
        answer = await self.ask("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"])
        return dict(answer["Attributes"])

    async def tags(self, queue: str) -> dict[str, str]:
        answer = await self.ask("ListQueueTags", QueueUrl=queue)
        return dict(answer.get("Tags", {}))


@asynccontextmanager
async def stations(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Station, Station, Station]]:
    """SQS at each of three nodes, whose new queues are highly available; the first is master."""
    plain = nodes.config_of
    monkeypatch.setattr(nodes, "config_of", lambda name: dataclasses.replace(plain(name), default_store=CLUSTER))
    async with three_nodes() as cluster:
        a, b, c = (Station(cluster.hosts[name]) for name in "abc")
        yield a, b, c


async def test_attributes_and_tags_are_the_same_at_every_node(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stations(monkeypatch) as (a, b, c):
        given = {"ReceiveMessageWaitTimeSeconds": "3", "VisibilityTimeout": "12"}
        await b.ask("CreateQueue", QueueName="q", Attributes=given, tags={"team": "shop"})
        assert {**given, **await c.attributes("q")} == await a.attributes("q") == await b.attributes("q")
        assert (await c.attributes("q"))["ReceiveMessageWaitTimeSeconds"] == "3"
        await c.ask("CreateQueue", QueueName="q", Attributes=given)
        await c.ask("SetQueueAttributes", QueueUrl="q", Attributes={"MaximumMessageSize": "2048"})
        assert [(await each.attributes("q"))["MaximumMessageSize"] for each in (a, b, c)] == ["2048"] * 3
        async with trio.open_nursery() as nursery:  # at the same time, each at its node
            for number, each in enumerate((a, b, c)):
                tags = {f"k{number}": "v"}
                nursery.start_soon(lambda at, tags: at.ask("TagQueue", QueueUrl="q", Tags=tags), each, tags)
        await a.ask("UntagQueue", QueueUrl="q", TagKeys=["team"])
        assert [await each.tags("q") for each in (a, b, c)] == [{"k0": "v", "k1": "v", "k2": "v"}] * 3
        await a.host.kill()
        await b.host.wait_for_master()
        assert await c.tags("q") == {"k0": "v", "k1": "v", "k2": "v"}
        assert (await c.attributes("q"))["MaximumMessageSize"] == "2048"
        await c.ask("DeleteQueue", QueueUrl="q")
        await b.ask("CreateQueue", QueueName="q")
        assert (await c.tags("q"), (await c.attributes("q"))["MaximumMessageSize"]) == ({}, "1048576")


async def test_a_changed_attribute_counts_at_every_node_after_a_second(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stations(monkeypatch) as (a, b, c):
        await a.ask("CreateQueue", QueueName="q")
        for each in (a, b, c):
            await each.ask("SendMessage", QueueUrl="q", MessageBody="x" * 2000)
        await b.ask("SetQueueAttributes", QueueUrl="q", Attributes={"MaximumMessageSize": "1024"})
        await trio.sleep(1.1)
        for each in (a, b, c):
            status, _ = await ask(each.host, each._door, "SendMessage", QueueUrl="q", MessageBody="x" * 2000)
            assert status == 400


@pytest.mark.parametrize("is_by_content", [True, False])
async def test_a_message_is_deduplicated_at_every_node_and_after_a_change_of_master(
    is_by_content: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stations(monkeypatch) as (a, b, c):
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": str(is_by_content).lower()}
        await b.ask("CreateQueue", QueueName="q.fifo", Attributes=attributes)
        key = {} if is_by_content else {"MessageDeduplicationId": "k"}
        sent = {"QueueUrl": "q.fifo", "MessageGroupId": "g", "MessageBody": "hello", **key}
        first = await a.ask("SendMessage", **sent)
        assert await b.ask("SendMessage", **sent) == await c.ask("SendMessage", **sent) == first
        await a.host.kill()
        await b.host.wait_for_master()
        assert (await c.ask("SendMessage", **sent))["MessageId"] == first["MessageId"]
        _, answer = await ask(b.host, b._door, "ReceiveMessage", QueueUrl="q.fifo", MaxNumberOfMessages=10)
        assert [message["MessageId"] for message in answer["Messages"]] == [first["MessageId"]]
