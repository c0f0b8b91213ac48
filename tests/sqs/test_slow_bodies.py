"""Slow bodies over SQS that nobody has signed: the id of a key is no secret, and gives no share of its user's."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import trio

from mq.access import UserDirectory
from mq.access.aws_keys import AwsKey
from mq.access.rights import Right
from mq.access.users_editor import UsersFile
from mq.broker import Broker, Draft
from mq.doors.budget import PATIENCE_SECONDS, STRANGER_PART, Budget
from mq.doors.logins import Logins
from mq.sqs.door import LARGEST_REQUEST, SqsDoor
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.access.files import TOKEN, write_users
from tests.web.talking import MAX_BODY, whole

SIGNED = "content-type;host;x-amz-date;x-amz-target"
USERS = '[users.shop]\ntokens = ["TOKEN"]\nadminister = ["*"]\n'


class House:
    """A door with one user, who has a token and an AWS key."""

    def __init__(self, broker: Broker, path: Path, nursery: trio.Nursery, most: int) -> None:
        write_users(path, USERS)
        users = UsersFile(str(path))
        users.add("other", {Right.ADMINISTER: ["*"]}, None, only_aws_key=True)
        self.key: AwsKey = users.add_aws_key("shop")
        logins = Logins(UserDirectory(str(path)))
        self.budget = Budget(most, has_users=True)
        behind = Authorizer(Endpoints(broker, MAX_BODY, budget=self.budget), logins)
        self.door = SqsDoor(behind, broker, self.budget, nursery, logins)

    async def send_slowly(self, size: int, answers: list[Reply]) -> None:
        """A body that names the key, and comes byte by byte."""

        async def body() -> AsyncGenerator[bytes]:
            for _ in range(size):
                await trio.sleep(1)
                yield b"x"

        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signed = f"Credential={self.key.id}/{now[:8]}/us-east-1/sqs/aws4_request, SignedHeaders={SIGNED}"
        headers = {
            "host": "mq",
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": "AmazonSQS.SendMessage",
            "x-amz-date": now,
            "authorization": f"AWS4-HMAC-SHA256 {signed}, Signature={'0' * 64}",
        }
        memory = self.budget.client("slow")
        async with aclosing(body()) as chunks:
            request = Request("POST", b"/", b"", headers, chunks, size, memory=memory)
            answers.append(await self.door.handle(request))
        memory.close()

    async def fetch_batch(self) -> Reply:
        """A batch of messages, over HTTP, for the user whose key the slow clients name."""
        memory = self.budget.client("honest")
        headers = {"authorization": f"Bearer {TOKEN}"}
        request = Request("GET", b"/q/messages", b"max=10", headers, b"", None, memory=memory)
        reply = await whole(await self.door.handle(request))
        memory.close()
        return reply


async def test_eight_slow_unsigned_bodies_leave_other_clients_their_batches(
    broker: Broker, tmp_path: Path, nursery: trio.Nursery, autojump_clock: object
) -> None:
    await broker.create_queue("q")
    await broker.publish_many("q", [Draft(bytes(10_000)) for _ in range(8)])
    house, answers = House(broker, tmp_path / "users", nursery, 32 << 20), list[Reply]()
    for _ in range(8):
        nursery.start_soon(house.send_slowly, LARGEST_REQUEST // 4, answers)
    await trio.testing.wait_all_tasks_blocked()
    assert house.budget.used <= house.budget.most // STRANGER_PART
    assert [reply.status for reply in answers] == [503] * 6  # two fit in the share of strangers
    reply = await house.fetch_batch()
    assert reply.status == 200
    assert isinstance(reply.body, bytes)
    assert len([json.loads(line) for line in reply.body.splitlines()]) == 8
    nursery.cancel_scope.cancel()


async def test_slow_unsigned_bodies_make_room_for_other_strangers(
    broker: Broker, tmp_path: Path, nursery: trio.Nursery, autojump_clock: object
) -> None:
    house, answers = House(broker, tmp_path / "users", nursery, 32 << 20), list[Reply]()
    for _ in range(2):
        nursery.start_soon(house.send_slowly, LARGEST_REQUEST // 4, answers)
    await trio.sleep(PATIENCE_SECONDS + 2)
    assert not answers
    await house.send_slowly(LARGEST_REQUEST // 4, answers)
    await trio.sleep(0.1)
    assert sorted(reply.status for reply in answers) == [408, 503]
    nursery.start_soon(house.send_slowly, LARGEST_REQUEST // 4, answers)  # it finds room now
    await trio.sleep(1)
    assert len(answers) == 2
    nursery.cancel_scope.cancel()
