"""Filters that Spark pushes down into a batch read: each names what need not be asked for.

Spark hands filters over only if ``spark.sql.python.filterPushdown.enabled`` is true. A filter that is taken over here
is exact, as Spark does not look at its rows again; every other one is given back.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mq.errors import InvalidId
from mq.message import LONGEST_GROUP, MessageId

MOST_IDS: Final = 100
"""Messages that one request may name by their ids."""
_GROUP: Final = re.compile(rf"[!-~]{{1,{LONGEST_GROUP}}}")
"""The groups that a request may name; messages of other protocols may have others."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Filter = Any
"""A filter of Spark: PySpark 4.0 has no class for it. It is known by its class's name."""


@dataclass(frozen=True)
class Selection:
    """Rows that all filters let through.

    Attributes:
        ids: the ids that a message may have; None for any.
        group: the message group; None for any.
        after: sequences are greater than this.
        up_to: sequences are not greater than this; None for no limit.
        starting_time: microseconds since 1970 of the earliest publish; None for no limit.
        ending_time: of the first publish that is too late; None for no limit.
    """

    queues: tuple[Condition, ...] = ()
    ids: frozenset[str] | None = None
    group: str | None = None
    after: int = 0
    up_to: int | None = None
    starting_time: int | None = None
    ending_time: int | None = None

    def has_queue(self, name: str) -> bool:
        """Whether rows of that queue may pass."""
        return all(condition.holds(name) for condition in self.queues)

    def since(self, micros: int) -> Selection:
        """The rows of these that were published then or later."""
        return replace(self, starting_time=max(micros, _or(self.starting_time, micros)))

    def before(self, micros: int) -> Selection:
        """The rows of these that were published before then."""
        return replace(self, ending_time=min(micros, _or(self.ending_time, micros)))

    def behind(self, sequence: int) -> Selection:
        """The rows of these that have a greater sequence."""
        return replace(self, after=max(self.after, sequence))

    def up_to_sequence(self, sequence: int) -> Selection:
        """The rows of these that have that sequence or a lesser one."""
        return replace(self, up_to=min(sequence, _or(self.up_to, sequence)))


@dataclass(frozen=True)
class Condition:
    """A condition on a text.

    Attributes:
        is_negated: whether it must not hold.
    """

    name: str
    value: Any
    is_negated: bool

    def holds(self, text: str) -> bool:
        """Whether the text passes."""
        return _ON_TEXTS[self.name](text, self.value) != self.is_negated


ALL: Final = Selection()
"""Every row."""


def push(filters: Iterable[Filter], selection: Selection = ALL) -> tuple[Selection, list[Filter]]:
    """Take over the filters that save work, which hold together.

    Returns:
        The rows that pass, and the filters that are left for Spark.
    """
    left = []
    for filter in filters:
        taken = _taken(filter, selection)
        if taken is None:
            left.append(filter)
        else:
            selection = taken
    return selection, left


def _taken(filter: Filter, selection: Selection) -> Selection | None:
    """The selection with a filter; None for one that is left to Spark."""
    name, is_negated = type(filter).__name__, False
    if name == "Not":
        filter, is_negated = filter.child, True
        name = type(filter).__name__
    column = filter.attribute[0] if len(filter.attribute) == 1 else ""
    if name == "IsNotNull" and not is_negated and column in _NEVER_NULL:
        return selection
    value = getattr(filter, "value", None)
    texts = _texts(value)
    if column == "queue" and name in _ON_TEXTS and texts is not None:
        return replace(selection, queues=(*selection.queues, Condition(name, value, is_negated)))
    if is_negated:
        return None
    if column == "id" and name in (*_EQUAL, "In") and texts is not None:
        return _with_ids(selection, texts)
    if column == "group" and name in _EQUAL and isinstance(value, str) and _GROUP.fullmatch(value):
        return replace(selection, group=value) if selection.group in (None, value) else None
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return _with_bounds(selection, name, (value - _EPOCH) // _MICROSECOND, Selection.since, Selection.before)
    if column == "sequence" and type(value) is int:
        return _with_bounds(selection, name, value, _from_sequence, _to_sequence)
    return None


def _with_bounds(
    selection: Selection,
    name: str,
    value: int,
    begin: Callable[[Selection, int], Selection],
    end: Callable[[Selection, int], Selection],
) -> Selection | None:
    """The selection between bounds of whole numbers: from `begin` on, to before `end`."""
    if name in _EQUAL:
        return end(begin(selection, value), value + 1)
    bounds: Mapping[str, tuple[Callable[[Selection, int], Selection], int]] = {
        "GreaterThan": (begin, value + 1),
        "GreaterThanOrEqual": (begin, value),
        "LessThan": (end, value),
        "LessThanOrEqual": (end, value + 1),
    }
    if name not in bounds:
        return None
    limit, at = bounds[name]
    return limit(selection, at)


def _from_sequence(selection: Selection, sequence: int) -> Selection:
    return selection.behind(sequence - 1)


def _to_sequence(selection: Selection, sequence: int) -> Selection:
    return selection.up_to_sequence(sequence - 1)


def _with_ids(selection: Selection, wanted: frozenset[str]) -> Selection | None:
    """The selection of these ids; None for too many. A text that is not an id selects no row."""
    ids = frozenset(filter(_is_id, wanted))
    if selection.ids is not None:
        ids &= selection.ids
    return replace(selection, ids=ids) if len(ids) <= MOST_IDS else None


def _is_id(text: str) -> bool:
    try:
        return bool(MessageId(text))
    except InvalidId:
        return False


def _texts(value: Any) -> frozenset[str] | None:
    """A filter's value, if it is a text, or several; None for any other, and for one that may be null."""
    values = value if isinstance(value, tuple | list) else [value]
    return frozenset(values) if all(isinstance(each, str) for each in values) else None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


_ON_TEXTS: Final[Mapping[str, Callable[[str, Any], bool]]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "In": lambda text, values: text in values,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}
"""Filters on texts by the names of their classes."""
_EQUAL: Final = ("EqualTo", "EqualNullSafe")
_NEVER_NULL: Final = frozenset(
    {"value", "id", "queue", "sequence", "timestamp", "deliveryCount", "contentType", "headers"}
)
"""Columns that every message has."""
