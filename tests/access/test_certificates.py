"""Certificates, loaded and loaded anew; what a connection makes of them is a matter of tests/web/test_tls.py."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from mq.access.certificates import Certificates, TLSFiles
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
    for given in (("c", "", ""), ("", "k", ""), ("", "", "a"), ("c", "", "a")):
        with pytest.raises(InvalidSetting, match="--tls-cert"):
            TLSFiles.of(*given)


def test_the_context_is_strict(files: TLSFiles) -> None:
    context = Certificates(files, ["h2"]).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
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
    assert "client authorities" in refusal(files._replace(client_ca=str(junk)))
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
    assert "open to every user" not in caplog.text
    Path(files.key).chmod(0o644)
    Certificates(files, [])
    assert "key.pem is open to every user" in caplog.text


def test_wrong_new_files_change_nothing(files: TLSFiles) -> None:
    certificates = Certificates(files, [])
    context = certificates.context
    Path(files.certificate).write_text("")
    with pytest.raises(InvalidSetting):
        certificates.reload()
    assert certificates.context is context
