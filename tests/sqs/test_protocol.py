"""What stands on the wire, and what of HTTP's requests is not meant for SQS."""

from __future__ import annotations

import json
import logging
import re
from xml.etree import ElementTree

import pytest
import trio

from mq.broker import Broker
from mq.doors.budget import Budget
from mq.errors import (
    BrokerClosed,
    Conflict,
    CorruptMessage,
    MQError,
    NoMemory,
    NoSuchQueue,
    PublishPaused,
    QueueFull,
    StorageFull,
    StorageUnsure,
)
from mq.sqs.actions import Action
from mq.sqs.door import SqsDoor
from mq.sqs.errors import sqs_error
from mq.sqs.queue_actions import list_queues
from mq.sqs.shapes import Struct
from mq.web.exchange import BodyTooSlow, Reply, Request
from mq.web.front import BrowserGuard
from tests.cases import for_each
from tests.web.talking import http1, parse, start_server

FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


async def ask(door: SqsDoor, path: str, body: bytes, **headers: str) -> Reply:
    named = {"host": "mq:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await door.handle(Request("POST", path.encode(), b"", named, body, len(body)))


async def ask_json(door: SqsDoor, action: str, body: bytes, path: str = "/") -> Reply:
    return await ask(door, path, body, x_amz_target=f"AmazonSQS.{action}")


async def ask_form(door: SqsDoor, body: bytes, path: str = "/") -> Reply:
    return await ask(door, path, body, content_type=FORM["content-type"])


async def test_json(door: SqsDoor) -> None:
    reply = await ask_json(door, "CreateQueue", b'{"QueueName": "q", "Unknown": {}}')
    headers = dict(reply.headers)
    assert (reply.status, headers["content-type"]) == (200, "application/x-amz-json-1.0")
    assert len(headers["x-amzn-requestid"]) == 32
    assert isinstance(reply.body, bytes)
    assert json.loads(reply.body) == {"QueueUrl": "http://mq:8080/000000000000/q"}


async def test_an_error_in_json(door: SqsDoor) -> None:
    reply = await ask_json(door, "GetQueueUrl", b'{"QueueName": "none"}')
    assert isinstance(reply.body, bytes)
    assert json.loads(reply.body) == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    assert dict(reply.headers)["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"


@pytest.mark.parametrize(
    ("action", "body", "name"),
    [
        ("Nonsense", b"{}", "UnknownOperationException"),
        ("ListQueues", b"{", "SerializationException"),
        ("ListQueues", b"[]", "SerializationException"),
        ("ListQueues", b"\xff", "SerializationException"),
        ("ListQueues", b'{"MaxResults": "1"}', "SerializationException"),
        ("ListQueues", b"[" * 100_000, "SerializationException"),
        ("SendMessage", b"{}", "MissingParameter"),
        ("SendMessage", b'{"QueueUrl": "http://mq/a/b/c"}', "InvalidAddress"),
    ],
)
async def test_requests_that_are_malformed(door: SqsDoor, action: str, body: bytes, name: str) -> None:
    reply = await ask_json(door, action, body)
    assert isinstance(reply.body, bytes)
    assert (reply.status, json.loads(reply.body)["__type"]) == (400, f"com.amazonaws.sqs#{name}")


async def test_xml(door: SqsDoor) -> None:
    reply = await ask_form(door, b"Action=CreateQueue&QueueName=q&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5")
    assert isinstance(reply.body, bytes)
    tree = ElementTree.fromstring(reply.body)
    assert (reply.status, tree.tag) == (200, f"{SPACE}CreateQueueResponse")
    assert tree.findtext(f"{SPACE}CreateQueueResult/{SPACE}QueueUrl") == "http://mq:8080/000000000000/q"
    assert tree.findtext(f"{SPACE}ResponseMetadata/{SPACE}RequestId") == dict(reply.headers)["x-amzn-requestid"]


async def test_an_error_in_xml(door: SqsDoor) -> None:
    reply = await ask_form(door, b"Action=GetQueueUrl&QueueName=none")
    assert isinstance(reply.body, bytes)
    tree = ElementTree.fromstring(reply.body)
    assert (reply.status, tree.tag) == (400, f"{SPACE}ErrorResponse")
    assert tree.findtext(f"{SPACE}Error/{SPACE}Type") == "Sender"
    assert tree.findtext(f"{SPACE}Error/{SPACE}Code") == "AWS.SimpleQueueService.NonExistentQueue"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MissingAction"),
        (b"Action=Nonsense", "InvalidAction"),
        (b"Action=ListQueues&MaxResults=many", "MalformedInput"),
        (b"Action=ListQueues&Action=ListQueues", "MalformedQueryString"),
        (b"Action=ListQueues&Action.1=ListQueues", "MalformedQueryString"),
        (b"Action=CreateQueue&QueueName=q&Attribute.x.Name=DelaySeconds", "MalformedInput"),
        (b"Action=CreateQueue&QueueName=q&Attribute.1.Name=DelaySeconds", "MalformedInput"),
        (b"Action=ListQueues&QueueNamePrefix=%ff", "MalformedQueryString"),
        (b"&".join([b"Action=ListQueues", *[b"a%d=b" % number for number in range(2000)]]), "MalformedQueryString"),
    ],
)
async def test_forms_that_are_malformed(door: SqsDoor, body: bytes, code: str) -> None:
    reply = await ask_form(door, body)
    assert isinstance(reply.body, bytes)
    assert reply.status == 400
    assert f"<Code>{code}</Code>".encode() in reply.body


async def test_the_path_of_a_form_names_its_queue(door: SqsDoor, broker: Broker) -> None:
    """As older SDKs have it."""
    await broker.create_queue("q")
    send = b"Action=SendMessage&MessageBody=b&Version=2012-11-05"
    assert (await ask_form(door, send, "/000000000000/q")).status == 200
    assert (await ask_form(door, send, "/queue/q")).status == 200
    assert (await broker.status("q")).ready == 2


async def test_a_form_that_is_published_is_a_message(door: SqsDoor, broker: Broker) -> None:
    """curl says of all that it sends that it is a form; and a queue may be called as the account is."""
    for queue in ("000000000000", "queue"):
        await broker.create_queue(queue)
        for body in (b"hello", b"Action=SendMessage&MessageBody=b", b"%ff", b""):
            reply = await ask_form(door, body, f"/{queue}/messages")
            assert (reply.status, "x-message-id" in dict(reply.headers)) == (201, True)
        assert (await broker.status(queue)).ready == 4


async def test_other_requests_are_https_own(door: SqsDoor) -> None:
    for method, path, headers in (
        ("GET", "/q", {}),
        ("POST", "/q/messages", FORM),
        ("POST", "/", {"x-amz-target": "DynamoDB_20120810.ListTables"}),
        ("PUT", "/", {"x-amz-target": "AmazonSQS.ListQueues"}),
    ):
        reply = await door.handle(Request(method, path.encode(), b"", headers, b"", 0))
        assert dict(reply.headers)["content-type"] == "application/problem+json"


async def test_a_link_deletes_no_queue(door: SqsDoor, broker: Broker) -> None:
    """Where nobody checks signatures, a browser that follows a link must not ask for an action."""
    await broker.create_queue("q")
    query = b"Action=DeleteQueue&Version=2012-11-05&X-Amz-Signature=00"
    reply = await door.handle(Request("GET", b"/000000000000/q", query, {}, b"", 0))
    assert reply.status in (400, 404, 405)
    assert await broker.has_queue("q")


async def test_a_request_that_is_too_large(door: SqsDoor) -> None:
    reply = await door.handle(Request("POST", b"/", b"", {"x-amz-target": "AmazonSQS.SendMessage"}, b"b", 9 << 20))
    assert (reply.status, reply.is_last) == (400, True)


async def test_a_request_of_two_lengths_is_refused(door: SqsDoor, broker: Broker) -> None:
    """A sign of request smuggling (RFC 9112, section 6.1)."""
    headers = {"x-amz-target": "AmazonSQS.CreateQueue", "transfer-encoding": "chunked", "content-length": "17"}
    reply = await door.handle(Request("POST", b"/", b"", headers, b'{"QueueName": "q"}', 17))
    assert (reply.status, reply.is_last, await broker.queues()) == (400, True, [])


@pytest.mark.parametrize("part", [b"{},", b"[],", b'"a",', b'"a\\"",', b'{"Id":""},'])
async def test_many_parts_are_no_request(door: SqsDoor, part: bytes) -> None:
    """They are not even parsed."""
    body = b'{"Entries": [' + part * (4_000_000 // len(part)) + b"{}]}"
    reply = await ask_json(door, "SendMessageBatch", body)
    assert isinstance(reply.body, bytes)
    assert (reply.status, b"more than" in reply.body) == (400, True)


async def test_text_that_looks_like_many_parts_is_text(door: SqsDoor, broker: Broker) -> None:
    await broker.create_queue("q")
    text = json.dumps([{"a": "\\", "b": [1, 2]}] * 20_000)
    body = json.dumps({"QueueUrl": "q", "MessageBody": text}).encode()
    assert (await ask_json(door, "SendMessage", body)).status == 200


async def test_a_list_of_thousands_is_refused(door: SqsDoor) -> None:
    reply = await ask_json(door, "SendMessageBatch", b'{"Entries": [' + b"{}," * 2000 + b"{}]}")
    assert isinstance(reply.body, bytes)
    assert (reply.status, b"at most 1000" in reply.body) == (400, True)


async def test_a_foreign_page_asks_for_nothing(door: SqsDoor, broker: Broker) -> None:
    guard = BrowserGuard(door, "127.0.0.1")
    target = {"x-amz-target": "AmazonSQS.CreateQueue", "host": "127.0.0.1:8080"}
    for foreign, status in (
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({}, 200),
    ):
        request = Request("POST", b"/", b"", {**target, **foreign}, b'{"QueueName": "q"}', 18)
        assert (await guard.handle(request)).status == status
        assert bool(await broker.queues()) == (status == 200)


async def test_the_other_lane_takes_what_the_fast_one_does_not(
    door: SqsDoor, broker: Broker, nursery: trio.Nursery
) -> None:
    server = await start_server(nursery, door)
    lines = ("X-Amz-Target: AmazonSQS.CreateQueue", "Transfer-Encoding: chunked", "Connection: close")
    chunks = b'9\r\n{"QueueNa\r\n9\r\nme": "q"}\r\n0\r\n\r\n'
    status, _, body = parse(await server.exchange(http1("POST", "/", None, *lines) + chunks))
    assert (status, json.loads(body)) == (200, {"QueueUrl": "http://localhost/000000000000/q"})


async def test_what_is_done_to_queues_is_written_down(door: SqsDoor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mq.audit"):
        await ask_json(door, "CreateQueue", b'{"QueueName": "q"}')
        await ask_json(door, "CreateQueue", b'{"QueueName": "q"}')
        for action in ("TagQueue", "UntagQueue", "SetQueueAttributes", "PurgeQueue", "DeleteQueue", "DeleteQueue"):
            await ask_json(door, action, b'{"QueueUrl": "q", "Attributes": {}, "Tags": {"a": "b"}, "TagKeys": ["a"]}')
    told = [re.findall('event="?([a-z-]+)', line)[0] for line in caplog.messages]
    assert told == ["queue-created", "queue-tagged", "queue-untagged", "queue-changed", "queue-purged", "queue-deleted"]
    assert all('protocol="sqs"' in line and 'queue="q"' in line for line in caplog.messages)


def test_an_action_is_audited_by_its_name_unless_its_line_says_otherwise() -> None:
    assert Action("DropAllThings", Struct({}), Struct({}), list_queues).audited == "drop-all-things"


@for_each(
    "error, name, status",
    [
        (StorageFull("no room"), "ServiceUnavailable", 503),
        (StorageUnsure("who knows"), "ServiceUnavailable", 503),
        (BrokerClosed("closed"), "ServiceUnavailable", 503),
        (NoMemory("none free"), "ServiceUnavailable", 503),
        (CorruptMessage("torn"), "InternalFailure", 500),
        (QueueFull("full"), "RequestThrottled", 403),
        (PublishPaused("paused"), "RequestThrottled", 403),
        (BodyTooSlow("slow"), "RequestTimeout", 408),
        (NoSuchQueue("none"), "QueueDoesNotExist", 400),
        (Conflict("not now"), "InvalidParameterValue", 400),
    ],
)
def test_errors_of_mq(error: MQError, name: str, status: int) -> None:
    told = sqs_error(error)
    assert (told.name, told.kind.status, told.is_sender_fault) == (name, status, status < 500)


async def test_a_client_that_hangs_up_takes_no_message_along(
    door: SqsDoor, broker: Broker, nursery: trio.Nursery
) -> None:
    await broker.create_queue("q")
    server = await start_server(nursery, door)
    async with await server.connect() as stream:
        body = b'{"QueueUrl": "q", "WaitTimeSeconds": 20}'
        await stream.send_all(http1("POST", "/", body, "X-Amz-Target: AmazonSQS.ReceiveMessage"))
        while not door._desk.waits._scopes:
            await trio.sleep(0.01)
    with trio.fail_after(10):
        while door._desk.waits._scopes:
            await trio.sleep(0.01)
    await broker.publish("q", b"b")
    reply = await ask_json(door, "ReceiveMessage", b'{"QueueUrl": "q", "AttributeNames": ["All"]}')
    assert isinstance(reply.body, bytes)
    [message] = json.loads(reply.body)["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_messages_longer_than_those_of_sqs(door: SqsDoor, broker: Broker, budget: Budget) -> None:
    """Other doors take them; one receive has ten mebibytes of them, and gives the others back as they were."""
    await broker.create_queue("q")
    for _ in range(3):
        await broker.publish("q", b"b" * (4 << 20))
    asked = b'{"QueueUrl": "q", "MaxNumberOfMessages": 10, "AttributeNames": ["All"], "WaitTimeSeconds": 5}'
    for found in (2, 1):
        reply = await ask_json(door, "ReceiveMessage", asked)
        assert not isinstance(reply.body, bytes)
        messages = json.loads(b"".join([piece async for piece in reply.body]))["Messages"]
        assert [message["Attributes"]["ApproximateReceiveCount"] for message in messages] == ["1"] * found
        assert budget.free < budget.most
        await reply.body.aclose()
        assert budget.free == budget.most
