"""The address of a store on etcd, and what can be said in it.

``etcd:http://127.0.0.1:2379,http://10.0.0.2:2379?prefix=/mq/orders&quota=4GiB``
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.quantities import parse_duration, parse_size
from mq_etcd.client import DEADLINE_SECONDS, PATIENCE_SECONDS
from mq_etcd.connection import parse_endpoint

DEFAULT_PREFIX: Final = "/mq/"
DEFAULT_QUOTA: Final = 2 << 30
"""Bytes: etcd's own default for --quota-backend-bytes."""
_KNOWN: Final = (
    "prefix",
    "user",
    "password-file",
    "ca",
    "cert",
    "key",
    "quota",
    "patience",
    "deadline",
    "fence",
    "reserved",
)


class Fence(NamedTuple):
    """A key that has to be the one it was: a broker that makes it anew shuts the store's older users out.

    Attributes:
        revision: at which it was made (``KeyValue.created``).
    """

    key: str
    revision: int


class Address(NamedTuple):
    """Where a store is.

    Attributes:
        prefix: the beginning of every key of the store; ends with a slash.
        tls: authorities to trust and a certificate to show, over https.
        quota: bytes that etcd may hold, as its own --quota-backend-bytes says.
        patience: how long one member has to answer, in seconds.
        deadline: how long a request may take, in seconds.
        fence: a key of another program's that every change depends on; None for one of the store's own.
        reserved: the beginning of the keys that reserve names (:mod:`mq_etcd.names`): no queue is made of such a name;
            None where none are reserved.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    quota: int = DEFAULT_QUOTA
    patience: float = PATIENCE_SECONDS
    deadline: float = DEADLINE_SECONDS
    fence: Fence | None = None
    reserved: str | None = None


def parse_address(rest: str) -> Address:
    """What follows ``etcd:``. Files that it names are read when the store is made.

    Raises:
        StorageUnusable: it makes no sense; the text says what would.
    """
    places, _, query = rest.partition("?")
    endpoints = tuple(filter(None, places.split(",")))
    try:
        for endpoint in endpoints:
            parse_endpoint(endpoint)
    except ValueError as error:
        raise StorageUnusable(str(error)) from error
    if not endpoints:
        raise StorageUnusable('the storage backend "etcd" requires an address, such as etcd:http://127.0.0.1:2379')
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise StorageUnusable(
            f'unknown option {shorten(unknown[0])} for the storage backend "etcd". Known options: {", ".join(_KNOWN)}'
        )
    return Address(
        endpoints,
        _prefix(options.get("prefix", DEFAULT_PREFIX)),
        _user(options),
        _tls(options),
        _bytes(options["quota"]) if "quota" in options else DEFAULT_QUOTA,
        _seconds(options, "patience", PATIENCE_SECONDS),
        _seconds(options, "deadline", DEADLINE_SECONDS),
        _fence(options["fence"]) if "fence" in options else None,
        _prefix(options["reserved"]) if "reserved" in options else None,
    )


def _prefix(text: str) -> str:
    if not text or len(text) > 200 or not text.isascii() or not text.isprintable():
        raise StorageUnusable(
            f"invalid key prefix: {shorten(text)}. Use a value such as prefix=/mq/orders, in ASCII characters"
        )
    return text.rstrip("/") + "/"


def _user(options: dict[str, str]) -> tuple[str, str] | None:
    name, file = options.get("user"), options.get("password-file")
    if name is None and file is None:
        return None
    if not name or not file:
        raise StorageUnusable("the etcd options user and password-file must be used together")
    return name, _read(file).rstrip("\r\n")


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageUnusable(f"cannot read the etcd password file {shorten(file)}: {error}") from error


def _tls(options: dict[str, str]) -> ssl.SSLContext | None:
    authority, cert, key = (options.get(name) for name in ("ca", "cert", "key"))
    if authority is None and cert is None and key is None:
        return None
    try:
        context = ssl.create_default_context(cafile=authority)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise StorageUnusable(
            f"cannot load the files specified by the etcd options ca, cert and key: {error}"
        ) from error
    return context


def _bytes(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if not size:
        raise StorageUnusable(
            f'invalid value for the etcd option "quota": {shorten(text)}. Use the value of etcd\'s '
            "--quota-backend-bytes; for example, quota=4GiB"
        )
    return size


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise StorageUnusable(
            f"{name} must be a duration, not {shorten(text)}. Use a value such as {name}={default:g}s"
        )
    return seconds


def _fence(text: str) -> Fence:
    key, at, revision = text.rpartition("@")
    if not at or not key or not revision.isascii() or not revision.isdecimal():
        raise StorageUnusable(
            f'invalid value for the etcd option "fence": {shorten(text)}. Use KEY@REVISION, with the revision at '
            "which the key was created"
        )
    return Fence(key, int(revision))
