"""What an address may say: ``postgres://USER@HOST:PORT/DATABASE?schema=orders``. Never a password."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from psycopg import pq

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.quantities import parse_duration

DEFAULT_SCHEMA: Final = "mq"
DEADLINE_SECONDS: Final = 10.0
_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_KNOWN: Final = ("schema", "host", "password-file", "deadline", "term", *_TLS)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,62}")
_LOCAL: Final = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1|")
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(:(?P<port>[0-9]{1,5}))?")
_SYSTEM_AUTHORITIES: Final = 160000
"""The first libpq that takes the system's authorities."""
_EXAMPLE: Final = "postgres://mq@db.example/mq"


class Address(NamedTuple):
    """Where a store is.

    Attributes:
        parameters: of the connection, as libpq calls them. No password.
        password_file: whose first line is the password; None where libpq's own PGPASSFILE has it, or none is asked for.
        deadline: how long a change or a look may take, in seconds.
        term: of the leader of a cluster, which takes the store from that of any earlier term; 0 for a broker that is
            in no cluster, and takes it from none that lives.
    """

    parameters: dict[str, str]
    schema: str = DEFAULT_SCHEMA
    password_file: str | None = None
    deadline: float = DEADLINE_SECONDS
    term: int = 0

    @property
    def name(self) -> str:
        """What tells the store from others, whichever server has it."""
        return f"{self.parameters['dbname']}/{self.schema}"

    def password(self) -> str | None:
        """Read the file.

        Raises:
            StorageUnusable: it cannot be read, or every user of the machine can.
        """
        if self.password_file is None:
            return None
        try:
            with open(self.password_file, encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IROTH:
                    raise StorageUnusable(
                        "every user of this machine can read the password file "
                        f"{shorten(self.password_file)}: run chmod 600 on the file, or chmod 640 if only "
                        "mq's user is in the file's group"
                    )
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise StorageUnusable(f"cannot read the password file {shorten(self.password_file)}: {error}") from error


def parse_address(rest: str) -> Address:
    """What follows ``postgres:``.

    Raises:
        StorageUnusable: it makes no sense; the text says what would. It never repeats a password.
    """
    try:
        parts = urlsplit(f"postgres:{rest}")
    except ValueError:
        raise StorageUnusable(f"invalid PostgreSQL address. Use an address such as {_EXAMPLE}") from None
    user, _, hosts = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if ":" in user or "password" in options:
        raise StorageUnusable(
            "the address must not contain a password, since it appears in logs and process lists: use "
            "password-file= or set PGPASSFILE"
        )
    if not rest.startswith("//") or not parts.path.strip("/") or parts.fragment:
        raise StorageUnusable(f'the storage backend "postgres" requires a host and a database, such as {_EXAMPLE}')
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise StorageUnusable(
            f'unknown option {shorten(unknown[0])} for the storage backend "postgres". Known options: '
            f"{', '.join(_KNOWN)}"
        )
    parameters = {"dbname": unquote(parts.path.removeprefix("/"))} | _hosts(hosts, options.get("host"))
    if user:
        parameters["user"] = unquote(user)
    parameters |= _tls(options, parameters.get("host", ""))
    return Address(
        parameters,
        _schema(options.get("schema", DEFAULT_SCHEMA)),
        options.get("password-file"),
        _seconds(options),
        _term(options),
    )


def connection_parameters(address: Address) -> dict[str, Any]:
    """What libpq is to be told, password and all. Not for logs."""
    password = address.password()
    return {**address.parameters, **({} if password is None else {"password": password})}


def _hosts(text: str, folder: str | None) -> dict[str, str]:
    if folder is not None:
        if text or not folder.startswith("/"):
            raise StorageUnusable(
                "host= only accepts a Unix socket folder. Use an address such as postgres:///mq?host=/run/postgresql"
            )
        return {"host": folder}
    if not text:
        return {}
    found = [_HOST.fullmatch(each) for each in text.split(",")]
    if not all(match is not None and match["host"] for match in found):
        raise StorageUnusable(f"invalid PostgreSQL hosts: {shorten(text)}. Use an address such as {_EXAMPLE}")
    # of several hosts one takes changes at a time; which, only asking tells
    hosts = {"host": ",".join(match["host"].strip("[]") for match in found if match)}
    ports = {"port": ",".join(match["port"] or "" for match in found if match)}
    return hosts | (ports if ports["port"].strip(",") else {}) | {"target_session_attrs": "read-write"}


def _tls(options: dict[str, str], hosts: str) -> dict[str, str]:
    is_local = hosts.startswith("/") or all(_LOCAL.fullmatch(host) for host in hosts.split(","))
    mode = options.get("sslmode", "prefer" if is_local else "verify-full")
    if mode not in _SSL_MODES:
        raise StorageUnusable(f"unknown sslmode: {shorten(mode)}. Known modes: {', '.join(_SSL_MODES)}")
    given: dict[str, str] = {name: options[name] for name in _TLS if name in options}
    # libpq itself looks for a file in the home of the user, which a service hardly has
    authorities = {"sslrootcert": "system"} if mode == "verify-full" and pq.version() >= _SYSTEM_AUTHORITIES else {}
    return {**authorities, **given, "sslmode": mode}


def _schema(text: str) -> str:
    if _SCHEMA.fullmatch(text) is None or text.startswith("pg_"):
        raise StorageUnusable(f"invalid schema name: {shorten(text)}. Use a-z, 0-9 and _, starting with a letter")
    return text


def _seconds(options: dict[str, str]) -> float:
    text = options.get("deadline")
    if text is None:
        return DEADLINE_SECONDS
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise StorageUnusable(
            f'the option "deadline" must be a duration, not {shorten(text)}. Use a value such as deadline=10s'
        )
    return seconds


def _term(options: dict[str, str]) -> int:
    text = options.get("term", "0")
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise StorageUnusable(
            f'invalid value for the option "term": {shorten(text)}. Omit this option: in a cluster, mq sets it'
        )
    return int(text)
