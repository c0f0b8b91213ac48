"""The cluster's file: this node and its two neighbours (seed CHMQ, part four).

It is TOML::

name = "a"
neighbor_1 = "10.9.0.2:5672"
neighbor_2 = "10.9.0.3:5672"
coordinator = "etcd:http://10.9.0.1:2379,http://10.9.0.2:2379,http://10.9.0.3:2379"
password_file = "/etc/mq/cluster.password"

The first three lines are enough where only this machine can reach the nodes, or with ``--insecure``: etcd is then at
its default place, and no password tells a node from another client. They may also stand as the seed has them, one
value a line: the name, and two times HOST:PORT.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from mq.broker.api import CLUSTER, NODE
from mq.errors import InvalidSetting
from mq.message import shorten
from mq.quantities import parse_duration

SHORTEST_LEASE_SECONDS: Final = 2
"""etcd gives no shorter one."""
LONGEST_LEASE_SECONDS: Final = 60
DEFAULT_LEASE_SECONDS: Final = 5
"""On a busy machine etcd may take a second or two for a renewal."""

DEFAULT_COORDINATOR: Final = "etcd:http://127.0.0.1:2379"
"""Where a member of etcd listens that was told nothing else."""

_NAME: Final = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,49}")
logger = logging.getLogger(__name__)

_QUOTES: Final = "\"'"
_PORT: Final = re.compile("[0-9]{1,5}")
_KEYS: Final = (
    "name",
    "neighbor_1",
    "neighbor_2",
    "coordinator",
    "user",
    "password",
    "password_file",
    "ca",
    "certificate",
    "lease_seconds",
    "store",
    "default_store",
)


_KNOWN: Final = f"Valid keys: {', '.join(_KEYS)}"


class Neighbor(NamedTuple):
    """Where another node serves AMQP."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class _NotAnAddress(InvalidSetting):
    """Its text begins after the name of what has the address."""


def parse_neighbor(text: str) -> Neighbor:
    """The place of a neighbour.

    Raises:
        InvalidSetting: it is not HOST:PORT.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or _PORT.fullmatch(port) is None or not 0 < int(port) < 65_536:
        raise _NotAnAddress(f"{shorten(text)} is not a valid address for a node's AMQP server. Use HOST:PORT")
    return Neighbor(host, int(port))


@dataclass(frozen=True)
class ClusterConfig:
    """What a node knows of its cluster.

    Attributes:
        coordinator: the address of what keeps the cluster's members, and its store.
        user: the one that it logs in as at its neighbours.
        password: of that user; all nodes have the same one, which tells them from other clients. Empty where any client
            of the AMQP port may be a node.
        ca: a PEM file: TLS is spoken with neighbours that show a certificate of these authorities; None for no TLS.
        certificate: a PEM file with certificate and key, to be shown to neighbours.
        lease_seconds: how long a node is a member after its last sign of life.
        store: the address of the store that has the messages; empty where the coordinator's own has them.
        default_store: where a queue lives whose client does not say: NODE, on the node that makes it, or CLUSTER.
        spool_folder: has large bodies on their way to the leader; empty for the system's folder of temporary files.
    """

    node: str
    neighbors: tuple[Neighbor, Neighbor]
    coordinator: str
    password: str
    user: str = "cluster"
    ca: str | None = None
    certificate: str | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    store: str = ""
    spool_folder: str = ""
    default_store: str = NODE


def load_cluster(
    path: str, given: Mapping[str, str], trusts: Callable[[str], bool] = lambda host: False
) -> ClusterConfig:
    """The cluster of a file. Values in `given` go before those of the file.

    Args:
        path: the file; "" for none.
        trusts: whether a neighbour at this host name or address needs no password.

    Raises:
        InvalidSetting: the file cannot be read; or a value is wrong or missing: the text names the line.
    """
    text = _with_keys(_read(path)) if path else ""
    source = _ConfigSource(path, text, given)
    values = _parse(path, text)
    for key in values:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean {near[0]}?" if near else _KNOWN
            raise source.wrong(key, f"unknown key {key}. {hint}")
    values |= given
    name = source.text(values, "name")
    if _NAME.fullmatch(name) is None:
        raise source.wrong(
            "name",
            "the node's name must have 1 to 50 characters: letters, digits and any of . _ - (the first "
            "must be a letter, a digit or _)",
        )
    first, second = (_neighbor(source, values, key) for key in ("neighbor_1", "neighbor_2"))
    if first == second:
        raise source.wrong(
            "neighbor_2", "neighbor_2 is the same as neighbor_1, but a cluster has three different nodes"
        )
    needs_password = not (trusts(first.host) and trusts(second.host))
    return ClusterConfig(
        name,
        (first, second),
        source.text(values, "coordinator", DEFAULT_COORDINATOR),
        _password(source, values, is_needed=needs_password),
        source.text(values, "user", "cluster"),
        source.text(values, "ca", "") or None,
        source.text(values, "certificate", "") or None,
        _lease(source, values),
        source.text(values, "store", ""),
        default_store=_default_store(source, values),
    )


class _ConfigSource:
    """Where a value came from, for error texts."""

    def __init__(self, path: str, text: str, given: Mapping[str, str]) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._given = given

    def text(self, values: Mapping[str, Any], key: str, default: str | None = None) -> str:
        """A value that is text.

        Raises:
            InvalidSetting: it is not, or is missing.
        """
        value = values.get(key, default)
        if value is None:
            raise self.wrong(key, f"{key} is missing")
        if not isinstance(value, str) or not value.isprintable():
            raise self.wrong(key, f"{key} must be a non-empty string, not {value!a:.60}")
        return value

    def wrong(self, key: str, problem: str) -> InvalidSetting:
        """The error for a wrong value."""
        if key in self._given or not self._path:
            return InvalidSetting(f"cluster: {problem}")
        pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
        found = [number for number, line in enumerate(self._lines, 1) if pattern.match(line)]
        place = f"{self._path}, line {found[0]}" if found else self._path
        return InvalidSetting(f"{place}: {problem}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
        raise InvalidSetting(f"cannot read the cluster file {shorten(path)} (from --cluster): {reason}") from error


def _with_keys(text: str) -> str:
    """Three lines that are only values, as TOML; any other text as it is. Each stays on its line, for error texts."""
    lines = text.splitlines()
    filled = [number for number, line in enumerate(lines) if line.strip()]
    if len(filled) != 3 or any("=" in lines[number] for number in filled):
        return text
    for key, number in zip(("name", "neighbor_1", "neighbor_2"), filled, strict=True):
        lines[number] = f"{key} = {json.dumps(lines[number].strip().strip(_QUOTES))}"
    return "\n".join(lines)


def _parse(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"the cluster file {path} (from --cluster) is not valid TOML: {error}") from error


def _neighbor(source: _ConfigSource, values: Mapping[str, Any], key: str) -> Neighbor:
    try:
        return parse_neighbor(source.text(values, key))
    except _NotAnAddress as error:
        raise source.wrong(key, f"{key}: {error}") from error


def _password(source: _ConfigSource, values: Mapping[str, Any], *, is_needed: bool) -> str:
    if "password" in values:
        return source.text(values, "password")
    if "password_file" not in values:
        if is_needed:
            raise source.wrong(
                "password_file",
                "password_file is missing: without a password, any client that reaches this node's AMQP port could "
                "act as a neighbor. Set password_file, or start mq with --insecure",
            )
        return ""
    path = source.text(values, "password_file")
    try:
        mode, password = Path(path).stat().st_mode, Path(path).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise source.wrong("password_file", f"cannot read the password file {shorten(path)}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise source.wrong(
            "password_file",
            f"users other than the owner can modify the cluster password file. Run chmod go-w {shorten(path)}",
        )
    if mode & stat.S_IROTH:
        logger.warning("every user of this machine can read the file %s. Restrict access with chmod o-r", path)
    if not password:
        raise source.wrong("password_file", f"the password file {shorten(path)} is empty")
    return password


def _default_store(source: _ConfigSource, values: Mapping[str, Any]) -> str:
    place = source.text(values, "default_store", NODE)
    if place not in (NODE, CLUSTER):
        raise source.wrong("default_store", f"default_store must be {NODE} or {CLUSTER}, not {place!a:.60}")
    return place


def _lease(source: _ConfigSource, values: Mapping[str, Any]) -> float:
    value = values.get("lease_seconds", DEFAULT_LEASE_SECONDS)
    try:
        seconds = parse_duration(str(value))
        if not SHORTEST_LEASE_SECONDS <= seconds <= LONGEST_LEASE_SECONDS or seconds != int(seconds):
            raise ValueError
    except ValueError:
        needs = f"a whole number of seconds from {SHORTEST_LEASE_SECONDS} to {LONGEST_LEASE_SECONDS}"
        raise source.wrong("lease_seconds", f"lease_seconds must be {needs}, not {value!a:.60}") from None
    return int(seconds)
