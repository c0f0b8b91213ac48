"""Certificates of TLS: a server's own, and the authorities that its clients' certificates must come from."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mq.access.users_file import check_modes
from mq.errors import InvalidSetting
from mq.message import shorten

_SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: suites with authenticated encryption and forward secrecy. All those of TLS 1.3 have both."""


class TLSFiles(NamedTuple):
    """Where they are, all of them PEM.

    Attributes:
        certificate: the server's certificate, then those between it and its authority.
        key: its private key, not encrypted.
        client_ca: authorities; each client must show a certificate of theirs. None asks for none.
        crl: what those authorities have revoked; None where they have revoked nothing.
    """

    certificate: str
    key: str
    client_ca: str | None = None
    crl: str | None = None

    @classmethod
    def of(cls, certificate: str, key: str, client_ca: str, crl: str = "") -> TLSFiles | None:
        """The files that settings name; None when they name none.

        Raises:
            InvalidSetting: some are named, but not enough.
        """
        if bool(certificate) != bool(key):
            raise InvalidSetting("--tls-cert and --tls-key must be used together")
        if client_ca and not certificate:
            raise InvalidSetting("--tls-client-ca requires --tls-cert and --tls-key")
        if crl and not client_ca:
            raise InvalidSetting("--tls-crl requires --tls-client-ca")
        return cls(certificate, key, client_ca or None, crl or None) if certificate else None


class Certificates:
    """The files, loaded.

    Args:
        protocols: what the server speaks, the best first, as ALPN has it (RFC 7301); none where it has no name there.

    Attributes:
        context: for the next connection. Those that are open keep the one they began with.

    Raises:
        InvalidSetting: a file cannot be read, others than its owner may change it, or they do not fit together.
    """

    def __init__(self, files: TLSFiles, protocols: Sequence[str]) -> None:
        self.files = files
        self._protocols = list(protocols)
        self.context = self._load()

    def reload(self) -> None:
        """Read the files anew.

        Raises:
            InvalidSetting: they cannot be used; the context stays as it was.
        """
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_SUITES)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        certificate, key, client_ca, crl = self.files
        try:
            context.load_cert_chain(certificate, key, _no_passphrase)
        except (OSError, ValueError) as error:
            raise InvalidSetting(
                f"cannot use the certificate {_shown(certificate)} with the private key {_shown(key)}: {_reason(error)}"
            ) from error
        check_modes(key, "the private key")
        for path, what in (
            (certificate, "the certificate"),
            (client_ca, "the client CA file"),
            (crl, "the revocation list"),
        ):
            if path is not None:
                check_modes(path, what, is_public=True)
        if client_ca is not None:
            _require_client_certificates(context, client_ca)
        if crl is not None:
            _refuse_revoked(context, crl)
        return context


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The one common name of a client's certificate; None where there is no certificate, or none or several names.

    Args:
        certificate: as :meth:`ssl.SSLSocket.getpeercert` gives it: verified.
    """
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else None


def _require_client_certificates(context: ssl.SSLContext, client_ca: str) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"cannot use the client CA file {_shown(client_ca)}: {_reason(error)}") from error


def _refuse_revoked(context: ssl.SSLContext, crl: str) -> None:
    """Refuse clients with a revoked certificate."""
    # Only the clients' own certificates: those between them and their authority have lists elsewhere.
    try:
        context.load_verify_locations(crl)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"cannot use the revocation list {_shown(crl)}: {_reason(error)}") from error
    if not context.cert_store_stats()["crl"]:
        raise InvalidSetting(
            f"cannot use the revocation list {_shown(crl)}: the file contains no revocation list in PEM format "
            "(-----BEGIN X509 CRL-----)"
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _no_passphrase() -> str:
    """No passphrase: without this callback OpenSSL would ask on the terminal, and wait."""
    raise ValueError("the private key is encrypted. Use a key without a passphrase")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _shown(path: str) -> str:
    return shorten(path, 200)
