"""Behaviour in which AWS differs from its documentation: mq's side of the table in docs/dev/proof.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from mq.broker import Broker
from mq.sqs.door import SqsDoor
from mq.web.exchange import Request
from tests.cases import for_each
from tests.sqs.clients import Client
from tests.sqs.test_dead_letters import policy
from tests.sqs.test_protocol import ask_form
from tests.sqs.test_queues import refusal

MakeQueue = Callable[..., Any]
FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
OLD = "AWS.SimpleQueueService."


async def receive(sqs: Client, url: str, **more: Any) -> list[Any]:
    answer = await sqs.receive_message(QueueUrl=url, **{"AttributeNames": ["All"], **more})
    found: list[Any] = answer.get("Messages", [])
    return found


def bodies(messages: list[Any]) -> list[str]:
    return [message["Body"] for message in messages]


async def change(sqs: Client, url: str, message: Any, seconds: int) -> Any:
    return await sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
    )


async def until_ready(broker: Broker, queue: str) -> None:
    with trio.fail_after(10):
        while not (await broker.status(queue)).ready:
            await trio.sleep(0.01)


# Names and texts


@for_each(
    "names, found",
    [
        (["*"], "General Hello Help.Me"),
        (["All"], "General Hello Help.Me"),
        ([".*"], "General Hello Help.Me"),
        (["Hel.*"], "Hello Help.Me"),
        (["Help.*"], "Help.Me"),
        (["Help..*"], "Help.Me"),
        (["Hel.*", "General"], "General Hello Help.Me"),
        (["Hel*"], ""),
        (["Foo", "Help"], ""),
        (["AWS."], ""),
        (["..foo"], ""),
        ([], ""),
    ],
)
async def test_names_of_message_attributes(sqs: Client, make_queue: MakeQueue, names: list[str], found: str) -> None:
    url = await make_queue()
    attributes = {name: {"DataType": "String", "StringValue": "x"} for name in ("Help.Me", "Hello", "General")}
    await sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=attributes)
    [message] = await receive(sqs, url, MessageAttributeNames=names)
    assert " ".join(sorted(message.get("MessageAttributes", {}))) == found


@pytest.mark.parametrize("names", ["AttributeName", "MessageSystemAttributeName"])
async def test_a_list_of_one_needs_no_number_in_a_form(door: SqsDoor, broker: Broker, names: str) -> None:
    await broker.create_queue("q")
    await broker.publish("q", b"b", {"attributes": {"colour": "red"}})
    form = b"Action=ReceiveMessage&QueueUrl=q&%s=All&MessageAttributeName=All" % names.encode()
    reply = await ask_form(door, form)
    assert isinstance(reply.body, bytes)
    assert b"<Name>ApproximateReceiveCount</Name>" in reply.body
    assert b"<Name>colour</Name>" in reply.body
    shown = await ask_form(door, b"Action=GetQueueAttributes&QueueUrl=q&AttributeName=QueueArn")
    assert isinstance(shown.body, bytes)
    assert b":sqs:us-east-1:000000000000:q<" in shown.body
    for wrong in (b"AttributeName=All&AttributeName.1=All", b"AttributeName.All=1"):
        assert (await ask_form(door, b"Action=ReceiveMessage&QueueUrl=q&" + wrong)).status == 400


@pytest.mark.parametrize("truth", ["True", "TRUE", "true"])
async def test_truth_in_any_case(sqs: Client, make_queue: MakeQueue, truth: str) -> None:
    given = {"FifoQueue": truth, "ContentBasedDeduplication": truth, "SqsManagedSseEnabled": "False"}
    url = await make_queue("q.fifo", **given)
    assert await make_queue("q.fifo", **given) == url
    await sqs.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": truth})
    shown = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    assert (shown["FifoQueue"], shown["ContentBasedDeduplication"]) == ("true", "true")
    assert shown["SqsManagedSseEnabled"] == "false"
    wrong = partial(sqs.set_queue_attributes, QueueUrl=url, Attributes={"ContentBasedDeduplication": "yes"})
    assert await refusal(sqs, wrong) == "InvalidAttributeValue"


async def test_fifo_false_on_a_standard_queue_is_an_unknown_attribute(sqs: Client) -> None:
    for value in ("false", "False"):
        asked = partial(sqs.create_queue, QueueName="q", Attributes={"FifoQueue": value})
        assert await refusal(sqs, asked) == "InvalidAttributeName"


async def test_an_attribute_without_a_value_is_refused(sqs: Client, make_queue: MakeQueue) -> None:
    empty = {"piyo": {"DataType": "String", "StringValue": ""}}
    send = partial(sqs.send_message, QueueUrl=await make_queue(), MessageBody="b", MessageAttributes=empty)
    assert await refusal(sqs, send) == "InvalidParameterValue"


# Leases


async def test_a_change_of_a_lease_that_has_ended_does_nothing(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    url = await make_queue()
    await sqs.send_message(QueueUrl=url, MessageBody="b")
    [message] = await receive(sqs, url, VisibilityTimeout=0)
    await until_ready(broker, "q")
    await change(sqs, url, message, 600)
    await change(sqs, url, message, 0)
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 600}
    answer = await sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry])
    assert [each["Id"] for each in answer["Successful"]] == ["a"]
    assert (await broker.status("q")).ready == 1, "it is there for all"
    [again] = await receive(sqs, url)
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert await refusal(sqs, partial(change, sqs, url, message, 600)) == OLD + "MessageNotInflight"


async def test_a_change_of_a_deleted_message_is_an_invalid_parameter(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue()
    await sqs.send_message(QueueUrl=url, MessageBody="b")
    [message] = await receive(sqs, url)
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert await refusal(sqs, partial(change, sqs, url, message, 600)) == "InvalidParameterValue"
    assert await refusal(sqs, partial(change, sqs, url, message, 0)) == "InvalidParameterValue"


async def test_a_late_delete_on_a_fifo_queue_is_answered_with_success(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    url = await make_queue("q.fifo", **FIFO)
    await sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="g")
    [first] = await receive(sqs, url, VisibilityTimeout=0)
    await until_ready(broker, "q.fifo")
    [second] = await receive(sqs, url, VisibilityTimeout=0)
    await until_ready(broker, "q.fifo")
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert (await broker.status("q.fifo")).ready == 1, "another receive has got it since"
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    assert (await broker.status("q.fifo")).ready == 0


# Dead letters


async def test_the_receive_count_goes_on_in_a_dead_letter_queue(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    for name, target in (("last", None), ("dead", "last"), ("q", "dead")):
        await make_queue(name, **({} if target is None else {"RedrivePolicy": policy(target, most=2)}))
    url, counts = "http://mq/000000000000/", []
    await sqs.send_message(QueueUrl=url + "q", MessageBody="b")
    for queue in ("q", "q", "dead", "dead", "last"):
        await until_ready(broker, queue)
        [message] = await receive(sqs, url + queue, VisibilityTimeout=0)
        counts.append(message["Attributes"]["ApproximateReceiveCount"])
    assert counts == ["1", "2", "3", "4", "5"]


async def test_the_receive_count_begins_anew_where_a_dead_letter_is_moved(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    await make_queue("dead")
    url = await make_queue("q", RedrivePolicy=policy(most=1))
    other = await make_queue("other")
    for body in ("back", "elsewhere"):
        await sqs.send_message(QueueUrl=url, MessageBody=body)
        await receive(sqs, url, VisibilityTimeout=0)
        await until_ready(broker, "dead")
        to = None if body == "back" else "other"
        assert (await broker.redrive("dead", to)).moved == 1
        [message] = await receive(sqs, url if to is None else other, VisibilityTimeout=600)
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_the_source_of_a_dead_letter_is_an_attribute(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    dead = await make_queue("dead")
    url = await make_queue("q", RedrivePolicy=policy(most=1))
    await sqs.send_message(QueueUrl=url, MessageBody="b")
    [message] = await receive(sqs, url, VisibilityTimeout=0)
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]
    await until_ready(broker, "dead")  # when its last lease has ended, and not with the next receive
    [message] = await receive(sqs, dead)
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == "arn:aws:sqs:eu-central-1:000000000000:q"


# FIFO queues


async def test_a_purge_forgets_deduplication_ids(sqs: Client, make_queue: MakeQueue) -> None:
    more = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    for number, attributes in enumerate((FIFO, {"FifoQueue": "true"}, more)):
        url = await make_queue(f"q{number}.fifo", **attributes)
        given = {} if attributes is FIFO else {"MessageDeduplicationId": "d"}
        send = partial(sqs.send_message, QueueUrl=url, MessageBody="b", MessageGroupId="g", **given)
        first = await send()
        assert (await send())["MessageId"] == first["MessageId"]
        await sqs.purge_queue(QueueUrl=url)
        second = await send()
        assert second["MessageId"] != first["MessageId"]
        assert (await send())["MessageId"] == second["MessageId"]
        assert [message["MessageId"] for message in await receive(sqs, url, MaxNumberOfMessages=10)] == [
            second["MessageId"]
        ]


async def test_a_purge_by_http_forgets_deduplication_ids_too(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    url = await make_queue("q.fifo", **FIFO)
    send = partial(sqs.send_message, QueueUrl=url, MessageBody="b", MessageGroupId="g")
    await send()
    assert await broker.purge("q.fifo") == 1
    await send()
    assert bodies(await receive(sqs, url)) == ["b"]


async def test_a_message_given_back_comes_at_once_and_later_ones_wait(sqs: Client, make_queue: MakeQueue) -> None:
    url = await make_queue("q.fifo", **FIFO)
    for body, group in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")):
        await sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group)
    first, second = await receive(sqs, url, MaxNumberOfMessages=2)
    await change(sqs, url, second, 0)
    assert bodies(await receive(sqs, url, MaxNumberOfMessages=10)) == ["b1"]
    await change(sqs, url, first, 0)
    assert bodies(await receive(sqs, url, MaxNumberOfMessages=10)) == ["a1", "a2", "a3"]


async def test_a_message_given_back_comes_before_the_leases_of_later_ones_end(
    sqs: Client, make_queue: MakeQueue
) -> None:
    url = await make_queue("q.fifo", **FIFO)
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        await sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group)
    first, _ = await receive(sqs, url, MaxNumberOfMessages=2)
    await change(sqs, url, first, 0)
    assert sorted(bodies(await receive(sqs, url, MaxNumberOfMessages=3))) == ["a1", "b1"]


async def test_a_delayed_message_blocks_no_group(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    url = await make_queue("q.fifo", **FIFO, DelaySeconds="1")
    await sqs.send_message(QueueUrl=url, MessageBody="a1", MessageGroupId="a")
    await until_ready(broker, "q.fifo")
    await sqs.send_message(QueueUrl=url, MessageBody="a2", MessageGroupId="a")
    assert bodies(await receive(sqs, url, MaxNumberOfMessages=10)) == ["a1"]


async def test_a_batch_without_a_group_is_refused_as_a_whole(
    sqs: Client, make_queue: MakeQueue, broker: Broker
) -> None:
    url = await make_queue("q.fifo", **FIFO)
    entries: list[dict[str, str]] = [{"Id": f"{n}", "MessageBody": f"{n}", "MessageGroupId": "g"} for n in range(10)]
    del entries[7]["MessageGroupId"]
    assert await refusal(sqs, partial(sqs.send_message_batch, QueueUrl=url, Entries=entries)) == "MissingParameter"
    assert (await broker.status("q.fifo")).ready == 0


# Requests


@pytest.mark.parametrize("path", ["/", "/000000000000/q"])
async def test_a_get_that_is_not_signed_is_refused_with_the_reason(door: SqsDoor, broker: Broker, path: str) -> None:
    await broker.create_queue("q")
    for query in (b"Action=DeleteQueue&QueueUrl=q&Version=2012-11-05", b"QueueUrl=q&Action=DeleteQueue"):
        reply = await door.handle(Request("GET", path.encode(), query, {"host": "mq:8080"}, b"", 0))
        assert isinstance(reply.body, bytes)
        assert reply.status == 400
        assert b"send a POST request" in reply.body
        assert b"<Code>AWS.SimpleQueueService.UnsupportedOperation</Code>" in reply.body
    assert await broker.has_queue("q")
    for query in (b"", b"Action=Other", b"action=DeleteQueue"):
        reply = await door.handle(Request("GET", b"/", query, {"host": "mq:8080"}, b"", 0))
        assert b"<Code>" not in (reply.body if isinstance(reply.body, bytes) else b""), query
