"""The daemon's settings: one table, four sources. A flag beats the environment, which beats the file, which beats
the default. A wrong value is refused with the name of the place it came from.

A field of :class:`Settings` is a line of the table; its flag and its environment variable follow from its name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mq.errors import InvalidSetting
from mq.message import shorten

T = TypeVar("T")

LARGEST_BODY: Final = 1 << 40
LARGEST_JOURNAL: Final = 1 << 50
LONGEST_DELAY_SECONDS: Final = 43_200
"""Twelve hours: what stores take for the longest lease."""
LONGEST_VHOST: Final = 255
"""In bytes: AMQP's short strings hold no more."""

_UNITS: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE: Final = re.compile(r"(\d{1,15})\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


class Kind(NamedTuple):
    """What a value may be.

    Attributes:
        parse: from text, or from a value of a TOML file, to the value; raises ValueError for anything else.
        needs: completes "NAME must be ...".
    """

    parse: Callable[[object], Any]
    needs: str


def _whole(low: int, high: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return Kind(parse, f"a whole number from {low} to {high}")


def _seconds(low: float, high: int) -> Kind:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if not low <= number <= high:  # not a NaN either
            raise ValueError
        return number

    return Kind(parse, f"a number of seconds from {low} to {high}")


def _size(high: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        matched = _SIZE.fullmatch(str(value).strip())
        if matched is None or matched[2].lower() not in _UNITS:
            raise ValueError
        number = int(matched[1]) * _UNITS[matched[2].lower()]
        if not 1 <= number <= high:
            raise ValueError
        return number

    return Kind(parse, f"a number of bytes from 1 to {high}, or one with KiB, MiB or GiB")


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError
    return value


def _parse_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _YES + _NO:
        raise ValueError
    return value.lower() in _YES


def _one_of(*words: str) -> Kind:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return Kind(parse, "one of " + ", ".join(words))


def _parse_names(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list):
        raise ValueError
    found = tuple(_parse_text(name.strip() if isinstance(name, str) else name) for name in names)
    if any(len(name.encode()) > LONGEST_VHOST for name in found):
        raise ValueError
    return found


_TEXT: Final = Kind(_parse_text, "some text")
_NAMES: Final = Kind(_parse_names, "names with commas between, each of at most 255 bytes")
_SWITCHED: Final = Kind(_parse_switch, "true or false")


def _line(default: T, kind: Kind, help: str, shown: str | None = None) -> T:
    metadata = {"kind": kind, "help": help, "shown": str(default) if shown is None else shown}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


@dataclasses.dataclass(frozen=True)
class Settings:
    """The table, and a set of values that fit it."""

    address: str = _line("127.0.0.1", _TEXT, "address or host name to listen on; 0.0.0.0 is the whole network")
    port: int = _line(8080, _whole(0, 65_535), "port to listen on; 0 takes a free one")
    reuse_port: bool = _line(False, _SWITCHED, "share the port with other daemons (--peers) that say so, too", "")
    amqp_port: int = _line(5672, _whole(0, 65_535), "port for AMQP 0-9-1 on the same address; 0 is off")
    amqp_vhosts: tuple[str, ...] = _line((), _NAMES, "names of AMQP's vhosts beside /, with commas between", "none")
    workers: int = _line(8, _whole(1, 1024), "pairs of one fetch and one save worker")
    peers: int = _line(0, _whole(0, 1024), "other brokers that work on the same root")
    root: str = _line("/tmp/mq", _TEXT, "folder that holds the queues")
    delay: float = _line(30.0, _seconds(0.001, LONGEST_DELAY_SECONDS), "length of a lease in seconds", "30")
    max_body: int = _line(64 << 20, _size(LARGEST_BODY), "longest body of a message", "64MiB")
    storage: str = _line("", _TEXT, "another store than the root: NAME:PLACE", "posix:ROOT")
    no_mover: bool = _line(False, _SWITCHED, "leave delivery and requeueing to a separate mq-mover", "")
    no_reaper: bool = _line(False, _SWITCHED, "leave reaping to a separate mq-reaper", "")
    no_fast_lane: bool = _line(False, _SWITCHED, "serve plain HTTP/1.1 requests by Hypercorn, too, as all others", "")
    no_native: bool = _line(False, _SWITCHED, "call the kernel file by file, though mq-native is installed", "")
    users: str = _line("", _TEXT, "file of users and their rights: with it, nobody else is let in", "none")
    tls_cert: str = _line("", _TEXT, "certificate to show, and those above it, as PEM: with it, TLS is spoken", "none")
    tls_key: str = _line("", _TEXT, "private key of the certificate, as PEM", "none")
    tls_client_ca: str = _line("", _TEXT, "authorities, as PEM: each client must show a certificate of theirs", "none")
    journal: str = _line("", _TEXT, "folder in which to write down every transition of every message", "none")
    journal_bytes: int = _line(1 << 30, _size(LARGEST_JOURNAL), "how much of the journal to keep", "1GiB")
    journal_age: float = _line(604_800.0, _seconds(1, 10**9), "how many seconds of it to keep", "604800")
    cluster: str = _line(
        "", _TEXT, "file of the cluster that this daemon is a node of: its name, its neighbors", "none"
    )
    node: str = _line("", _TEXT, "the name of this node, as the cluster's file has it", "as in the file")
    neighbors: tuple[str, ...] = _line((), _NAMES, "the two other nodes: ADDRESS:PORT,ADDRESS:PORT", "as in the file")
    coordinator: str = _line("", _TEXT, "who keeps the cluster, such as etcd:http://127.0.0.1:2379", "as in the file")
    cluster_password_file: str = _line("", _TEXT, "file with the password of the cluster", "as in the file")
    insecure: bool = _line(False, _SWITCHED, "let the network in without TLS or without users all the same", "")
    log_level: str = _line("info", _one_of("debug", "info", "warning", "error"), "least weight of a log line")

    @property
    def store(self) -> str:
        """The store's address: `storage`, or the root as plain files."""
        return self.storage or f"posix:{self.root}"

    @property
    def served_store(self) -> str:
        """The store's address, as it is served. With AMQP, what need not last is in memory, over it; not where other
        processes work on the store, too, which have no memory of ours."""
        is_alone = not (self.peers or self.no_mover or self.no_reaper)
        if self.amqp_port and is_alone and not self.store.startswith("layered:"):
            return f"layered:{self.store}"
        return self.store


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        name: of the field, and of the key in a file.
        kind: what its value may be.
        help: one line for people.
        shown: the default, as people should see it.
        is_switch: its flag takes no value.
    """

    name: str
    kind: Kind
    help: str
    shown: str
    is_switch: bool

    @property
    def flag(self) -> str:
        """How it is called on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """How it is called in the environment."""
        return "MQ_" + self.name.upper()


def _lines() -> Iterator[Line]:
    for field in dataclasses.fields(Settings):
        yield Line(name=field.name, is_switch=isinstance(field.default, bool), **field.metadata)


LINES: Final = tuple(_lines())
"""The table, line by line."""

CONFIG_FLAG: Final = "--config"
CONFIG_VARIABLE: Final = "MQ_CONFIG"


def load_settings(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """The settings in force.

    Args:
        flags: what the command line gave, by field name, and "config" for the file; None is "not given".
        environment: variables by name.

    Raises:
        InvalidSetting: a value is wrong, a key of the file is unknown, or the file cannot be read.
    """
    file, path = _read_file(flags, environment)
    values: dict[str, Any] = {}
    for line in LINES:
        flag = flags.get(line.name)
        if flag is not None:
            values[line.name] = _checked(line, flag, line.flag)
        elif line.variable in environment:
            values[line.name] = _checked(line, environment[line.variable], line.variable)
        elif line.name in file:
            values[line.name] = _checked(line, file[line.name], path)
    return Settings(**values)


def _checked(line: Line, value: object, source: str) -> Any:
    try:
        return line.kind.parse(value)
    except (ValueError, OverflowError):
        raise InvalidSetting(f"{line.name} must be {line.kind.needs}, got {value!a:.60} (from {source})") from None


def _read_file(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> tuple[Mapping[str, object], str]:
    path, source = flags.get("config"), CONFIG_FLAG
    if path is None:
        path, source = environment.get(CONFIG_VARIABLE), CONFIG_VARIABLE
    if path is None:
        return {}, ""
    try:
        file = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidSetting(f"cannot read {shorten(path)} (from {source}): {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or deeper than anybody means it
        raise InvalidSetting(f"{shorten(path)} (from {source}) is not a TOML file: {error}") from error
    _check_keys(file, path)
    return file, path


def _check_keys(file: Mapping[str, object], path: str) -> None:
    known = [line.name for line in LINES]
    for key in file:
        if key not in known:
            near = difflib.get_close_matches(key.replace("-", "_").lower(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(known)
            raise InvalidSetting(f"unknown setting {shorten(key)} (from {path}): {hint}")
