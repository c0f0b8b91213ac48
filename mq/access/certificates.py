"""What a door shows of itself over TLS, and what it asks its clients for."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import NamedTuple

from mq.access.users_file import warn_if_open
from mq.errors import InvalidSetting
from mq.message import shorten


class TLSFiles(NamedTuple):
    """Where they are, all of them PEM.

    Attributes:
        certificate: the server's certificate, then those between it and its authority.
        key: its private key, not encrypted.
        client_ca: authorities; each client must show a certificate of theirs. None asks for none.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    @classmethod
    def of(cls, certificate: str, key: str, client_ca: str) -> TLSFiles | None:
        """Those that settings name; None when they name none.

        Raises:
            InvalidSetting: some are named, but not enough.
        """
        if bool(certificate) != bool(key):
            raise InvalidSetting("--tls-cert and --tls-key belong together: give both or none")
        if client_ca and not certificate:
            raise InvalidSetting("--tls-client-ca needs --tls-cert and --tls-key")
        return cls(certificate, key, client_ca or None) if certificate else None


class Certificates:
    """The files, loaded.

    Args:
        files: where they are.
        protocols: what the door speaks, the best first, as ALPN has it (RFC 7301); none where it has no name there.

    Attributes:
        context: for the next connection. Those that are open keep the one they began with.

    Raises:
        InvalidSetting: a file cannot be read, or they do not fit together.
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
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        certificate, key, client_ca = self.files
        try:
            context.load_cert_chain(certificate, key, _no_passphrase)
        except (OSError, ValueError) as error:
            raise InvalidSetting(f"cannot use {_shown(certificate)} with {_shown(key)}: {_reason(error)}") from error
        warn_if_open(key)
        if client_ca is not None:
            _require_client_certificates(context, client_ca)
        return context


def _require_client_certificates(context: ssl.SSLContext, client_ca: str) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"cannot use the client authorities {_shown(client_ca)}: {_reason(error)}") from error


def _no_passphrase() -> str:
    """Otherwise OpenSSL would ask on the terminal, and wait."""
    raise ValueError("the key is encrypted, and mq asks for no passphrase")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _shown(path: str) -> str:
    return shorten(path, 200)
