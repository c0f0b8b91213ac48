"""An etcd that speaks TLS, asks for a certificate, and knows its users."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from mq_etcd.client import Client, open_client
from mq_etcd.errors import Denied, Unavailable
from mq_etcd.testing.cluster import Cluster, running
from mq_etcd.values import text

from mq.broker import open_broker
from mq.errors import StorageUnusable


class Guarded(NamedTuple):
    cluster: Cluster
    tls: ssl.SSLContext
    options: str


@pytest.fixture
def guarded(installed: None, tmp_path: Path) -> Iterator[Guarded]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("127.0.0.1", "client.example"):
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    tls.load_cert_chain(tmp_path / "client.example.pem", tmp_path / "client.example.key")
    flags = [
        *(f"--cert-file={tmp_path}/127.0.0.1.pem", f"--key-file={tmp_path}/127.0.0.1.key"),
        *("--client-cert-auth", f"--trusted-ca-file={tmp_path}/ca.pem"),
    ]
    options = f"ca={tmp_path}/ca.pem&cert={tmp_path}/client.example.pem&key={tmp_path}/client.example.key"
    with running(1, *flags, tls=tls) as cluster:
        yield Guarded(cluster, tls, options)


async def ask(client: Client, path: str, **wanted: object) -> None:
    await client._members.ask(f"/v3/auth/{path}", wanted, changes=True)


async def test_a_broker_shows_its_certificate_and_logs_in(guarded: Guarded, tmp_path: Path) -> None:
    [endpoint] = guarded.cluster.endpoints
    async with open_client([endpoint], tls=guarded.tls) as client:
        for name in ("root", "mq"):
            await ask(client, "user/add", name=name, password="secret")
            await ask(client, "role/add", name=name)
            await ask(client, "user/grant", user=name, role=name)
        allowed = {"permType": "READWRITE", "key": text(b"/mq/"), "range_end": text(b"/mq0")}
        await ask(client, "role/grant", name="mq", perm=allowed)
        await ask(client, "enable")
        with pytest.raises(Denied, match="Set the user and password"):
            await client.get("/mq/key")
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    address = f"etcd:{endpoint}?{guarded.options}&user=mq&password-file={tmp_path}"
    async with open_broker(f"{address}/password") as broker:
        await broker.create_queue("orders")
        await broker.publish("orders", b"body")
        message = await broker.fetch("orders")
        assert message is not None
        assert await message.body.read() == b"body"
    with pytest.raises(StorageUnusable, match="authentication failed"):
        async with open_broker(f"{address}/wrong"):
            pytest.fail("it opened")
    with pytest.raises(StorageUnusable, match="permission denied"):
        async with open_broker(f"{address}/password&prefix=/other"):
            pytest.fail("it opened")


async def test_who_shows_no_certificate_and_whom_one_does_not_trust_are_refused(guarded: Guarded) -> None:
    for tls in (None, ssl.create_default_context()):
        async with open_client(guarded.cluster.endpoints, tls=tls, deadline=0.5) as client:
            with pytest.raises(Unavailable, match=r"certificate verify failed"):
                await client.get("key")
    plain = guarded.cluster.endpoints[0].replace("https", "http")
    async with open_client([plain], deadline=0.5) as client:
        with pytest.raises(Unavailable):
            await client.get("key")
