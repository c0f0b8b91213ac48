"""Users and their AWS keys: who signs is let in, with what they may do; who does not is not."""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from mq.access import UserDirectory
from mq.access.aws_keys import AwsKey
from mq.access.certificates import Certificates
from mq.access.rights import Right
from mq.access.users_editor import UsersFile
from mq.broker import Broker
from mq.doors.budget import Budget
from mq.doors.logins import Logins
from mq.sqs import door
from mq.sqs.door import SqsDoor
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from mq.web.serve import PROTOCOLS
from tests.sqs.clients import Client, make_client
from tests.web.talking import MAX_BODY, Server, http1, parse, start_server
from tests.web.test_tls import Authority


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    return UsersFile(str(tmp_path / "users.toml"))


@pytest.fixture
def key(users: UsersFile) -> AwsKey:
    users.add("anna", {Right.ADMINISTER: ["*"]}, None, only_aws_key=True)
    return users.add_aws_key("anna")


@pytest.fixture
def logins(users: UsersFile, key: AwsKey, tmp_path: Path) -> Logins:
    return Logins(UserDirectory(str(tmp_path / "users.toml")))


@pytest.fixture
async def guarded_door(broker: Broker, logins: Logins, nursery: trio.Nursery) -> SqsDoor:
    """A door that knows users."""
    return SqsDoor(Authorizer(Endpoints(broker, MAX_BODY), logins), broker, Budget(), nursery, logins)


@pytest.fixture
async def guarded(guarded_door: SqsDoor, nursery: trio.Nursery) -> Server:
    return await start_server(nursery, guarded_door)


@pytest.fixture(params=["json", "query"])
def client_of(request: pytest.FixtureRequest, guarded: Server) -> Callable[..., Any]:
    """Makes a client that signs with a key."""

    async def make(id: str, secret: str) -> Client:
        access = {"aws_access_key_id": id, "aws_secret_access_key": secret}
        return Client(make_client(guarded.url, request.param, **access))

    return make


def code(caught: pytest.ExceptionInfo[Any]) -> tuple[str, int]:
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.slow
async def test_who_signs_is_let_in(client_of: Callable[..., Any], key: AwsKey) -> None:
    sqs = await client_of(key.id, key.secret)
    url = (await sqs.create_queue(QueueName="q"))["QueueUrl"]
    await sqs.send_message(QueueUrl=url, MessageBody="a b&c=d/é")
    answer = await sqs.receive_message(QueueUrl=url, AttributeNames=["SenderId"])
    assert answer["Messages"][0]["Attributes"] == {"SenderId": "anna"}


async def test_who_signs_wrongly_is_not(client_of: Callable[..., Any], key: AwsKey, broker: Broker) -> None:
    for id, secret, told in (
        (key.id, "another secret", "SignatureDoesNotMatch"),
        ("MQIASOMEBODYELSE", key.secret, "InvalidClientTokenId"),
    ):
        sqs = await client_of(id, secret)
        with pytest.raises(sqs.exceptions.ClientError) as caught:
            await sqs.create_queue(QueueName="q")
        assert code(caught) == (told, 403)
    assert not await broker.queues()


async def test_a_clock_that_is_off(client_of: Callable[..., Any], key: AwsKey, monkeypatch: pytest.MonkeyPatch) -> None:
    sqs = await client_of(key.id, key.secret)
    for seconds, is_let_in in ((-890, True), (890, True), (-910, False), (910, False)):
        monkeypatch.setattr(door, "time", lambda seconds=seconds: time.time() + seconds)
        if is_let_in:
            await sqs.list_queues()
            continue
        with pytest.raises(sqs.exceptions.ClientError) as caught:
            await sqs.list_queues()
        assert code(caught) == ("SignatureDoesNotMatch", 403)


async def test_rights_apply(client_of: Callable[..., Any], users: UsersFile, logins: Logins, broker: Broker) -> None:
    users.add("shop", {Right.PUBLISH: ["orders"]}, None, only_aws_key=True)
    key = users.add_aws_key("shop")
    logins.access.reload()
    for queue in ("orders", "other"):
        await broker.create_queue(queue)
    sqs = await client_of(key.id, key.secret)
    listed = (await sqs.list_queues())["QueueUrls"]
    assert [url.rpartition("/")[2] for url in listed] == ["orders"]
    await sqs.send_message(QueueUrl=listed[0], MessageBody="b")
    for asked in (
        partial(sqs.receive_message, QueueUrl=listed[0]),
        partial(sqs.purge_queue, QueueUrl=listed[0]),
        partial(sqs.create_queue, QueueName="new"),
        partial(sqs.get_queue_url, QueueName="other"),
        partial(sqs.get_queue_url, QueueName="none"),
        partial(sqs.set_queue_attributes, QueueUrl=listed[0], Attributes={"DelaySeconds": "1"}),
    ):
        with pytest.raises(sqs.exceptions.ClientError) as caught:
            await asked()
        assert code(caught) in (("AccessDenied", 403), ("AccessDeniedException", 403))
    assert (await broker.status("orders")).ready == 1


async def test_who_may_configure_and_no_more_reads_nothing(
    client_of: Callable[..., Any], users: UsersFile, logins: Logins, broker: Broker
) -> None:
    """Dead letters that are sent to a queue of one's own could be read there."""
    users.add(
        "eve", {Right.CONFIGURE: ["*"], Right.CONSUME: ["mine"], Right.PUBLISH: ["mine"]}, None, only_aws_key=True
    )
    key = users.add_aws_key("eve")
    logins.access.reload()
    for queue in ("orders", "dead", "mine"):
        await broker.create_queue(queue)
    await broker.change_settings("orders", {"dead_letter_queue": "dead", "max_receives": 1})
    sqs = await client_of(key.id, key.secret)
    url = (await sqs.list_queues(QueueNamePrefix="orders"))["QueueUrls"][0]
    arn = "arn:aws:sqs:us-east-1:000000000000:"
    policy = json.dumps({"deadLetterTargetArn": f"{arn}mine", "maxReceiveCount": 1})
    for asked in (
        partial(sqs.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": policy}),
        partial(sqs.start_message_move_task, SourceArn=f"{arn}dead", DestinationArn=f"{arn}mine"),
    ):
        with pytest.raises(sqs.exceptions.ClientError) as caught:
            await asked()
        assert code(caught)[1] == 403
    assert (await broker.status("orders")).settings.dead_letter_queue == "dead"


async def test_a_key_that_was_taken_away(
    client_of: Callable[..., Any], users: UsersFile, logins: Logins, key: AwsKey
) -> None:
    sqs = await client_of(key.id, key.secret)
    await sqs.list_queues()
    newer = users.add_aws_key("anna", only=True)
    logins.access.reload()
    with pytest.raises(sqs.exceptions.ClientError) as caught:
        await sqs.list_queues()
    assert code(caught) == ("InvalidClientTokenId", 403)
    await (await client_of(newer.id, newer.secret)).list_queues()


async def test_a_right_that_is_missing_is_written_down(
    users: UsersFile, logins: Logins, guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    users.add("ben", {Right.CONSUME: ["q"]}, None, only_aws_key=True)
    key = users.add_aws_key("ben")
    logins.access.reload()
    sqs = Client(make_client(guarded.url, "json", aws_access_key_id=key.id, aws_secret_access_key=key.secret))
    with caplog.at_level(logging.INFO, "mq.audit"), pytest.raises(sqs.exceptions.ClientError):
        await sqs.create_queue(QueueName="other")
    assert caplog.messages[-1] == (
        'event=forbidden protocol="sqs" address="127.0.0.1" user="ben" operation="CreateQueue" queue="other"'
    )


async def test_over_tls(broker: Broker, logins: Logins, key: AwsKey, nursery: trio.Nursery, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    endpoints = Endpoints(broker, MAX_BODY)
    door = SqsDoor(endpoints, broker, Budget(), nursery, logins)
    server = await start_server(nursery, door, certificates=Certificates(authority.files, PROTOCOLS))
    authority.ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    access = {"aws_access_key_id": key.id, "aws_secret_access_key": key.secret, "verify": str(tmp_path / "ca.pem")}
    sqs = Client(make_client(server.url, "json", **access))
    url = (await sqs.create_queue(QueueName="q"))["QueueUrl"]
    assert url == f"{server.url}/000000000000/q"
    assert url.startswith("https:")
    sqs.made.close()


async def test_a_signed_url(guarded: Server, key: AwsKey, broker: Broker) -> None:
    """It speaks the query protocol."""
    access = {"aws_access_key_id": key.id, "aws_secret_access_key": key.secret}
    sqs = make_client(guarded.url, "query", **access)
    await broker.create_queue("q")
    sign = partial(sqs.generate_presigned_url, "list_queues", {}, HttpMethod="GET")

    def get(url: str) -> tuple[int, bytes]:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    status, body = await trio.to_thread.run_sync(get, sign(ExpiresIn=60))
    assert (status, b"<QueueUrl>" in body) == (200, True)
    status, body = await trio.to_thread.run_sync(get, sign(ExpiresIn=60).replace("ListQueues", "DeleteQueue"))
    assert (status, b"SignatureDoesNotMatch" in body) == (403, True)


async def test_what_is_not_signed(guarded: Server, broker: Broker) -> None:
    lines = ("X-Amz-Target: AmazonSQS.CreateQueue", "Connection: close")
    status, headers, _ = parse(await guarded.exchange(http1("POST", "/", b'{"QueueName": "q"}', *lines)))
    assert (status, headers["x-amzn-query-error"]) == (403, "missingauthenticationtoken;sender")
    form = "Content-Type: application/x-www-form-urlencoded"
    asked = b"Action=CreateQueue&QueueName=q&Version=2012-11-05"
    status, _, body = parse(await guarded.exchange(http1("POST", "/", asked, form, "Connection: close")))
    assert (status, b"MissingAuthenticationToken" in body) == (403, True)
    status, _, _ = parse(await guarded.exchange(http1("POST", "/000000000000/q", asked, form, "Connection: close")))
    assert status == 401
    assert not await broker.queues()


async def test_nothing_of_a_signed_request_may_change(guarded_door: SqsDoor, key: AwsKey) -> None:
    """Its bytes are changed one at a time, after it was signed; what is not signed is left alone."""
    signed = sign(key, "POST", "http://mq/", b'{"QueueName": "q"}', {"X-Amz-Target": "AmazonSQS.CreateQueue"})
    assert (await guarded_door.handle(request_of(*signed))).status == 200
    random = Random(1)
    method, path, headers, body = signed
    for _ in range(300):
        name = random.choice(("authorization", "x-amz-date", "x-amz-target", "host", "body"))
        text = body.decode() if name == "body" else headers[name]
        place = random.randrange(len("AmazonSQS.") if name == "x-amz-target" else 0, len(text))
        changed = text[:place] + chr(random.randrange(33, 127)) + text[place + 1 :]
        if changed == text:
            continue
        other = (headers, changed.encode()) if name == "body" else ({**headers, name: changed}, body)
        reply = await guarded_door.handle(request_of(method, path, *other))
        assert reply.status in (400, 403), (name, changed)


def sign(
    key: AwsKey, method: str, url: str, body: bytes, headers: dict[str, str]
) -> tuple[str, str, dict[str, str], bytes]:
    """A request, signed by botocore."""
    request = AWSRequest(method, url, headers, body)
    SigV4Auth(Credentials(key.id, key.secret), "sqs", "eu-central-1").add_auth(request)
    found = {name.lower(): value for name, value in request.headers.items()}
    return method, "/", {"host": "mq", **found}, body


def request_of(method: str, path: str, headers: dict[str, str], body: bytes) -> Request:
    return Request(method, path.encode(), b"", headers, body, len(body))
