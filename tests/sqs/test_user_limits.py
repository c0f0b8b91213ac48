"""Limits of users over SQS: RequestThrottled, which SDKs try again, and OverLimit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio

from mq.access import UserDirectory
from mq.access.aws_keys import AwsKey
from mq.access.rights import Right
from mq.access.user_limits import UserLimits
from mq.access.users_editor import UsersFile
from mq.broker import Broker
from mq.doors.budget import Budget
from mq.doors.logins import Logins
from mq.doors.open_connections import OpenConnections
from mq.doors.quotas import Quotas
from mq.sqs.door import SqsDoor
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from tests.sqs.test_signatures import sign
from tests.web.talking import MAX_BODY, http1, parse, start_server


class House:
    """A door with one user, who has limits."""

    def __init__(self, broker: Broker, path: Path, nursery: trio.Nursery, limits: UserLimits) -> None:
        users = UsersFile(str(path))
        users.add("shop", {Right.ADMINISTER: ["*"]}, None, only_aws_key=True, limits=limits)
        self.key: AwsKey = users.add_aws_key("shop")
        logins, self.seen = Logins(UserDirectory(str(path))), OpenConnections()
        self.quotas = Quotas(self.seen)
        behind = Authorizer(Endpoints(broker, MAX_BODY), logins, quotas=self.quotas)
        self.door = SqsDoor(behind, broker, Budget(), nursery, logins, quotas=self.quotas)

    def signed(self, action: str, given: Any) -> tuple[dict[str, str], bytes]:
        body = json.dumps(given).encode()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        _, _, found, _ = sign(self.key, "POST", "http://mq/", body, headers)
        return found, body

    async def ask(self, action: str, **given: Any) -> tuple[int, str]:
        """The status, and the code of an error."""
        headers, body = self.signed(action, given)
        reply = await self.door.handle(Request("POST", b"/", b"", headers, body, len(body)))
        assert isinstance(reply.body, bytes)
        return reply.status, json.loads(reply.body or b"{}").get("__type", "").rpartition("#")[2]


async def test_queues_of_a_user_are_limited(broker: Broker, tmp_path: Path, nursery: trio.Nursery) -> None:
    house = House(broker, tmp_path / "users", nursery, UserLimits(queues=1))
    assert (await house.ask("CreateQueue", QueueName="q"))[0] == 200
    assert await house.ask("CreateQueue", QueueName="r") == (403, "OverLimit")
    assert (await house.ask("CreateQueue", QueueName="q"))[0] == 200


async def test_messages_a_second_of_a_user_are_limited(broker: Broker, tmp_path: Path, nursery: trio.Nursery) -> None:
    house = House(broker, tmp_path / "users", nursery, UserLimits(publish_rate=0.001))
    await house.ask("CreateQueue", QueueName="q")
    url = "http://mq/000000000000/q"
    assert (await house.ask("SendMessage", QueueUrl=url, MessageBody="x"))[0] == 200
    assert await house.ask("SendMessage", QueueUrl=url, MessageBody="x") == (403, "RequestThrottled")
    entries = [{"Id": "a", "MessageBody": "x"}, {"Id": "b", "MessageBody": "x"}]
    assert await house.ask("SendMessageBatch", QueueUrl=url, Entries=entries) == (403, "RequestThrottled")
    assert (await broker.status("q")).ready == 1


async def test_connections_of_a_user_are_limited(broker: Broker, tmp_path: Path, nursery: trio.Nursery) -> None:
    house = House(broker, tmp_path / "users", nursery, UserLimits(connections=1))
    server = await start_server(nursery, house.door, seen=house.seen)
    headers, body = house.signed("ListQueues", {})
    request = http1("POST", "/", body, *(f"{name}: {value}" for name, value in headers.items() if name != "host"))
    request = request.replace(b"Host: localhost", b"Host: mq")
    with trio.fail_after(10):
        first = await server.connect()
        await first.send_all(request)
        assert b" 200 " in await first.receive_some()
        status, _, answer = parse(await server.exchange(request, half_close=True))
        assert (status, b"RequestThrottled" in answer) == (403, True)
        await first.aclose()
    server.stop.set()
