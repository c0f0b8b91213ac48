"""The values that a client takes and returns, all frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, TypedDict

from mq.quantities import DURATION_EXAMPLES, parse_duration

Duration: TypeAlias = float | str
"""A number of seconds, or text with a unit, such as ``1.5h`` or ``10m``."""


def duration(name: str, value: Duration) -> float:
    """Return the seconds of a duration.

    Args:
        name: the parameter's, for errors.
        value: a number of seconds, or text such as ``10m``.

    Raises:
        TypeError: the value is neither a number nor text.
        ValueError: the value is negative, or not a duration.
    """
    wrong = f"{name} must be a number of seconds or text such as {DURATION_EXAMPLES}, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(wrong)
    try:
        number = parse_duration(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(wrong) from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(wrong)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterEvent:
    """One time that a message died.

    Attributes:
        queue: where.
        reason: "receives", "expired", "dropped", "rejected" or "delivery_limit".
        receives: how often it had been handed out there.
        time: when, in seconds since 1970.
        error: why the work on it had failed last, as far as the worker said.
    """

    queue: str
    reason: str
    receives: int = 0
    time: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A message without its body.

    Attributes:
        queue: where it was found.
        id: its id, a UUID of version 1.
        receipt: unique to this delivery; empty when nothing was leased.
        receives: how often it has been handed out, this time included.
        lease: seconds for which this delivery held it, from when it was fetched; 0 where that is not known.
        fetched: when it came, in seconds by the client's clock.
        content_type: as published.
        content_encoding: how the body is compressed, as published, such as "gzip"; empty where it is not. The client
            leaves the body as it is.
        group: its message group; None without one.
        attributes: as published; names in small letters.
        dead_letter_history: its way here through other queues, the latest first.
        state: "ready", "leased" or "delayed" where it was only looked at, else empty.
        at: when it can be fetched again, where it is delayed or leased; None where it was not only looked at, or no
            time is set, as where an AMQP consumer holds it.
    """

    queue: str
    id: str
    receipt: str = ""
    receives: int = 0
    lease: float = 0.0
    fetched: float = field(default=0.0, compare=False)
    content_type: str = "application/octet-stream"
    content_encoding: str = ""
    group: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    dead_letter_history: tuple[DeadLetterEvent, ...] = ()
    state: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Head):
    """A message.

    Attributes:
        body: its bytes.
    """

    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some messages of a queue, in their order.

    Attributes:
        messages: what was looked at.
        next: give it back to see the next page; None after the last one.
    """

    messages: tuple[Received, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of a message that was published.

    Attributes:
        id: its id.
        is_new: False when the queue had it already, by its key or, in a unique queue, by its body.
    """

    id: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of a batch that is to be published.

    Attributes:
        body: its bytes; text goes as UTF-8.
        content_type: what its bytes are; None lets the daemon say that nothing is known of them.
        delay: how long before it can be fetched; None for the queue's own.
        ttl: how long until it expires; None for the queue's own.
        attributes: text kept with it, by name; names in small letters.
        key: its idempotency key; None for a fresh one.
        priority: from 0 to 255; higher ones are handed out first, where the queue has a max_priority. None for 0.
        at: when it can be fetched, instead of a delay; a time with its zone.
        group: its message group, for a queue that has groups.
        content_encoding: how the body is compressed, such as "gzip"; None where it is not. The client compresses
            nothing itself.
    """

    body: bytes | str
    content_type: str | None = None
    delay: Duration | None = None
    ttl: Duration | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    priority: int | None = None
    at: datetime | None = None
    group: str | None = None
    content_encoding: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes | bytearray | memoryview | str):
            raise not_a_body(self.body)


def not_a_body(value: object) -> TypeError:
    """Return the error for a value that is not the body of a message."""
    return TypeError(f"a message body must be bytes or text, not {type(value).__name__}: publish json.dumps(value)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one entry of a batch.

    Attributes:
        status: the HTTP status that it would have had alone.
        id: the message's id; empty when it was refused.
        detail: why it was refused; empty when it was not.
        is_unsure: whether it may have been done, though it was refused.
    """

    status: int
    id: str = ""
    detail: str = ""
    is_unsure: bool = False

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What a redrive did.

    Attributes:
        moved: how many messages went to another queue.
        remaining: how many are still in the queue.
    """

    moved: int
    remaining: int


class QueueSettings(TypedDict, total=False):
    """The settings of a queue; None resets one to its default. A size is a number of bytes, or text such as ``64KiB``.

    docs/http.md explains each.
    """

    visibility: Duration | None
    delay: Duration | None
    ttl: Duration | None
    max_messages: int | None
    max_bytes: int | str | None
    overflow: str | None
    max_receives: int | None
    dead_letter_queue: str | None
    unique: bool | None
    paused: bool | None
    publish_paused: bool | None
    key_window: Duration | None
    retry_delay: Duration | None
    retry_factor: float | None
    retry_jitter: float | None
    retry_max: Duration | None
    max_priority: int | None
    groups: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue: its settings, and what is in it.

    Attributes:
        name: its name.
        ready: messages that can be fetched.
        leased: messages that are held under a lease.
        delayed: messages whose time has not come.
        oldest_seconds: the age of the oldest message; None when there is none.
        settings: the settings that the daemon told, by name.
        store: where the queue lives: ``disk``, ``memory``, or in a cluster ``node`` and ``cluster``.
        consumers: how many the daemon has: over AMQP, and requests that wait for messages.
    """

    name: str
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    oldest_seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    store: str = "disk"
    consumers: int = 0
