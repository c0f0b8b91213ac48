"""SendMessage, ReceiveMessage and DeleteMessage that begin in the step that read the request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.access import UserDirectory
from mq.access.aws_keys import AwsKey
from mq.access.rights import Right
from mq.access.user_limits import UserLimits
from mq.access.users_editor import UsersFile
from mq.broker import Broker
from mq.doors.budget import Budget
from mq.doors.logins import Logins
from mq.sqs.door import SqsDoor
from mq.web.endpoints import Endpoints
from mq.web.exchange import Later, Reply, Request
from tests.sqs.test_signatures import sign
from tests.web.talking import MAX_BODY

URL = "http://mq/000000000000/q"


class Client:
    """Begins actions, and gets their replies."""

    def __init__(self, door: SqsDoor, key: AwsKey | None = None) -> None:
        self.door = door
        self._key = key

    def request(self, action: str, **given: Any) -> Request:
        body = json.dumps(given).encode()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        if self._key is None:
            named = {"host": "mq", **{name.lower(): value for name, value in headers.items()}}
        else:
            _, _, named, _ = sign(self._key, "POST", "http://mq/", body, headers)
        return Request("POST", b"/", b"", named, body, len(body))

    async def begin(self, action: str, **given: Any) -> tuple[int, Any] | None:
        """The status and the body of the reply; None where nothing has begun."""
        replies: list[Reply | Later] = []

        def answer(make: Callable[..., Reply | Later], *values: Any) -> None:
            replies.append(make(*values))

        request = self.request(action, **given)
        begun = self.door.for_head(request).begin(request, answer)
        if begun is None:
            assert replies == []
            return None
        if isinstance(begun, Reply):
            assert replies == []
            return await read(begun)
        await wait_all_tasks_blocked()
        [reply] = replies
        return await read(reply if isinstance(reply, Reply) else await reply())

    async def ask(self, action: str, **given: Any) -> tuple[int, Any]:
        return await read(await self.door.handle(self.request(action, **given)))


async def read(reply: Reply) -> tuple[int, Any]:
    body = reply.body if isinstance(reply.body, bytes) else b"".join([piece async for piece in reply.body])
    return reply.status, json.loads(body or b"null")


@pytest.fixture
async def client(door: SqsDoor, broker: Broker) -> Client:
    client = Client(door)
    await broker.create_queue("measured")  # a worker serves the first fetch in a while
    await broker.publish("measured", b"x")
    await broker.fetch("measured")
    await client.ask("CreateQueue", QueueName="q")
    return client


async def test_a_message_is_sent_received_and_deleted_in_begun_actions(client: Client, broker: Broker) -> None:
    sent = await client.begin("SendMessage", QueueUrl=URL, MessageBody="hello")
    assert sent is not None
    assert sent[0] == 200
    received = await client.begin("ReceiveMessage", QueueUrl=URL, AttributeNames=["All"])
    assert received is not None
    [message] = received[1]["Messages"]
    assert (message["Body"], message["MessageId"]) == ("hello", sent[1]["MessageId"])
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert await client.begin("ReceiveMessage", QueueUrl=URL) == (200, {})
    assert await client.begin("DeleteMessage", QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"]) == (200, None)
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 0)


async def test_begun_and_awaited_actions_answer_alike(client: Client) -> None:
    await client.begin("SendMessage", QueueUrl=URL, MessageBody="a")
    await client.ask("SendMessage", QueueUrl=URL, MessageBody="a")
    begun = await client.begin("ReceiveMessage", QueueUrl=URL)
    awaited = await client.ask("ReceiveMessage", QueueUrl=URL)
    assert begun is not None
    [[one], [other]] = begun[1]["Messages"], awaited[1]["Messages"]
    assert one.keys() == other.keys()
    assert one["MD5OfBody"] == other["MD5OfBody"]


async def test_a_deletion_after_the_end_of_the_lease_is_left_to_the_long_way(client: Client, broker: Broker) -> None:
    await client.begin("SendMessage", QueueUrl=URL, MessageBody="a")
    received = await client.begin("ReceiveMessage", QueueUrl=URL)
    assert received is not None
    handle, id = (received[1]["Messages"][0][name] for name in ("ReceiptHandle", "MessageId"))
    await broker.requeue("q", id)
    assert await client.begin("DeleteMessage", QueueUrl=URL, ReceiptHandle=handle) is None
    assert (await client.ask("DeleteMessage", QueueUrl=URL, ReceiptHandle=handle))[0] == 200
    assert (await broker.status("q")).ready == 0, "its work is done"


async def test_a_long_body_is_answered_later(client: Client) -> None:
    for _ in range(2):
        await client.ask("SendMessage", QueueUrl=URL, MessageBody="x" * 60_000)
    received = await client.begin("ReceiveMessage", QueueUrl=URL, MaxNumberOfMessages=10)
    assert received is not None
    assert [len(message["Body"]) for message in received[1]["Messages"]] == [60_000, 60_000]


@pytest.mark.parametrize("wait", [1, 20])
async def test_a_receive_that_has_to_wait_does_not_begin(client: Client, wait: int) -> None:
    assert await client.begin("ReceiveMessage", QueueUrl=URL, WaitTimeSeconds=wait) is None


async def test_other_queues_and_actions_do_not_begin(client: Client) -> None:
    await client.ask("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
    fifo = {"QueueUrl": f"{URL}.fifo", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    assert await client.begin("SendMessage", MessageBody="a", **fifo) is None
    assert await client.begin("ReceiveMessage", QueueUrl=f"{URL}.fifo") is None
    assert await client.begin("SendMessage", QueueUrl=f"{URL}2", MessageBody="a") is None
    assert await client.begin("ListQueues") is None
    assert await client.begin("SendMessage", QueueUrl=URL, MessageBody="a" * 20_000) is None


async def test_refusals_of_a_begun_action_are_those_of_sqs(client: Client) -> None:
    for given, name in (
        ({"MessageBody": ""}, "InvalidParameterValue"),
        ({}, "MissingParameter"),
        ({"MessageBody": 7}, "SerializationException"),
    ):
        begun = await client.begin("SendMessage", QueueUrl=URL, **given)
        assert begun == await client.ask("SendMessage", QueueUrl=URL, **given)
        assert begun is not None
        assert begun[1]["__type"].endswith(name)


async def test_signatures_and_rights_of_begun_actions(broker: Broker, tmp_path: Path, nursery: trio.Nursery) -> None:
    users = UsersFile(str(tmp_path / "users"))
    users.add("shop", {Right.PUBLISH: ["q"]}, None, only_aws_key=True, limits=UserLimits(publish_rate=0.001))
    key = users.add_aws_key("shop")
    door = SqsDoor(
        Endpoints(broker, MAX_BODY), broker, Budget(), nursery, Logins(UserDirectory(str(tmp_path / "users")))
    )
    await broker.create_queue("q")
    client = Client(door, key)
    sent = await client.begin("SendMessage", QueueUrl=URL, MessageBody="a")
    assert sent is not None
    assert sent[0] == 200
    throttled = await client.begin("SendMessage", QueueUrl=URL, MessageBody="a")
    assert throttled is not None
    assert throttled[1]["__type"].endswith("RequestThrottled")
    denied = await client.begin("ReceiveMessage", QueueUrl=URL)
    assert denied is not None
    assert denied[1]["__type"].endswith("AccessDeniedException")
    stranger = Client(door, key._replace(id="AKIA" + "0" * 16))
    assert await stranger.begin("SendMessage", QueueUrl=URL, MessageBody="a") is None
    forger = Client(door, key._replace(secret="x" * 40))
    forged = await forger.begin("SendMessage", QueueUrl=URL, MessageBody="a")
    assert forged is not None
    assert forged[1]["__type"].endswith("SignatureDoesNotMatch")
    fifo = await forger.begin("SendMessage", QueueUrl=f"{URL}.fifo", MessageBody="a")
    assert fifo is None  # left to the long way before its signature is verified, which would be done twice
    assert (await broker.status("q")).ready == 1
