"""What can be set for a queue: one table, from which come the defaults, the ranges, the JSON names and the errors."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from mq.broker.config import LONGEST_LEASE_SECONDS
from mq.errors import InvalidName, InvalidSetting
from mq.message import QUEUE_NAME_PATTERN, QueueName, shorten

SHORTEST_SECONDS: Final = 0.001
LONGEST_TTL_SECONDS: Final = 315_576_000.0
"""Ten years."""
LONGEST_KEY_WINDOW_SECONDS: Final = 2_592_000.0
"""Thirty days."""
REJECT: Final = "reject"
DROP_HEAD: Final = "drop-head"


class Kind(NamedTuple):
    """What a value may be.

    Attributes:
        parse: from a JSON value to the value; raises ValueError or TypeError for anything else.
        needs: completes "NAME must be ...".
        schema: the same as JSON Schema.
    """

    parse: Callable[[Any], Any]
    needs: str
    schema: Mapping[str, Any]


def seconds(low: float, high: float) -> Kind:
    """A number of seconds in a range."""

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        if not low <= value <= high:  # not a NaN either
            raise ValueError
        return float(value)

    schema = {"type": "number", "minimum": low, "maximum": high}
    return Kind(parse, f"a number of seconds from {low:g} to {high:g}", schema)


def count(high: int, low: int = 1) -> Kind:
    """A whole number up to `high`."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError
        if not low <= value <= high:
            raise ValueError
        return value

    return Kind(parse, f"a whole number from {low} to {high}", {"type": "integer", "minimum": low, "maximum": high})


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


QUEUE: Final = Kind(_parse_queue, "a queue's name", {"type": "string", "pattern": f"^{QUEUE_NAME_PATTERN}$"})
_SWITCH: Final = Kind(_parse_switch, "true or false", {"type": "boolean"})
_OVERFLOW: Final = Kind(
    _parse_overflow, f'"{REJECT}" or "{DROP_HEAD}"', {"type": "string", "enum": [REJECT, DROP_HEAD]}
)
VISIBILITY: Final = seconds(SHORTEST_SECONDS, LONGEST_LEASE_SECONDS)
DELAY: Final = seconds(0, LONGEST_LEASE_SECONDS)
TTL: Final = seconds(SHORTEST_SECONDS, LONGEST_TTL_SECONDS)


def _line(default: Any, kind: Kind) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind})


@dataclasses.dataclass(frozen=True)
class QueueSettings:
    """What is set for one queue. Seconds may have fractions; None is "no such limit", or the broker's default.

    Attributes:
        visibility: length of a lease in seconds.
        delay: seconds from publishing until a message can be fetched.
        ttl: seconds from publishing until a message expires; for messages published while it is set.
        max_messages: how many messages the queue may hold, leased and delayed ones too.
        max_bytes: how many bytes their bodies may have together.
        overflow: what happens beyond that: ``reject``, or ``drop-head``, the oldest that nobody holds.
        max_receives: how often a message may be leased before it is dead.
        dead_letter_queue: where dead messages go.
        unique: whether a body that is in the queue already is not stored again.
        paused: whether nothing is handed out.
        key_window: seconds for which an idempotency key is remembered.
    """

    visibility: float | None = _line(None, VISIBILITY)
    delay: float = _line(0.0, DELAY)
    ttl: float | None = _line(None, TTL)
    max_messages: int | None = _line(None, count(10**12, 0))
    max_bytes: int | None = _line(None, count(10**18, 0))
    overflow: str = _line(REJECT, _OVERFLOW)
    max_receives: int | None = _line(None, count(10**6))
    dead_letter_queue: str | None = _line(None, QUEUE)
    unique: bool = _line(False, _SWITCH)
    paused: bool = _line(False, _SWITCH)
    key_window: float = _line(86_400.0, seconds(1, LONGEST_KEY_WINDOW_SECONDS))

    def changed(self, patch: Mapping[str, Any]) -> QueueSettings:
        """These settings with those of `patch`; None sets one back to its default.

        Raises:
            InvalidSetting: one is unknown or out of its range, or two contradict each other.
        """
        settings = dataclasses.replace(self, **{name: _checked(name, value) for name, value in patch.items()})
        if settings.max_receives is not None and settings.dead_letter_queue is None:
            raise InvalidSetting("max_receives needs a dead_letter_queue: say where dead messages go")
        return settings

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> QueueSettings:
        """What :meth:`kept` gave. What this version does not know, or would not take, is at its default."""
        known = {}
        for name, value in values.items():
            with suppress(InvalidSetting):
                known[name] = _checked(name, value)
        return cls(**known)

    @classmethod
    def kinds(cls) -> dict[str, Kind]:
        """What each of them may be, by its JSON name."""
        return {name: field.metadata["kind"] for name, field in _FIELDS.items()}

    def values(self) -> dict[str, Any]:
        """All of them, by their JSON names."""
        return dataclasses.asdict(self)

    def kept(self) -> dict[str, Any]:
        """Those that are not at their default: what is stored."""
        return {name: value for name, value in self.values().items() if value != _FIELDS[name].default}

    @property
    def knows_bodies(self) -> bool:
        """Whether the queue has to know its messages' bodies."""
        return self.unique or self.max_bytes is not None


_FIELDS: Final = {field.name: field for field in dataclasses.fields(QueueSettings)}
DEFAULTS: Final = QueueSettings()


def _checked(name: str, value: Any) -> Any:
    field = _FIELDS.get(name)
    if field is None:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(_FIELDS)
        raise InvalidSetting(f"unknown setting {shorten(name)}: {hint}")
    return field.default if value is None else check_value(name, value, field.metadata["kind"])


def check_value(name: str, value: Any, kind: Kind) -> Any:
    """`value`, if it is what `name` may be.

    Raises:
        InvalidSetting: it is not.
    """
    try:
        return kind.parse(value)
    except (ValueError, TypeError):
        raise InvalidSetting(f"{name} must be {kind.needs}, got {shorten(repr(value))}") from None
