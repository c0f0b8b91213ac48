"""What can be said to the data source: one table, checked as a whole before anything is asked of a daemon."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from mq.errors import InvalidName
from mq.message import QueueName
from mq.spark.errors import InvalidOption

READ: Final = "read"
READ_STREAM: Final = "readStream"
WRITE: Final = "write"
_READS: Final = (READ, READ_STREAM)
_ALL: Final = (READ, READ_STREAM, WRITE)

SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options, in small letters, that Spark hands on and that mean nothing here."""


@dataclass(frozen=True)
class Options:
    """What was said, checked. Seconds may have fractions.

    Attributes:
        url: the daemon's address.
        queue: the queue.
        token: for ``Authorization: Bearer``.
        user: for ``Authorization: Basic``, with `password`.
        password: of the user.
        ca_file: a PEM file of the authorities to trust.
        certificate_file: a PEM file with the client's own certificate and key.
        timeout_seconds: how long an answer may take.
        retry_seconds: how long a request is tried again while the daemon is away or full.
        num_partitions: tasks that read side by side.
        fetch_size: messages of one answer.
        include_headers: whether there are the columns ``contentType`` and ``headers``.
        consumer: the name under which a stream keeps its place in the queue.
        max_messages_per_trigger: messages of one micro-batch.
        max_bytes_per_trigger: bytes of their bodies together.
        lease_seconds: how long a batch is kept from others without a sign of life.
        take_over: whether a stream goes on from where its consumer is, whatever its checkpoint says.
        fail_on_claim_lost: whether a query fails when messages of a planned batch are gone.
        batch_size: messages of one request that publishes.
        write_id: names a write, so that it can be run again without storing anything twice.
    """

    url: str = "http://127.0.0.1:8080"
    queue: str = ""
    token: str = ""
    user: str = ""
    password: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    timeout_seconds: float = 60.0
    retry_seconds: float = 60.0
    num_partitions: int = 2
    fetch_size: int = 4000
    include_headers: bool = False
    consumer: str = ""
    max_messages_per_trigger: int = 10_000
    max_bytes_per_trigger: int | None = None
    lease_seconds: float = 900.0
    take_over: bool = False
    fail_on_claim_lost: bool = True
    batch_size: int = 1000
    write_id: str = ""


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
        value = float(text)
        if not low <= value <= high:  # not a NaN either
            raise ValueError
        return value

    return parse, f"a number of seconds from {low:g} to {high:g}"


def _parse_switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


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


_SWITCH: Final = (_parse_switch, "true or false")
_NAME: Final = (_parse_name, "1 to 100 letters, digits and . _ @ -")
_TEXT: Final = (_parse_text, "a text on one line")
_LARGEST: Final = (1 << 63) - 1

TABLE: Final[Mapping[str, _Option]] = {
    "url": _Option("url", _parse_url, "http://HOST:PORT or https://HOST:PORT, without credentials", _ALL),
    "queue": _Option("queue", *_NAME, _ALL),
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
    "consumer": _Option("consumer", *_NAME, (READ_STREAM,)),
    "max_messages_per_trigger": _Option("maxMessagesPerTrigger", *_count(1, 10_000), (READ_STREAM,)),
    "max_bytes_per_trigger": _Option("maxBytesPerTrigger", *_count(1, _LARGEST), (READ_STREAM,)),
    "lease_seconds": _Option("leaseSeconds", *_seconds(1, 43_200), (READ_STREAM,)),
    "take_over": _Option("takeOver", *_SWITCH, (READ_STREAM,)),
    "fail_on_claim_lost": _Option("failOnClaimLost", *_SWITCH, (READ_STREAM,)),
    "batch_size": _Option("batchSize", *_count(1, 1000), (WRITE,)),
    "write_id": _Option("writeId", *_TEXT, (WRITE,)),
}
"""Field of :class:`Options` -> the option."""

assert TABLE.keys() == {field.name for field in fields(Options)}


def read_options(given: Mapping[str, str], way: str | None = None) -> Options:
    """The options as they were said, in any case.

    Args:
        given: by name.
        way: what they are for; None when that is not known yet: then those of any way may be there.

    Raises:
        InvalidOption: one is unknown, missing, or not what it may be.
    """
    known = {option.name.lower(): (field, option) for field, option in TABLE.items()}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in known:
            raise InvalidOption(f'unknown option "{name}"{_hint(name)}')
        field, option = known[name.lower()]
        if way is not None and way not in option.ways:
            raise InvalidOption(f'option "{option.name}" is for {" and ".join(option.ways)}, not for {way}')
        values[field] = _value(option, str(text))
    options = Options(**values)
    if not options.queue:
        raise InvalidOption('option "queue" is missing: name the queue')
    if way == READ_STREAM and not options.consumer:
        raise InvalidOption('option "consumer" is missing: name this query, so that it finds its place again')
    if bool(options.user) != bool(options.password):
        raise InvalidOption('options "user" and "password" go together')
    if options.token and options.user:
        raise InvalidOption('give the option "token", or "user" and "password", not both')
    return options


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
