"""Certificates, loaded and loaded anew; what a connection makes of them is a matter of tests/web/test_tls.py."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from mq.access.certificates import Certificates, TLSFiles, common_name
from mq.errors import InvalidSetting


@pytest.fixture
def files(tmp_path: Path) -> TLSFiles:
    issued = trustme.CA().issue_cert("127.0.0.1")
    (tmp_path / "key.pem").touch(0o600)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return TLSFiles(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))


def refusal(files: TLSFiles) -> str:
    with pytest.raises(InvalidSetting) as caught:
        Certificates(files, [])
    text = str(caught.value)
    assert text.isprintable()
    return text


def test_settings_name_all_or_none() -> None:
    assert TLSFiles.of("", "", "") is None
    assert TLSFiles.of("c", "k", "") == TLSFiles("c", "k", None)
    assert TLSFiles.of("c", "k", "a") == TLSFiles("c", "k", "a")
    assert TLSFiles.of("c", "k", "a", "r") == TLSFiles("c", "k", "a", "r")
    with pytest.raises(InvalidSetting, match="--tls-client-ca"):
        TLSFiles.of("c", "k", "", "r")
    for given in (("c", "", ""), ("", "k", ""), ("", "", "a"), ("c", "", "a")):
        with pytest.raises(InvalidSetting, match="--tls-cert"):
            TLSFiles.of(*given)


def test_the_context_is_strict(files: TLSFiles) -> None:
    context = Certificates(files, ["h2"]).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert all(suite["aead"] for suite in context.get_ciphers())
    assert all(suite["name"].startswith(("ECDHE-", "TLS_")) for suite in context.get_ciphers())
    assert context.verify_mode == ssl.CERT_NONE
    asking = Certificates(files._replace(client_ca=files.certificate), []).context
    assert asking.verify_mode == ssl.CERT_REQUIRED


def test_files_that_cannot_be_used_are_named(files: TLSFiles, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN hunter2-----")
    assert "No such file" in refusal(files._replace(certificate=str(tmp_path / "missing.pem")))
    assert "MISMATCH" in refusal(files._replace(key=str(other)))
    assert "other.pem" in refusal(files._replace(key=str(other)))
    for wrong in (files._replace(certificate=str(junk)), files._replace(key=str(junk))):
        assert "junk.pem" in refusal(wrong)
        assert "hunter2" not in refusal(wrong)
    assert "client CA file" in refusal(files._replace(client_ca=str(junk)))
    assert "No such file" in refusal(files._replace(client_ca=str(tmp_path / "missing.pem")))


def test_an_encrypted_key_is_refused_and_nobody_is_asked(files: TLSFiles) -> None:
    path = Path(files.key)
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret"))
    )
    assert "encrypted" in refusal(files)


def test_a_key_that_is_open_to_all_is_warned_of(files: TLSFiles, caplog: pytest.LogCaptureFixture) -> None:
    Certificates(files, [])
    assert "every user of this machine can read" not in caplog.text
    Path(files.key).chmod(0o644)
    Certificates(files, [])
    assert "every user of this machine can read the file" in caplog.text
    assert "key.pem. Restrict access" in caplog.text


@pytest.mark.parametrize("name", ["certificate", "key", "client_ca"])
def test_files_that_others_may_change_are_refused(files: TLSFiles, name: str) -> None:
    files = files._replace(client_ca=files.certificate)
    path = Path(getattr(files, name))
    path.chmod(0o666)
    assert "can be modified by every user" in refusal(files)
    path.chmod(0o664)
    assert "can be modified by its group" in refusal(files)


def test_wrong_new_files_change_nothing(files: TLSFiles) -> None:
    certificates = Certificates(files, [])
    context = certificates.context
    Path(files.certificate).write_text("")
    with pytest.raises(InvalidSetting):
        certificates.reload()
    assert certificates.context is context


class Clients:
    """An authority of clients, and what it has revoked."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.folder = folder
        self.ca.cert_pem.write_to_path(folder / "clients.pem")

    def revoke(self, *revoked: trustme.LeafCert, name: str = "crl.pem", days: float = 1) -> str:
        authority = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        builder = builder.last_update(now - timedelta(days=2)).next_update(now + timedelta(days=days))
        for leaf in revoked:
            number = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number
            entry = x509.RevokedCertificateBuilder(number, now - timedelta(days=1))
            builder = builder.add_revoked_certificate(entry.build())
        key = load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        crl = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        (self.folder / name).write_bytes(crl.public_bytes(Encoding.PEM))
        return str(self.folder / name)


def gets_in(certificates: Certificates, leaf: trustme.LeafCert) -> bool:
    """Whether a handshake in memory succeeds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    leaf.configure_cert(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    server = certificates.context.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(5):
        for end in (client, server):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return len(done) == 2


def test_who_is_revoked_does_not_get_in(files: TLSFiles, tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    good, bad = clients.ca.issue_cert("good"), clients.ca.issue_cert("bad")
    asked = files._replace(client_ca=str(tmp_path / "clients.pem"))
    assert gets_in(Certificates(asked, []), bad)
    certificates = Certificates(asked._replace(crl=clients.revoke()), [])
    assert [gets_in(certificates, leaf) for leaf in (good, bad)] == [True, True]
    clients.revoke(bad)
    certificates.reload()
    assert [gets_in(certificates, leaf) for leaf in (good, bad)] == [True, False]
    (tmp_path / "crl.pem").write_text("junk")
    with pytest.raises(InvalidSetting, match=r"crl\.pem"):
        certificates.reload()
    assert [gets_in(certificates, leaf) for leaf in (good, bad)] == [True, False]


def test_a_list_past_its_time_lets_nobody_in(files: TLSFiles, tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    asked = files._replace(client_ca=str(tmp_path / "clients.pem"), crl=clients.revoke(days=-1))
    assert not gets_in(Certificates(asked, []), clients.ca.issue_cert("good"))


def test_a_file_without_a_list_is_refused(files: TLSFiles, tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    ca = str(tmp_path / "clients.pem")
    assert "the file contains no revocation list" in refusal(files._replace(client_ca=ca, crl=ca))
    assert "No such file" in refusal(files._replace(client_ca=ca, crl=str(tmp_path / "missing.pem")))
    assert clients.ca


def test_a_certificate_has_one_common_name_or_none() -> None:
    one = ((("organizationName", "mq"),), (("commonName", "shop"),))
    assert common_name({"subject": one}) == "shop"
    assert common_name({"subject": (*one, (("commonName", "anna"),))}) is None
    assert common_name({"subject": one[:1]}) is None
    assert common_name({}) is None
    assert common_name(None) is None
