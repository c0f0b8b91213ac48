"""Options of the data source: one table, checked as a whole before the first request to a daemon."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from mq.errors import InvalidName
from mq.message import QueueName
from mq.quantities import DURATION_EXAMPLES, parse_duration, parse_size, show_duration
from mq.spark.errors import InvalidOption

READ: Final = "read"
READ_STREAM: Final = "readStream"
WRITE: Final = "write"
_READS: Final = (READ, READ_STREAM)
_ALL: Final = (READ, READ_STREAM, WRITE)

SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options, in small letters, that Spark passes to each source; this one ignores them."""
_OF_A_TABLE: Final = "provider"
"""The option that only ``CREATE TABLE`` passes."""


@dataclass(frozen=True)
class Options:
    """The options of a query, checked. Seconds may have fractions.

    Attributes:
        queue: the queue, or several, separated by commas; empty where a pattern or a column names them.
        queue_pattern: a regular expression for the names of the queues that are read.
        token: for ``Authorization: Bearer``.
        user: for ``Authorization: Basic``, with `password`.
        ca_file: a PEM file of the authorities to trust.
        certificate_file: a PEM file with the client's own certificate and key.
        retry_seconds: how long a request is tried again while the daemon is away or full.
        include_headers: whether there are the columns ``contentType`` and ``headers``.
        snapshot: whether a table shows what there was when it was planned, instead of what there is at each action.
        starting_time: only messages published then or later; in microseconds since 1970.
        ending_time: only messages published before; in microseconds since 1970.
        consumer: the name under which a stream keeps its place in the queue.
        max_bytes_per_trigger: bytes of their bodies together.
        lease_seconds: how long a batch is kept from others when its lease is not renewed.
        take_over: whether a stream goes on from where its consumer is, whatever its checkpoint says.
        fail_on_claim_lost: whether a query fails when messages of a planned batch are gone.
        write_id: names a write, so that it can be run again without storing anything twice.
        is_staged: whether rows are held back until all of them are written.
    """

    url: str = "http://127.0.0.1:8080"
    queue: str = ""
    queue_pattern: str = ""
    token: str = ""
    user: str = ""
    password: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    timeout_seconds: float = 60.0
    retry_seconds: float = 600.0
    num_partitions: int = 2
    fetch_size: int = 4000
    include_headers: bool = False
    snapshot: bool = False
    starting_time: int | None = None
    ending_time: int | None = None
    consumer: str = ""
    max_messages_per_trigger: int = 10_000
    max_bytes_per_trigger: int | None = None
    lease_seconds: float = 900.0
    take_over: bool = False
    fail_on_claim_lost: bool = True
    batch_size: int = 1000
    write_id: str = ""
    is_staged: bool = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that are named."""
        return tuple(self.queue.split(",")) if self.queue else ()

    @property
    def asked_for(self) -> str:
        """Which queues these options are about, for people."""
        return self.queue or self.queue_pattern or "of each row"

    def only(self, queue: str) -> Options:
        """The same, for one queue."""
        return replace(self, queue=queue, queue_pattern="")


class _Option(NamedTuple):
    name: str
    parse: Callable[[str], Any]
    needs: str
    ways: tuple[str, ...]


def _count(low: int, high: int) -> tuple[Callable[[str], int], str]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse, f"a whole number from {low} to {high}"


def _seconds(low: float, high: float) -> tuple[Callable[[str], float], str]:
    def parse(text: str) -> float:
        value = parse_duration(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse, f"a duration from {show_duration(low)} to {show_duration(high)}, such as {DURATION_EXAMPLES}"


def _parse_size(text: str) -> int:
    size = parse_size(text)
    if not 1 <= size <= _LARGEST:
        raise ValueError
    return size


def _parse_switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _parse_commit_mode(text: str) -> bool:
    if text.lower() not in ("direct", "staged"):
        raise ValueError
    return text.lower() == "staged"


def _parse_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError
    return text.rstrip("/")


def _parse_name(text: str) -> str:
    try:
        return QueueName(text)
    except InvalidName as error:
        raise ValueError from error


def _parse_text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError
    return text


def _parse_names(text: str) -> str:
    names = [_parse_name(name.strip()) for name in text.split(",")]
    if len(set(names)) < len(names):
        raise ValueError
    return ",".join(names)


def _parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError from error
    return _parse_text(text)


def _parse_time(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


_SWITCH: Final = (_parse_switch, "true or false")
_NAME: Final = (_parse_name, "1 to 100 characters: letters, digits and any of . _ @ -")
_NAMES: Final = (
    _parse_names,
    "one or more comma-separated queue names (1 to 100 letters, digits and any of . _ @ - each), without duplicates",
)
_PATTERN: Final = (_parse_pattern, "a regular expression")
_TIME: Final = (_parse_time, "a time such as 2026-11-24T08:00:00Z (UTC if the time zone is omitted)")
_TEXT: Final = (_parse_text, "one line of text")
_SIZE: Final = (_parse_size, "a size of at least one byte, such as 65536, 64KiB or 10MB")
_LARGEST: Final = (1 << 63) - 1

TABLE: Final[Mapping[str, _Option]] = {
    "url": _Option("url", _parse_url, "http://HOST:PORT or https://HOST:PORT, without credentials", _ALL),
    "queue": _Option("queue", *_NAMES, _ALL),
    "queue_pattern": _Option("queuePattern", *_PATTERN, _READS),
    "token": _Option("token", *_TEXT, _ALL),
    "user": _Option("user", *_TEXT, _ALL),
    "password": _Option("password", *_TEXT, _ALL),
    "ca_file": _Option("caFile", *_TEXT, _ALL),
    "certificate_file": _Option("certificateFile", *_TEXT, _ALL),
    "timeout_seconds": _Option("timeoutSeconds", *_seconds(0.1, 3600), _ALL),
    "retry_seconds": _Option("retrySeconds", *_seconds(0, 86_400), _ALL),
    "num_partitions": _Option("numPartitions", *_count(1, 10_000), _READS),
    "fetch_size": _Option("fetchSize", *_count(1, 10_000), _READS),
    "include_headers": _Option("includeHeaders", *_SWITCH, _READS),
    "snapshot": _Option("snapshot", *_SWITCH, (READ,)),
    "starting_time": _Option("startingTime", *_TIME, (READ,)),
    "ending_time": _Option("endingTime", *_TIME, (READ,)),
    "consumer": _Option("consumer", *_NAME, (READ_STREAM,)),
    "max_messages_per_trigger": _Option("maxMessagesPerTrigger", *_count(1, 100_000), (READ_STREAM,)),
    "max_bytes_per_trigger": _Option("maxBytesPerTrigger", *_SIZE, (READ_STREAM,)),
    "lease_seconds": _Option("leaseSeconds", *_seconds(1, 43_200), (READ_STREAM,)),
    "take_over": _Option("takeOver", *_SWITCH, (READ_STREAM,)),
    "fail_on_claim_lost": _Option("failOnClaimLost", *_SWITCH, (READ_STREAM,)),
    "batch_size": _Option("batchSize", *_count(1, 1000), (WRITE,)),
    "write_id": _Option("writeId", *_TEXT, (WRITE,)),
    "is_staged": _Option("commitMode", _parse_commit_mode, "direct or staged", (WRITE,)),
}
"""Field of :class:`Options` -> the option."""

assert TABLE.keys() == {field.name for field in fields(Options)}


def read_options(given: Mapping[str, str], way: str | None = None) -> Options:
    """Parse the options of a query.

    Args:
        given: the texts by name; upper and lower case are the same.
        way: READ, READ_STREAM or WRITE; None before that is known, and then options of any way are taken.

    Raises:
        InvalidOption: an option is unknown, missing, or has no valid value.
    """
    known = {option.name.lower(): (field, option) for field, option in TABLE.items()}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() == _OF_A_TABLE:
            raise InvalidOption(
                "CREATE TABLE ... USING mq: Spark keeps such a table without its options when the source is written in "
                "Python. Say CREATE TEMPORARY VIEW name USING mq OPTIONS (queue 'name'), which does what you want"
            )
        if name.lower() not in known:
            raise InvalidOption(f'unknown option "{name}"{_hint(name)}')
        field, option = known[name.lower()]
        if way is not None and way not in option.ways:
            raise InvalidOption(
                f'option "{option.name}" is only supported for {" and ".join(option.ways)}, not for {way}'
            )
        values[field] = _value(option, str(text))
    options = Options(**values)
    _check_queues(options, way)
    if way == READ_STREAM and not options.consumer:
        raise InvalidOption(
            'option "consumer" is missing. Set it to a name for this query, so that the query can resume'
        )
    if bool(options.user) != bool(options.password):
        raise InvalidOption('the options "user" and "password" must be set together')
    begin, end = options.starting_time, options.ending_time
    if begin is not None and end is not None and begin >= end:
        raise InvalidOption('option "endingTime" must be later than "startingTime"')
    if options.token and options.user:
        raise InvalidOption('the option "token" cannot be combined with "user" and "password". Use one or the other')
    return options


def _check_queues(options: Options, way: str | None) -> None:
    if options.queue and options.queue_pattern:
        raise InvalidOption('the options "queue" and "queuePattern" cannot be combined. Use one of them')
    if way in _READS and not options.queue and not options.queue_pattern:
        raise InvalidOption('option "queue" is missing: set it, or set "queuePattern"')
    if way == WRITE and len(options.queues) > 1:
        raise InvalidOption(
            'for a write, the option "queue" must be the name of a single queue. To write to several queues, omit '
            'this option and add a column "queue"'
        )


def _value(option: _Option, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError:
        shown = "" if option.name in ("token", "password") else f", got {text!a:.60}"
        raise InvalidOption(f'option "{option.name}" must be {option.needs}{shown}') from None


def _hint(name: str) -> str:
    names = {option.name.lower(): option.name for option in TABLE.values()}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return f': did you mean "{names[near[0]]}"?' if near else f"; known: {', '.join(names.values())}"
