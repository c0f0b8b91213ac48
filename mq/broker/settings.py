"""A queue's settings: one table gives their defaults, ranges, JSON names and errors."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from random import Random
from typing import Any, Final, NamedTuple

from mq.broker.config import LONGEST_LEASE_SECONDS
from mq.errors import InvalidName, InvalidSetting
from mq.message import QUEUE_NAME_PATTERN, QueueName, shorten
from mq.quantities import DURATION_EXAMPLES, SIZE_EXAMPLES, parse_duration, parse_size, show_duration, show_size

SHORTEST_SECONDS: Final = 0.001
LONGEST_TTL_SECONDS: Final = 315_576_000.0
"""Ten years."""
LONGEST_DELAY_SECONDS: Final = LONGEST_TTL_SECONDS
LONGEST_KEY_WINDOW_SECONDS: Final = 2_592_000.0
"""Thirty days."""
_MOST_DOUBLINGS: Final = 100
"""After so many failures a wait grows no more; it is the longest one by then, and the power stays a number."""
REJECT: Final = "reject"
DROP_HEAD: Final = "drop-head"


class SettingKind(NamedTuple):
    """The values that a setting may have.

    Attributes:
        parse: turns a JSON value into the value; raises ValueError or TypeError for one that is not allowed.
    """

    parse: Callable[[Any], Any]
    needs: str
    schema: Mapping[str, Any]


def seconds(low: float, high: float) -> SettingKind:
    """The kind of a duration from `low` to `high` seconds: a number of seconds, or text such as ``10m``."""
    plain = number(low, high)

    def parse(value: Any) -> float:
        return plain.parse(parse_duration(value) if isinstance(value, str) else value)  # type: ignore[no-any-return]

    needs = f"a duration from {show_duration(low)} to {show_duration(high)}, such as {DURATION_EXAMPLES}"
    return SettingKind(parse, needs, plain.schema)  # a schema cannot say from when to when a text with a unit may be


def number(low: float, high: float) -> SettingKind:
    """The kind of a number from `low` to `high`."""

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        if not low <= value <= high:  # refuses a NaN, too
            raise ValueError
        return float(value)

    return SettingKind(parse, f"a number from {low:g} to {high:g}", {"type": "number", "minimum": low, "maximum": high})


def count(high: int, low: int = 1) -> SettingKind:
    """The kind of a whole number from `low` to `high`."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError
        if not low <= value <= high:
            raise ValueError
        return value

    return SettingKind(
        parse, f"a whole number from {low} to {high}", {"type": "integer", "minimum": low, "maximum": high}
    )


def size(high: int, low: int = 0) -> SettingKind:
    """The kind of a size from `low` to `high` bytes: a number of bytes, or text such as ``64KiB``."""
    plain = count(high, low)

    def parse(value: Any) -> int:
        return plain.parse(parse_size(value) if isinstance(value, str) else value)  # type: ignore[no-any-return]

    return SettingKind(
        parse, f"a size from {show_size(low)} to {show_size(high)}, such as {SIZE_EXAMPLES}", plain.schema
    )


def _parse_queue(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    try:
        return QueueName(value)
    except InvalidName as error:
        raise ValueError from error


def _parse_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _parse_overflow(value: Any) -> str:
    if value not in (REJECT, DROP_HEAD):
        raise ValueError
    return str(value)


QUEUE: Final = SettingKind(_parse_queue, "a queue's name", {"type": "string", "pattern": f"^{QUEUE_NAME_PATTERN}$"})
SWITCH: Final = SettingKind(_parse_switch, "true or false", {"type": "boolean"})
_OVERFLOW: Final = SettingKind(
    _parse_overflow, f'"{REJECT}" or "{DROP_HEAD}"', {"type": "string", "enum": [REJECT, DROP_HEAD]}
)
VISIBILITY: Final = seconds(SHORTEST_SECONDS, LONGEST_LEASE_SECONDS)
DELAY: Final = seconds(0, LONGEST_DELAY_SECONDS)
RETRY: Final = seconds(0, LONGEST_LEASE_SECONDS)
PRIORITY: Final = count(255, 0)
TTL: Final = seconds(SHORTEST_SECONDS, LONGEST_TTL_SECONDS)


_PARTS_OF_SQS: Final = ("attributes", "tags")


def _parse_sqs(value: Any) -> dict[str, Any]:
    """Texts by name, of two kinds; None takes one away. And the instant of the last change."""
    if not isinstance(value, Mapping) or value.keys() - {*_PARTS_OF_SQS, "modified"}:
        raise TypeError
    modified = value.get("modified")
    if modified is not None and not isinstance(modified, int):
        raise TypeError
    parts = {part: dict(value.get(part) or {}) for part in _PARTS_OF_SQS}
    if not all(isinstance(text, str | None) for part in parts.values() for text in part.values()):
        raise TypeError
    return parts if modified is None else {**parts, "modified": modified}


SQS: Final = "sqs"
"""The setting that is the SQS API's own: attributes and tags of the queue there. Other servers neither show nor change
it."""
_SQS: Final = SettingKind(_parse_sqs, "attributes and tags", {"type": "object"})


def _setting(default: Any, kind: SettingKind) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind})


@dataclasses.dataclass(frozen=True)
class QueueSettings:
    """The settings of one queue. Seconds may have fractions; None means no limit, or the broker's default.

    Attributes:
        visibility: length of a lease in seconds.
        delay: seconds from publishing until a message can be fetched.
        ttl: seconds from publishing until a message expires; for messages published while it is set.
        max_messages: how many messages the queue may hold, leased and delayed ones too.
        max_bytes: how many bytes their bodies may have together.
        overflow: what a full queue does: ``reject`` the new message, or ``drop-head``, drop the oldest one not held.
        max_receives: how often a message may be leased before it dies.
        unique: whether to store no body twice.
        paused: whether to hand out no messages.
        publish_paused: whether to take no messages from clients; dead letters and what is moved still come.
        key_window: seconds for which the queue remembers an idempotency key.
        retry_delay: seconds for which a message is held back when the work on it failed for the first time.
        retry_factor: how many times longer it is held back after each next failure.
        retry_jitter: by up to this part a wait is shorter, by chance, so that many messages do not come back together.
        retry_max: seconds of the longest wait.
        max_priority: the highest priority that a message has here; 0 for none.
        groups: whether messages of one group are handed out one after the other, in order.
        sqs: what SQS keeps with the queue (:data:`SQS`): "attributes" and "tags", each text by name, and "modified",
            seconds since 1970; None without any of these. Settings that differ in this alone are equal.
    """

    visibility: float | None = _setting(None, VISIBILITY)
    delay: float = _setting(0.0, DELAY)
    ttl: float | None = _setting(None, TTL)
    max_messages: int | None = _setting(None, count(10**12, 0))
    max_bytes: int | None = _setting(None, size(10**18))
    overflow: str = _setting(REJECT, _OVERFLOW)
    max_receives: int | None = _setting(None, count(10**6))
    dead_letter_queue: str | None = _setting(None, QUEUE)
    unique: bool = _setting(False, SWITCH)
    paused: bool = _setting(False, SWITCH)
    publish_paused: bool = _setting(False, SWITCH)
    key_window: float = _setting(86_400.0, seconds(1, LONGEST_KEY_WINDOW_SECONDS))
    retry_delay: float = _setting(0.0, RETRY)
    retry_factor: float = _setting(2.0, number(1, 100))
    retry_jitter: float = _setting(0.1, number(0, 1))
    retry_max: float = _setting(3600.0, VISIBILITY)
    max_priority: int = _setting(0, PRIORITY)
    groups: bool = _setting(False, SWITCH)
    sqs: Mapping[str, Any] | None = dataclasses.field(default=None, metadata={"kind": _SQS}, compare=False)

    def changed(self, patch: Mapping[str, Any]) -> QueueSettings:
        """These settings with those of `patch`; a value of None resets one to its default. A :data:`SQS` there changes
        the attributes and tags that it names.

        Raises:
            InvalidSetting: a setting is unknown or out of its range, or two contradict each other.
        """
        values = {name: _checked(name, value) for name, value in patch.items()}
        if values.get(SQS) is not None:
            values[SQS] = _merged(self.sqs or {}, values[SQS])
        settings = dataclasses.replace(self, **values)
        if settings.max_receives is not None and settings.dead_letter_queue is None:
            raise InvalidSetting("max_receives requires dead_letter_queue to be set as well")
        if settings.groups and settings.max_priority:
            raise InvalidSetting(
                "a queue cannot have both groups and max_priority, because messages in a group are delivered in the "
                "order in which they were published"
            )
        return settings

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> QueueSettings:
        """The settings from what :meth:`kept` returned. One that this version does not know or allow is at its
        default."""
        known = {}
        for name, value in values.items():
            with suppress(InvalidSetting):
                known[name] = _checked(name, value)
        return cls(**known)

    @classmethod
    def kinds(cls) -> dict[str, SettingKind]:
        """The kind of each setting that every protocol has, by its JSON name."""
        return {name: field.metadata["kind"] for name, field in _FIELDS.items() if name != SQS}

    def values(self) -> dict[str, Any]:
        """The settings that every protocol has, by their JSON names."""
        return {name: getattr(self, name) for name in _SHARED}  # as asdict, which copies deeply, in a tenth of its time

    def kept(self) -> dict[str, Any]:
        """The settings that are not at their default: the store keeps those."""
        found = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in found.items() if value != _FIELDS[name].default}

    def retry_seconds(self, receives: int, random: Random) -> float:
        """Seconds for which a message is held back after its work failed; 0 where it is not."""
        if not self.retry_delay:
            return 0.0
        growth = self.retry_factor ** max(0, min(receives - 1, _MOST_DOUBLINGS))
        return min(self.retry_delay * growth, self.retry_max) * (1 - self.retry_jitter * random.random())

    @cached_property
    def knows_bodies(self) -> bool:
        """Whether the queue needs body stats."""
        return self.unique or self.max_bytes is not None


_FIELDS: Final = {field.name: field for field in dataclasses.fields(QueueSettings)}
_SHARED: Final = [name for name in _FIELDS if name != SQS]
DEFAULTS: Final = QueueSettings()


PAUSES: Final = ("paused", "publish_paused")
"""Those that pause something: they may be set with the right to pause, too."""


def check_shared(patch: Mapping[str, Any]) -> None:
    """Check that a change concerns settings that every protocol has.

    Raises:
        InvalidSetting: it does not.
    """
    if SQS in patch:
        raise _unknown(SQS)


def _unknown(name: str) -> InvalidSetting:
    near = difflib.get_close_matches(name, _SHARED, n=1)
    hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(_SHARED)
    return InvalidSetting(f"unknown setting {shorten(name)}: {hint}")


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any] | None:
    """What SQS keeps with a queue, after a change; None without any of it."""
    found: dict[str, Any] = {}
    for part in _PARTS_OF_SQS:
        texts = {**old.get(part, {}), **patch[part]}
        found[part] = {name: text for name, text in texts.items() if text is not None}
    modified = patch.get("modified", old.get("modified"))
    if modified is not None:
        return {**found, "modified": modified}
    return found if any(found.values()) else None


def _checked(name: str, value: Any) -> Any:
    field = _FIELDS.get(name)
    if field is None:
        raise _unknown(name)
    return field.default if value is None else check_value(name, value, field.metadata["kind"])


def check_value(name: str, value: Any, kind: SettingKind) -> Any:
    """The parsed value of a setting or parameter.

    Args:
        value: in JSON.

    Raises:
        InvalidSetting: it may not have this value.
    """
    try:
        return kind.parse(value)
    except (ValueError, TypeError):
        shown = value if isinstance(value, str) else repr(value)
        raise InvalidSetting(f"{name} must be {kind.needs}, not {shorten(shown)}") from None


def check_time(at_ms: int, now_ms: int) -> int:
    """The instant at which a message is to be there, which is not too far away.

    Args:
        at_ms: the instant, in milliseconds since 1970.

    Raises:
        InvalidSetting: it is further away than the longest delay.
    """
    if at_ms - now_ms > LONGEST_DELAY_SECONDS * 1000:
        raise InvalidSetting("the delivery time must be within the next ten years")
    return at_ms
