"""What a program does with SQS, through a client of Python: ``python talk.py CLIENT URL``.

Prints ``kill`` where the daemon is to be killed, reads a line once it is back, and prints what it found as JSON. Runs
in environments of its own (`PACKAGES` of test_clients.py): imports nothing of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

ACCESS = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}

Ask = Callable[..., Awaitable[Any]]
"""Sends an action, named as in boto3, and returns the answer."""


class Refused(Exception):
    """The daemon answered with an error. The text is its code."""


@contextlib.asynccontextmanager
async def open_aiobotocore(url: str) -> AsyncIterator[Ask]:
    """A coroutine for each action."""
    from aiobotocore.session import get_session
    from botocore.exceptions import ClientError

    async with get_session().create_client("sqs", endpoint_url=url, **ACCESS) as sqs:

        async def ask(action: str, **given: Any) -> Any:
            try:
                return await getattr(sqs, action)(**given)
            except ClientError as error:
                raise Refused(error.response["Error"]["Code"]) from error

        yield ask


@contextlib.asynccontextmanager
async def open_boto3(url: str) -> AsyncIterator[Ask]:
    """A thread for each action. This boto3 is so old that it speaks the query protocol by itself."""
    import boto3
    from botocore.exceptions import ClientError

    sqs = boto3.client("sqs", endpoint_url=url, **ACCESS)
    assert sqs.meta.service_model.metadata["protocol"] == "query"

    async def ask(action: str, **given: Any) -> Any:
        try:
            return await asyncio.to_thread(getattr(sqs, action), **given)
        except ClientError as error:
            raise Refused(error.response["Error"]["Code"]) from error

    yield ask


@contextlib.asynccontextmanager
async def open_awscli(url: str) -> AsyncIterator[Ask]:
    """A command for each action."""
    environment = {**os.environ, **{name.upper(): value for name, value in ACCESS.items()}}
    environment["AWS_DEFAULT_REGION"] = ACCESS["region_name"]
    begin = [sys.executable, "-m", "awscli", "--output", "json", "--endpoint-url", url, "sqs"]

    async def ask(action: str, **given: Any) -> Any:
        command = [*begin, action.replace("_", "-"), "--cli-input-json", json.dumps(given, default=bytes.decode)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environment)
        if "An error occurred (" in done.stderr:
            raise Refused(done.stderr.partition("(")[2].partition(")")[0])
        if done.returncode != 0:
            raise ConnectionError(done.stderr)
        return json.loads(done.stdout or "{}")

    yield ask


OPENERS = {"aiobotocore": open_aiobotocore, "boto3": open_boto3, "awscli": open_awscli}


async def receive(ask: Ask, url: str, count: int) -> list[Any]:
    """Messages, each waited for: one receive may bring fewer than there are."""
    found: list[Any] = []
    while len(found) < count:
        given = {"MaxNumberOfMessages": count - len(found), "WaitTimeSeconds": 20, "MessageAttributeNames": ["All"]}
        found += (await ask("receive_message", QueueUrl=url, **given)).get("Messages", [])
    return found


async def receive_over_a_kill(ask: Ask, url: str) -> Any:
    """One message, asked for again where the connection went."""
    while True:
        try:
            return (await receive(ask, url, 1))[0]
        except Refused:
            raise
        except Exception:  # noqa: BLE001 - each client has errors of its own for a connection that ended, or was refused
            await asyncio.sleep(0.2)


async def make_queues(ask: Ask) -> tuple[str, str, str, str]:
    """A queue, where its dead go after one receive, one in order, and one to wait at."""
    dead = (await ask("create_queue", QueueName="dead"))["QueueUrl"]
    shown = await ask("get_queue_attributes", QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": shown["Attributes"]["QueueArn"], "maxReceiveCount": "1"}
    attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "600"}
    url = (await ask("create_queue", QueueName="q", Attributes=attributes))["QueueUrl"]
    attributes = {"FifoQueue": "true", "VisibilityTimeout": "600"}
    fifo = (await ask("create_queue", QueueName="q.fifo", Attributes=attributes))["QueueUrl"]
    return url, dead, fifo, (await ask("create_queue", QueueName="waited-at"))["QueueUrl"]


async def send_in_order(ask: Ask, fifo: str, body: str) -> str:
    known = {"MessageGroupId": "g", "MessageDeduplicationId": body}
    number: str = (await ask("send_message", QueueUrl=fifo, MessageBody=body, **known))["SequenceNumber"]
    return number


async def talk(ask: Ask) -> dict[str, Any]:
    told: dict[str, Any] = {}
    url, dead, fifo, waited_at = await make_queues(ask)

    waiting = asyncio.create_task(receive(ask, url, 1))
    await asyncio.sleep(0.5)  # it is on its way; too early would show no less than it does
    await ask("send_message", QueueUrl=url, MessageBody="hello")
    [message] = await waiting
    await ask("delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    told["waited for"] = message["Body"]

    attributes = {
        "a": {"DataType": "String", "StringValue": "x"},
        "b": {"DataType": "Binary", "BinaryValue": b"\x01\x7f"},
    }
    await ask("send_message", QueueUrl=url, MessageBody="größe", MessageAttributes=attributes)
    entries = [{"Id": id, "MessageBody": body} for id, body in {"1": "one", "2": "\0", "3": "two"}.items()]
    batch = await ask("send_message_batch", QueueUrl=url, Entries=entries)
    told["sent"] = [each["Id"] for each in batch["Successful"]]
    told["failed"] = [each["Code"] for each in batch["Failed"]]
    leased = await receive(ask, url, 2)
    told["bodies"] = [each["Body"] for each in leased]
    told["types"] = {name: value["DataType"] for name, value in leased[0]["MessageAttributes"].items()}
    numbers = [await send_in_order(ask, fifo, body) for body in ("first", "second")]
    [first] = await receive(ask, fifo, 1)
    told["first"] = first["Body"]

    waiting_over_it = asyncio.create_task(receive_over_a_kill(ask, waited_at))
    sys.stdout.write("kill\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)

    entries = [{"Id": "1", "ReceiptHandle": leased[0]["ReceiptHandle"]}]
    told["deleted"] = [
        each["Id"] for each in (await ask("delete_message_batch", QueueUrl=url, Entries=entries))["Successful"]
    ]
    handle = leased[1]["ReceiptHandle"]  # of what was received as often as it may be
    await ask("change_message_visibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    [died] = await receive(ask, dead, 1)
    told["dead"] = died["Body"]
    [kept] = await receive(ask, url, 1)
    await ask("delete_message", QueueUrl=url, ReceiptHandle=kept["ReceiptHandle"])
    told["kept"] = kept["Body"]
    numbers += [await send_in_order(ask, fifo, body) for body in ("second", "third")]
    told["known again"] = numbers[1] == numbers[2] and numbers[0] < numbers[1] < numbers[3]
    held = await ask("receive_message", QueueUrl=fifo)
    told["while the first is out"] = len(held.get("Messages", []))
    await ask("delete_message", QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
    told["in order"] = [each["Body"] for each in await receive(ask, fifo, 2)]
    await ask("send_message", QueueUrl=waited_at, MessageBody="again")
    told["waited for over the kill"] = (await waiting_over_it)["Body"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    shown = await ask("get_queue_attributes", QueueUrl=url, AttributeNames=names)
    told["left"] = sum(int(shown["Attributes"][name]) for name in names)
    try:
        await ask("get_queue_url", QueueName="none")
    except Refused as refused:
        told["refused"] = str(refused).rpartition(".")[2]
    return told


async def main(client: str, url: str) -> None:
    async with OPENERS[client](url) as ask:
        sys.stdout.write(json.dumps(await talk(ask)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
