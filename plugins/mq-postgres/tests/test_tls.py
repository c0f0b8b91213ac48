"""TLS to a real server: which one is believed, and that what is sent is encrypted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from mq_postgres.testing.server import ROLE, Server, running

from mq.errors import StorageUnusable
from mq.storage.records import put_record
from mq.storage.registry import open_storage

NAME = "127.0.0.1"
OTHER_NAME = "db.example"


class Secured:
    """A server that takes TLS, whose certificate can be another's.

    Attributes:
        authority, stranger: files with certificates of the server's authority, and of one it has nothing to do with.
    """

    def __init__(self, server: Server, files: Path, folder: Path) -> None:
        self.server = server
        self._files = files
        self._authority, stranger = trustme.CA(), trustme.CA()
        self.authority, self.stranger = (str(folder / f"{name}.pem") for name in ("authority", "stranger"))
        self._authority.cert_pem.write_to_path(self.authority)
        stranger.cert_pem.write_to_path(self.stranger)

    def issue(self, name: str) -> None:
        """Let the server show a certificate for that name from now on."""
        issued = self._authority.issue_cert(name)
        certificate, key = self._files / "cert.pem", self._files / "key.pem"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        key.touch(0o600)
        issued.private_key_pem.write_to_path(str(key))
        owner = self.server.folder.stat()
        os.chown(self._files, owner.st_uid, owner.st_gid)
        for file in (certificate, key):
            os.chown(file, owner.st_uid, owner.st_gid)
        self.server.set(ssl="off")
        self.server.set(ssl_cert_file=str(certificate), ssl_key_file=str(key), ssl="on")

    def address(self, **options: str) -> str:
        given = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgres://{ROLE}@{NAME}:{self.server.port}/{ROLE}?schema=secured&deadline=5{given}"


@pytest.fixture(scope="module")
def secured(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with running() as server:
        files = server.folder / "tls"  # where the user as whom it runs comes to them
        files.mkdir()
        yield Secured(server, files, tmp_path_factory.mktemp("tls"))
        shutil.rmtree(files)


async def test_a_server_of_a_trusted_authority_is_spoken_to_in_secret(secured: Secured) -> None:
    secured.issue(NAME)
    async with open_storage(secured.address(sslmode="verify-full", sslrootcert=secured.authority)) as storage:
        await put_record(storage, "exchange", "a", {})
        assert await storage.records("exchange") == {"a": {}}
        with secured.server.admin() as admin:
            found = admin.execute(
                "SELECT ssl, version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = %s", (ROLE,)
            ).fetchall()
    assert len(found) >= 2, "a session that changes, and one that looks"
    assert {(is_secret, version in ("TLSv1.2", "TLSv1.3")) for is_secret, version in found} == {(True, True)}


async def test_a_server_of_another_authority_is_not_believed(secured: Secured) -> None:
    secured.issue(NAME)
    with pytest.raises(StorageUnusable, match="certificate verify failed"):
        async with open_storage(secured.address(sslmode="verify-full", sslrootcert=secured.stranger)):
            pytest.fail("it opened")


async def test_a_server_with_the_certificate_of_another_name_is_not_believed(secured: Secured) -> None:
    secured.issue(OTHER_NAME)
    trusted = {"sslrootcert": secured.authority}
    with pytest.raises(StorageUnusable, match="does not match host name"):
        async with open_storage(secured.address(sslmode="verify-full", **trusted)):
            pytest.fail("it opened")
    async with open_storage(secured.address(sslmode="verify-ca", **trusted)):
        pass  # less is had where it is said


async def test_a_server_without_tls_is_not_spoken_to_where_tls_is_asked_for(secured: Secured) -> None:
    secured.server.set(ssl="off")
    with pytest.raises(StorageUnusable, match="does not support SSL"):
        async with open_storage(secured.address(sslmode="require")):
            pytest.fail("it opened")
