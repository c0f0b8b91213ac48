"""The daemon's settings: one table, four sources. A flag beats the environment, the environment the file, the file the
default. A wrong value is refused with the name of the place it came from.

A field of :class:`Settings` is a line of the table; its flag and its environment variable follow from its name.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from mq.errors import InvalidSetting
from mq.log_lines import FORMATS, LEVELS
from mq.message import shorten
from mq.quantities import DURATION_EXAMPLES, SIZE_EXAMPLES, parse_duration, parse_size, show_duration, show_size

try:
    _users: ModuleType | None = importlib.import_module("pwd")
except ImportError:  # Windows: the command line runs there, and nothing serves
    _users = None

T = TypeVar("T")

LARGEST_BODY: Final = 1 << 40
LARGEST_JOURNAL: Final = 1 << 50
LARGEST_STAGING: Final = 1 << 50
LONGEST_DELAY_SECONDS: Final = 43_200
"""Twelve hours: what stores take for the longest lease."""
AMQP_PORT: Final = 5672
LONGEST_VHOST: Final = 255
"""In bytes: AMQP's short strings hold no more."""

_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]{1,100}){1,10}", re.ASCII)
_MODE: Final = re.compile(r"0?[0-7]{3}", re.ASCII)
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


class UnixSocket(NamedTuple):
    """The path of a Unix socket, empty for none, and its file mode."""

    path: str = ""
    mode: int = 0o600


class JournalKeep(NamedTuple):
    """How much of a journal is kept: bytes, and seconds."""

    bytes: int = 1 << 30
    seconds: float = 604_800.0


class SchedulesPerUser(NamedTuple):
    """How many schedules a user may have, and how many messages a second they publish together; 0 for no limit."""

    number: int = 100
    rate: float = 10.0


class ValueKind(NamedTuple):
    """What a value may be.

    Attributes:
        parse: from text, or from a value of a TOML file, to the value; raises ValueError for anything else.
    """

    parse: Callable[[object], Any]
    needs: str
    metavar: str


def _whole(low: int, high: int) -> ValueKind:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return ValueKind(parse, f"a whole number from {low} to {high}", "NUMBER")


def _seconds(low: float, high: int) -> ValueKind:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
        if not low <= seconds <= high:  # not a NaN either
            raise ValueError
        return seconds

    bounds = f"from {show_duration(low)} to {show_duration(high)}"
    return ValueKind(parse, f"a duration {bounds}, such as {DURATION_EXAMPLES}", "DURATION")


def _size(high: int) -> ValueKind:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = parse_size(str(value))
        if not 1 <= number <= high:
            raise ValueError
        return number

    return ValueKind(parse, f"a size from {show_size(1)} to {show_size(high)}, such as {SIZE_EXAMPLES}", "SIZE")


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


def _parse_user(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    try:
        number = int(value)
    except ValueError:
        try:
            if _users is None:
                raise
            return int(_users.getpwnam(str(value)).pw_uid)
        except KeyError:
            raise ValueError from None
    if number < 0:
        raise ValueError
    return number


def _parse_socket(value: object) -> UnixSocket:
    path, given, mode = _parse_text(value).partition(",mode=")
    if not path or (given and _MODE.fullmatch(mode) is None):
        raise ValueError
    return UnixSocket(path, int(mode, 8)) if given else UnixSocket(path)


def _parse_keep(value: object) -> JournalKeep:
    keep = JournalKeep()
    for part in map(str.strip, _parse_text(value).split(",")):
        if part.isdecimal():  # bytes or seconds?
            raise ValueError
        try:
            keep = keep._replace(bytes=parse_size(part))
        except ValueError:
            keep = keep._replace(seconds=parse_duration(part))
    if not (1 <= keep.bytes <= LARGEST_JOURNAL and 1 <= keep.seconds <= 10**9):
        raise ValueError
    return keep


def _parse_schedules(value: object) -> SchedulesPerUser:
    number, given, rate = _parse_text(str(value) if type(value) is int else value).partition(",")
    limits = SchedulesPerUser(int(number))
    if given:
        limits = limits._replace(rate=float(rate.strip().removesuffix("/s")))
    if not (0 <= limits.number <= 10_000 and 0 <= limits.rate <= 10_000):  # not a NaN either
        raise ValueError
    return limits


def _one_of(*words: str) -> ValueKind:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return ValueKind(parse, "one of " + ", ".join(words), "|".join(words))


def _parse_names(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list):
        raise ValueError
    found = tuple(_parse_text(name.strip() if isinstance(name, str) else name) for name in names)
    if any(len(name.encode()) > LONGEST_VHOST for name in found):
        raise ValueError
    return found


def _parse_path(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    path = value.rstrip("/")
    path = f"/{path}" if path and not path.startswith("/") else path
    if path and (_PATH.fullmatch(path) is None or {".", "..", "-"} & set(path.split("/"))):
        raise ValueError
    return path


def _parse_networks(value: object) -> tuple[str, ...]:
    networks = _parse_names(value)
    for each in networks:
        if each != "unix":
            ipaddress.ip_network(each, strict=False)
    return networks


_BASE_PATH: Final = ValueKind(_parse_path, "a path of letters, digits and . _ ~ - (such as /mq)", "PATH")
_NETWORKS: Final = ValueKind(
    _parse_networks, "a comma-separated list of addresses or networks (such as 10.0.0.0/8) or unix", "NETWORKS"
)
_TEXT: Final = ValueKind(_parse_text, "text without spaces or control characters", "TEXT")
_FILE: Final = _TEXT._replace(metavar="FILE")
_FOLDER: Final = _TEXT._replace(metavar="FOLDER")
_ADDRESS: Final = _TEXT._replace(metavar="ADDRESS")
_NAME: Final = _TEXT._replace(metavar="NAME")
_NAMES: Final = ValueKind(_parse_names, "a comma-separated list of names of at most 255 bytes each", "NAMES")
_ADDRESSES: Final = _NAMES._replace(metavar="HOST:PORT,...")
_USER: Final = ValueKind(_parse_user, "the name or number of a user on this machine", "USER")
_SOCKET: Final = ValueKind(
    _parse_socket, "a path, optionally with an octal file mode, such as /run/mq/http,mode=0660", "FILE[,mode=MODE]"
)
_KEEP: Final = ValueKind(_parse_keep, "a size, a duration, or both, such as 10GiB,30d", "SIZE,DURATION")
_SCHEDULES: Final = ValueKind(
    _parse_schedules, "a number, optionally with a rate, each from 0 to 10000, such as 100,10/s", "NUMBER[,RATE/s]"
)
_SWITCHED: Final = ValueKind(_parse_switch, "true or false", "")


def _line(default: T, kind: ValueKind, help: str, shown: str | None = None) -> T:
    metadata = {"kind": kind, "help": help, "shown": str(default) if shown is None else shown}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


@dataclasses.dataclass(frozen=True)
class Settings:
    """The table, and a set of values that fit it."""

    address: str = _line("127.0.0.1", _ADDRESS, "address or host name to listen on; 0.0.0.0 listens on all interfaces")
    port: int = _line(8080, _whole(0, 65_535), "HTTP port; 0 chooses a free port")
    hosts: tuple[str, ...] = _line(
        (),
        _NAMES,
        "comma-separated list of host names that clients may use in URLs, in addition to localhost and the daemon's "
        "own address; * allows any host name",
        "none",
    )
    base_path: str = _line("", _BASE_PATH, "URL path under which a reverse proxy serves mq, such as /mq", "none")
    trusted_proxies: tuple[str, ...] = _line(
        (),
        _NETWORKS,
        "comma-separated list of networks from which reverse proxies may set Forwarded and X-Forwarded-* headers; add "
        '"unix" to trust these headers on connections to the Unix socket',
        "none",
    )
    reuse_port: bool = _line(
        False,
        _SWITCHED,
        "share the ports with the other daemons that serve this root folder (SO_REUSEPORT); all of these "
        "daemons need this option",
        "",
    )
    keep_alive: float = _line(
        75.0, _seconds(1, 120), "how long an idle HTTP connection stays open between requests", "75s"
    )
    socket: UnixSocket = _line(  # noqa: RUF009 - immutable
        UnixSocket(),
        _SOCKET,
        "Unix socket for local HTTP clients, and its file mode (default 0600); only users with write "
        "permission on the socket can connect",
        "none",
    )
    amqp_port: int | None = _line(
        None,
        _whole(0, 65_535),
        "AMQP 0-9-1 port, on the same address as HTTP; 0 disables AMQP",
        f"{AMQP_PORT}, if it is free",
    )
    amqp_channel_max: int = _line(2047, _whole(1, 65_535), "maximum number of channels per AMQP connection")
    sqs_port: int = _line(
        0,
        _whole(0, 65_535),
        "additional port, on the same address as HTTP, that serves only the Amazon SQS API; 0 means no additional port",
    )
    amqp_vhosts: tuple[str, ...] = _line(
        (), _NAMES, "comma-separated list of AMQP virtual hosts in addition to /", "none"
    )
    workers: int = _line(
        8,
        _whole(1, 1024),
        "number of worker pairs; in each pair, one worker stores messages and the other delivers them",
    )
    standby: bool = _line(
        False,
        _SWITCHED,
        "share the root folder with other --standby daemons: only one daemon is active at a time; when the active "
        "daemon stops, another takes over",
        "",
    )
    peers: int = _line(0, _whole(0, 1024), "number of other daemons that serve the same root folder at the same time")
    root: str = _line("/tmp/mq", _FOLDER, "root folder, in which queues and messages are stored")
    group_writable: bool = _line(
        False,
        _SWITCHED,
        "allow the members of the root folder's group to write to the root folder and its subfolders",
        "",
    )
    root_owner: int | None = _line(
        None,
        _USER,
        "additional user who may own the root folder and its subfolders; without this option, only the superuser and "
        "the user who runs mq may own them",
        "none",
    )
    visibility: float = _line(
        30.0,
        _seconds(0.001, LONGEST_DELAY_SECONDS),
        "default visibility timeout: if a consumer does not acknowledge a message within this time, the message is "
        "delivered again",
        "30s",
    )
    max_body: int = _line(64 << 20, _size(LARGEST_BODY), "maximum size of a message body", "64MiB")
    memory: int = _line(
        256 << 20,
        _size(LARGEST_BODY),
        "maximum memory for requests and responses in progress, across all clients",
        "256MiB",
    )
    staging: int = _line(
        1 << 30,
        _size(LARGEST_STAGING),
        "maximum disk space, across all clients, for large message bodies that are being uploaded over HTTP and "
        "for uncommitted batch writes, such as Spark writes",
        "1GiB",
    )
    storage: str = _line(
        "", _ADDRESS, "storage backend and its address, such as posix:/var/lib/mq; used instead of --root", "posix:ROOT"
    )
    no_mover: bool = _line(
        False,
        _SWITCHED,
        "do not move published messages into their queues; you must run the separate program mq-mover to move them",
        "",
    )
    no_reaper: bool = _line(
        False,
        _SWITCHED,
        "do not delete the files of removed messages; you must run the separate program mq-reaper to delete them",
        "",
    )
    verify_every: float = _line(
        604_800.0,
        _seconds(0, 10**9),
        "interval at which the checksums of all stored messages are verified in the background; 0 disables the check",
        "7d",
    )
    untested_fs: bool = _line(
        False,
        _SWITCHED,
        "allow a root folder on a file system on which mq has not been tested, such as ZFS or NFS 3",
        "",
    )
    strict: bool = _line(
        False,
        _SWITCHED,
        "follow the original MQ specification (SoftLayer, 2013) exactly: serve only its six HTTP operations, "
        "disable AMQP unless --amqp-port is set, and change a message's state only by moving its file between the "
        "folders that the specification defines",
        "",
    )
    users: str = _line(
        "",
        _FILE,
        "file that lists the users with their secrets and rights; with this option, clients must authenticate",
        "none",
    )
    tls_cert: str = _line("", _FILE, "PEM file with the server certificate and its chain; enables TLS", "none")
    tls_key: str = _line("", _FILE, "PEM file with the certificate's private key", "none")
    tls_client_ca: str = _line(
        "",
        _FILE,
        "PEM file with CA certificates; every client must present a certificate signed by one of them",
        "none",
    )
    tls_crl: str = _line("", _FILE, "PEM file with certificate revocation lists (CRLs), one for each client CA", "none")
    audit: str = _line(
        "",
        _FILE,
        "file for the audit log, which records each login and each change to a queue together with the user's name",
        "the main log",
    )
    connections_per_address: int = _line(
        1024,
        _whole(0, 1_000_000),
        "maximum number of connections per client address; connections from this machine are not limited. 0 means no "
        "limit",
    )
    schedules_per_user: SchedulesPerUser = _line(  # noqa: RUF009 - immutable
        SchedulesPerUser(),
        _SCHEDULES,
        "maximum number of schedules per user, and the maximum rate at which all of a user's schedules "
        "together may publish, in messages per second; 0 means no limit",
        "100,10/s",
    )
    journal: str = _line(
        "",
        _FOLDER,
        "folder for the journal, which records every change of a message's state for later analysis",
        "none",
    )
    journal_keep: JournalKeep = _line(  # noqa: RUF009 - immutable
        JournalKeep(),
        _KEEP,
        "maximum size and age of the journal; when either limit is exceeded, the oldest files are deleted",
        "1GiB,7d",
    )
    cluster: str = _line(
        "", _FILE, "cluster configuration file; with this option, the daemon runs as a node of this cluster", "none"
    )
    node: str = _line(
        "", _NAME, "name of this cluster node; overrides the name in the cluster file", "from the cluster file"
    )
    neighbors: tuple[str, ...] = _line(
        (),
        _ADDRESSES,
        "comma-separated list of the AMQP addresses of the other two nodes of the three-node cluster; the address of "
        "this node may be included. Overrides the addresses in the cluster file",
        "from the cluster file",
    )
    coordinator: str = _line(
        "",
        _ADDRESS,
        "address of the service that stores the cluster's state, such as etcd:http://127.0.0.1:2379; "
        "overrides the address in the cluster file",
        "from the cluster file",
    )
    cluster_password_file: str = _line(
        "",
        _FILE,
        "file that contains the cluster password; overrides the file named in the cluster file",
        "from the cluster file",
    )
    default_store: str = _line(
        "",
        _one_of("node", "cluster"),
        "where a new queue is stored if the client does not choose: on this node only (node) or on all nodes "
        "(cluster); overrides the setting in the cluster file",
        "from the cluster file",
    )
    insecure: bool = _line(
        False, _SWITCHED, "allow network connections even if TLS or authentication is not configured", ""
    )
    log_level: str = _line("info", _one_of(*LEVELS), "minimum level of the log entries to write")
    log_format: str = _line("text", _one_of(*FORMATS), "log format: text, or json for one JSON object per line")
    log_requests: bool = _line(False, _SWITCHED, "log a line for every HTTP request", "")

    @property
    def serves_amqp(self) -> bool:
        """True if AMQP is served. With --strict it is served only if a port is given."""
        return self.amqp_port != 0 and not (self.strict and self.amqp_port is None)

    @property
    def store(self) -> str:
        """The store's address: `storage`, or the root as plain files."""
        return self.storage or f"posix:{self.root}"

    @property
    def folder(self) -> str:
        """The folder that the store is in; empty where it is in none."""
        name, _, folder = self.store.partition(":")
        return folder if name in ("posix", "tmpfs") else ""

    @property
    def served_store(self) -> str:
        """The store's address, as it is served."""
        # With AMQP, what need not last is in memory, above the store. Other processes that work on the store could not
        # see it there; and with --strict each message has to be a file.
        is_alone = not (self.peers or self.no_mover or self.no_reaper or self.strict)
        if self.serves_amqp and is_alone and not self.store.startswith("layered:"):
            return f"layered:{self.store}"
        return self.store


class SettingLine(NamedTuple):
    """One line of the table.

    Attributes:
        shown: the default, as people should see it.
        is_switch: its flag takes no value.
    """

    name: str
    kind: ValueKind
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


def _lines() -> Iterator[SettingLine]:
    for field in dataclasses.fields(Settings):
        yield SettingLine(name=field.name, is_switch=isinstance(field.default, bool), **field.metadata)


LINES: Final = tuple(_lines())
"""The table, line by line."""

CONFIG_FLAG: Final = "--config"
CONFIG_VARIABLE: Final = "MQ_CONFIG"


class Experiments(NamedTuple):
    """Parts of the daemon that are off, for tests and benchmarks alone. Each is a variable of the environment, which is
    set to 1; docs/dev/architecture.md has them.

    Attributes:
        fast_path: plain HTTP/1.1 requests are served by the fast path, and not all by Hypercorn.
        log: on ext4 and xfs changes are made durable by a log, and not file by file.
        native: mq-native makes the system calls where it is installed.
    """

    fast_path: bool = True
    log: bool = True
    native: bool = True

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Experiments:
        """Those that an environment asks for."""
        return cls(*(environment.get(variable, "").lower() not in _YES for variable in EXPERIMENTS))


EXPERIMENTS: Final = ("MQ_NO_FAST_PATH", "MQ_NO_LOG", "MQ_NO_NATIVE")
"""The variables, in the order of the fields of :class:`Experiments`."""

OTHER_VARIABLES: Final = (
    CONFIG_VARIABLE,
    *EXPERIMENTS,
    *(f"MQ_{name}" for name in ("URL", "TOKEN", "CREDENTIALS", "CA", "CERTIFICATE", "PATIENCE")),  # of the verbs
    *(
        f"MQ_{name}" for name in ("QUEUE", "MESSAGE_ID", "RECEIVES", "CONTENT_TYPE", "CONTENT_ENCODING")
    ),  # for what ``--exec`` runs
)
"""Variables of mq that are no settings of the daemon."""
_NEAR: Final = 0.8
"""MQ_PROT is as near to MQ_PORT as 0.86; variables of other programs (MQ_SERVICE_HOST) are farther from all of ours."""


def near_misses(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like misspelt ones of mq's, each with the probable name.

    They are told, not refused: other programs have variables that begin so, too.
    """
    known = [line.variable for line in LINES] + list(OTHER_VARIABLES)
    found = {}
    for name in environment:
        if name.upper().startswith("MQ") and name not in known and not name.startswith("MQ_ATTRIBUTE_"):
            near = nearest(name.upper(), known, _NEAR)
            if near:
                found[name] = near
    return found


def nearest(name: str, known: Sequence[str], cutoff: float) -> str:
    """The one that was probably meant, or "". Two letters that changed places are likelier than others instead."""
    near = difflib.get_close_matches(name, known, cutoff=cutoff)
    same = (other for other in near if sorted(other) == sorted(name))
    return next(same, near[0] if near else "")


def load_settings(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """The settings in force.

    Args:
        flags: what the command line gave, by field name, and "config" for the file; None is "not given".

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


def _checked(line: SettingLine, value: object, source: str) -> Any:
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
        raise InvalidSetting(
            f"cannot read the settings file {shorten(path)} (from {source}): {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise InvalidSetting(f"the settings file {shorten(path)} (from {source}) is not valid TOML: {error}") from error
    _check_keys(file, path)
    return file, path


def _check_keys(file: Mapping[str, object], path: str) -> None:
    known = [line.name for line in LINES]
    for key in file:
        if key not in known:
            near = nearest(key.replace("-", "_").lower(), known, 0.6)
            hint = f"did you mean {near}?" if near else "known: " + ", ".join(known)
            raise InvalidSetting(f"unknown setting {shorten(key)} (from {path}): {hint}")
