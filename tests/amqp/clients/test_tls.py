"""All clients behind TLS: against RabbitMQ, and against mq with users."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import aio_pika
import amqp
import celery
import kombu
import pika
import pytest
import trustme

from mq.client import ClientError, NotAllowed, Unreachable
from mq.client.amqp import connect
from tests.access.files import PASSWORD, TOKEN, write_users
from tests.amqp.clients.conftest import KINDS, check_is_there
from tests.amqp.clients.servers import MqServer, RabbitServer
from tests.amqp.clients.test_amqplib import WAIT_SECONDS, program
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow
__all__ = ["program"]

BODY: Final = bytes(range(256)) * 4000
USERS = '[users.anna]\npassword = "PASSWORD"\ntokens = ["TOKEN"]\nadminister = ["*"]\n'


class TLSDaemon(Daemon):
    """Ready when it says where it listens."""

    def _is_ready(self, begin: int) -> bool:
        return " on https://127.0.0.1:" in self.log.read_text(errors="replace")[begin:]


class Guarded:
    """Where to connect, as whom, and whose certificate to trust."""

    def __init__(self, port: int, folder: Path, *credentials: tuple[str, str]) -> None:
        self.port = port
        self.url = f"amqps://127.0.0.1:{port}"
        self.ca = folder / "ca.pem"
        self.credentials = credentials

    @property
    def context(self) -> ssl.SSLContext:
        """Trusts the server's authority, and nobody else."""
        return ssl.create_default_context(cafile=str(self.ca))

    @property
    def url_with_user(self) -> str:
        """With the last of the users: for mq a token."""
        name, secret = self.credentials[-1]
        return f"amqps://{name}:{secret}@127.0.0.1:{self.port}"


@pytest.fixture(scope="module", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    check_is_there(request.param)
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    if request.param == "rabbitmq":
        with RabbitServer(folder / "r", (folder / "ca.pem", folder / "cert.pem", folder / "key.pem")) as rabbit:
            yield Guarded(rabbit.tls_port, folder, ("guest", "guest"))
    else:
        users = write_users(folder / "users.toml", USERS)
        files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
        with MqServer(folder, "--users", users, *files, daemon=TLSDaemon) as server:
            yield Guarded(server.port, folder, ("anna", PASSWORD), ("anna", TOKEN))


async def test_messages_go_through_it(guarded: Guarded, queue: str) -> None:
    for user in guarded.credentials:
        async with connect(guarded.url, ca=guarded.ca, user=user) as client:
            await client.declare_queue(queue)
            await client.publish(queue, BODY)
            message = await client.get(queue)
            assert message is not None
            assert message.body == BODY
            await client.ack(message.tag)


async def test_a_certificate_that_nobody_trusts(guarded: Guarded) -> None:
    with pytest.raises(Unreachable, match="certificate"):
        async with connect(guarded.url, user=guarded.credentials[0]):
            pass


async def test_a_certificate_for_another_host(guarded: Guarded) -> None:
    with pytest.raises(Unreachable, match="certificate"):
        async with connect(f"amqps://localhost:{guarded.port}", ca=guarded.ca, user=guarded.credentials[0]):
            pass


async def test_a_wrong_secret(guarded: Guarded) -> None:
    with pytest.raises(NotAllowed):
        async with connect(guarded.url, ca=guarded.ca, user=(guarded.credentials[0][0], "wrong")):
            pass


async def test_who_forgets_tls_is_told(guarded: Guarded) -> None:
    with pytest.raises(ClientError):
        async with connect(f"amqp://127.0.0.1:{guarded.port}", timeout=5):
            pass


# The clients of others: each declares a queue, and gets back what it published


def with_pika(guarded: Guarded, queue: str) -> bytes:
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        guarded.port,
        credentials=pika.PlainCredentials(*guarded.credentials[-1]),
        ssl_options=pika.SSLOptions(guarded.context, "127.0.0.1"),
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue)
        channel.basic_publish("", queue, BODY)
        return bytes(channel.basic_get(queue, auto_ack=True)[2])


def with_aio_pika(guarded: Guarded, queue: str) -> bytes:
    async def main() -> bytes:
        async with await aio_pika.connect(guarded.url_with_user, ssl_context=guarded.context) as connection:
            channel = await connection.channel()
            declared = await channel.declare_queue(queue)
            await channel.default_exchange.publish(aio_pika.Message(BODY), queue)
            return (await declared.get(no_ack=True)).body

    return asyncio.run(asyncio.wait_for(main(), 40))


def with_py_amqp(guarded: Guarded, queue: str) -> bytes:
    name, secret = guarded.credentials[-1]
    context = {"context": {"cafile": str(guarded.ca)}, "server_hostname": "127.0.0.1"}
    place = f"127.0.0.1:{guarded.port}"
    with amqp.Connection(place, name, secret, ssl=context, confirm_publish=True, heartbeat=10) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, auto_delete=False)
        channel.basic_publish(amqp.Message(BODY), routing_key=queue)
        return bytes(channel.basic_get(queue, no_ack=True).body)


def with_kombu(guarded: Guarded, queue: str) -> bytes:
    trusted = {"ca_certs": str(guarded.ca), "cert_reqs": ssl.CERT_REQUIRED}
    with kombu.Connection(f"{guarded.url_with_user}//", ssl=trusted) as connection:
        simple = connection.SimpleQueue(queue, no_ack=True)
        simple.put(BODY, content_type="application/data", content_encoding="binary")
        body = simple.get(timeout=10).body
        simple.close()
        return bytes(body)


def with_celery(guarded: Guarded, queue: str) -> bytes:
    trusted = {"ca_certs": str(guarded.ca), "cert_reqs": ssl.CERT_REQUIRED}
    with celery.Celery(broker=f"{guarded.url_with_user}//", set_as_current=False) as app:
        app.conf.update(broker_use_ssl=trusted, task_default_queue=queue, task_ignore_result=True)
        app.send_task("nobody's", [BODY.hex()])
        with app.connection_for_read() as connection:
            simple = connection.SimpleQueue(app.amqp.queues[queue], no_ack=True)
            [arguments, *_] = simple.get(timeout=10).decode()
            simple.close()
        return bytes.fromhex(arguments[0])


@pytest.mark.parametrize("exchange", [with_pika, with_aio_pika, with_py_amqp, with_kombu, with_celery])
def test_a_client_of_others_gets_through_it(
    guarded: Guarded, queue: str, exchange: Callable[[Guarded, str], bytes]
) -> None:
    assert exchange(guarded, queue) == BODY


def test_amqplib_gets_through_it(guarded: Guarded, queue: str, program: Path) -> None:
    environment = os.environ | {"NODE_EXTRA_CA_CERTS": str(guarded.ca)}
    command = ["node", str(program), guarded.url_with_user, queue]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["big"] is True
