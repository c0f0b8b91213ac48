"""Dead letters: where they go, what goes with them, and how they come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from mq.broker import Broker
from tests.sqs.clients import Client
from tests.sqs.test_queues import refusal

MakeQueue = Callable[..., Any]

ARN = "arn:aws:sqs:eu-central-1:000000000000:"


def policy(target: str = "dead", most: int | str = 1) -> str:
    return json.dumps({"deadLetterTargetArn": f"{ARN}{target}", "maxReceiveCount": most})


async def test_a_redrive_policy_is_mqs_dead_letter_queue(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    dead = await make_queue("dead")
    url = await make_queue("q", RedrivePolicy=policy(most="2"))
    settings = (await broker.status("q")).settings
    assert (settings.dead_letter_queue, settings.max_receives) == ("dead", 2)
    shown = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"]))["Attributes"]
    assert json.loads(shown["RedrivePolicy"]) == {"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": 2}
    assert (await sqs.list_dead_letter_source_queues(QueueUrl=dead))["queueUrls"] == [url]
    await sqs.create_queue(QueueName="q", Attributes={"RedrivePolicy": policy(most=2)})
    await sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert (await broker.status("q")).settings.dead_letter_queue is None
    assert (await sqs.list_dead_letter_source_queues(QueueUrl=dead)).get("queueUrls", []) == []


async def test_policies_that_are_refused(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    dead, url = await make_queue("dead"), await make_queue("q")
    refused = partial(refusal, sqs)
    for target in ("none", "q"):
        change = partial(sqs.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": policy(target)})
        assert await refused(change) == "InvalidParameterValue"
        made = partial(sqs.create_queue, QueueName="new", Attributes={"RedrivePolicy": policy("none")})
        assert await refused(made) == "InvalidParameterValue"
    for allowed, is_taken in (
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}other"]}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}q"]}, True),
        ({"redrivePermission": "allowAll"}, True),
    ):
        await sqs.set_queue_attributes(
            QueueUrl=dead,
            Attributes={"RedriveAllowPolicy": json.dumps(allowed)},
        )
        change = partial(sqs.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": policy()})
        if is_taken:
            await change()
            await sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
        else:
            assert await refused(change) == "InvalidParameterValue"
    assert [status.name for status in await broker.queues()] == ["dead", "q"]


async def die(sqs: Client, url: str, *bodies: str) -> None:
    for body in bodies:
        await sqs.send_message(QueueUrl=url, MessageBody=body)
        [message] = (await sqs.receive_message(QueueUrl=url))["Messages"]
        await sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


async def test_the_dead_come_back_by_a_move_task(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    dead = await make_queue("dead")
    url = await make_queue("q", RedrivePolicy=policy())
    await die(sqs, url, "a", "b", "c")
    [message] = (await sqs.receive_message(QueueUrl=dead, AttributeNames=["All"], VisibilityTimeout=0))["Messages"]
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == f"{ARN}q"
    while (await broker.status("dead")).ready < 3:
        await trio.sleep(0.01)
    task = (await sqs.start_message_move_task(SourceArn=f"{ARN}dead"))["TaskHandle"]
    while (shown := (await sqs.list_message_move_tasks(SourceArn=f"{ARN}dead"))["Results"][0])["Status"] == "RUNNING":
        assert shown["TaskHandle"] == task
    assert shown["Status"] == "COMPLETED"
    assert shown["ApproximateNumberOfMessagesMoved"] == shown["ApproximateNumberOfMessagesToMove"] == 3
    assert (await broker.status("q")).ready == 3


async def test_a_move_task_elsewhere_that_is_cancelled(sqs: Client, make_queue: MakeQueue, broker: Broker) -> None:
    await make_queue("dead")
    await make_queue("other")
    url = await make_queue("q", RedrivePolicy=policy())
    await die(sqs, url, "a", "b", "c")
    start = partial(sqs.start_message_move_task, SourceArn=f"{ARN}dead")
    task = (await start(DestinationArn=f"{ARN}other", MaxNumberOfMessagesPerSecond=1))["TaskHandle"]
    assert await refusal(sqs, start) == "AWS.SimpleQueueService.UnsupportedOperation"
    while not (await broker.status("other")).ready:
        await trio.sleep(0.01)
    moved = (await sqs.cancel_message_move_task(TaskHandle=task))["ApproximateNumberOfMessagesMoved"]
    [shown] = (await sqs.list_message_move_tasks(SourceArn=f"{ARN}dead", MaxResults=10))["Results"]
    assert (shown["Status"], shown["DestinationArn"], "TaskHandle" in shown) == ("CANCELLED", f"{ARN}other", False)
    assert moved == (await broker.status("other")).ready < 3
    cancel = partial(sqs.cancel_message_move_task, TaskHandle=task)
    assert await refusal(sqs, cancel) == "ResourceNotFoundException"


async def test_move_tasks_that_are_refused(sqs: Client, make_queue: MakeQueue) -> None:
    await make_queue("dead")
    await make_queue("q", RedrivePolicy=policy())
    start = sqs.start_message_move_task
    for given, code in (
        ({"SourceArn": f"{ARN}q"}, "InvalidParameterValue"),  # the dead of no queue are there
        ({"SourceArn": f"{ARN}none"}, "ResourceNotFoundException"),
        ({"SourceArn": f"{ARN}dead", "DestinationArn": f"{ARN}none"}, "ResourceNotFoundException"),
        ({"SourceArn": f"{ARN}dead", "DestinationArn": f"{ARN}dead"}, "InvalidParameterValue"),
        ({"SourceArn": f"{ARN}dead", "MaxNumberOfMessagesPerSecond": 501}, "InvalidParameterValue"),
        ({"SourceArn": "dead"}, "InvalidParameterValue"),
    ):
        assert await refusal(sqs, partial(start, **given)) == code
