"""The verb ``certificate``: Python's strictest checks take what it makes, and it overwrites nothing."""

from __future__ import annotations

import shutil
import socket
import ssl
import stat
from pathlib import Path

import pytest

from mq.access.certificates import Certificates, TLSFiles
from tests.cli.conftest import Mq

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def shakes_hands(folder: Path, name: str) -> bool:
    """Whether a client that trusts the certificate, and nothing else, finds the server to be `name`."""
    trusting = ssl.create_default_context(cafile=folder / "cert.pem")
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = Certificates(TLSFiles(str(folder / "cert.pem"), str(folder / "key.pem")), []).context
    ends = [
        trusting.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
            ends.remove(end)
    return not ends


def test_it_is_trusted_by_its_names_and_by_no_other(mq: Mq, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    done = mq("certificate", folder, "--name", "queue.example", "--name", "192.0.2.7", "--days", 9)
    assert (done.status, done.lines) == (0, [str(folder / "cert.pem"), str(folder / "key.pem")])
    assert f"mq serve --tls-cert {folder / 'cert.pem'} --tls-key {folder / 'key.pem'}" in done.error
    for name in ("queue.example", "192.0.2.7", "localhost", "127.0.0.1", "::1", socket.gethostname()):
        assert shakes_hands(folder, name), name
    assert not shakes_hands(folder, "other.example")
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["cert.pem", "key.pem"]


@pytest.mark.parametrize("there", ["cert.pem", "key.pem"])
def test_it_overwrites_nothing(mq: Mq, tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    done = mq("certificate", tmp_path)
    assert (done.status, done.out) == (1, "")
    assert done.error == f"mq: {tmp_path / there} already exists and was not overwritten\n"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


@pytest.mark.parametrize("name", ["a,b", "a b", "a\nCN=b", "", "-a", "a..b", "x" * 254, "DNS:a"])
def test_a_name_is_a_name(mq: Mq, tmp_path: Path, name: str) -> None:
    done = mq("certificate", tmp_path / "tls", "--name", name)
    assert done.status == 2
    assert "is neither a host name nor an IP address" in done.error
    assert not (tmp_path / "tls").exists()


def test_a_long_name_fits(mq: Mq, tmp_path: Path) -> None:
    name = "a" * 60 + ".example.test"
    assert mq("certificate", tmp_path, "--name", name).status == 0
    assert shakes_hands(tmp_path, name)


def test_without_openssl_it_says_what_to_do(mq: Mq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = mq("certificate", tmp_path / "tls")
    assert (done.status, done.error) == (1, "mq: the program openssl was not found. Install it (apt install openssl)\n")
    assert list((tmp_path / "tls").iterdir()) == []


def test_a_folder_that_cannot_be_made(mq: Mq, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = mq("certificate", tmp_path / "file" / "tls")
    assert done.status == 1
    assert "Not a directory" in done.error
