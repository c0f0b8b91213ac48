"""A highly available queue over SQS: sent at one node, received and deleted at others."""

from __future__ import annotations

import json
from typing import Any

from trio.testing import MockClock

from mq.doors.budget import Budget
from mq.sqs.door import SqsDoor
from mq.web.exchange import Request
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
        assert (await ask(c, at_c, "DeleteQueue"))[0] == 200
        assert (await ask(a, at_a, "GetQueueAttributes"))[0] == 400
