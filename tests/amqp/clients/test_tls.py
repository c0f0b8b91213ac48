"""mq's own client behind TLS: against RabbitMQ, and against mq with users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from mq.client import ClientError, NotAllowed, Unreachable
from mq.client.amqp import connect
from tests.access.files import PASSWORD, TOKEN, write_users
from tests.amqp.clients.conftest import KINDS, check_is_there
from tests.amqp.clients.servers import MqServer, RabbitServer
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow

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
    body = bytes(range(256)) * 4000
    for user in guarded.credentials:
        async with connect(guarded.url, ca=guarded.ca, user=user) as client:
            await client.declare_queue(queue)
            await client.publish(queue, body)
            message = await client.get(queue)
            assert message is not None
            assert message.body == body
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
