"""The shapes of requests and answers, and how each protocol writes them. Pure.

One description of an action's input and output serves both protocols: as JSON (AWS JSON 1.0), and as a form that is
answered in XML (AWS query). In a form, lists and maps are counted from 1: ``Attribute.1.Name=DelaySeconds``. A list of
one may go without: ``AttributeName=All``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from mq.sqs.errors import SqsError

LARGEST_NUMBER: Final = 1 << 63
MOST_ITEMS: Final = 1000
"""Of a list or a map: no action takes a tenth of that."""
_MOST_DIGITS: Final = 6
"""Of a place in a list of a form."""
_DEEPEST: Final = 8
"""Parts of a name in a form; the longest that means something has six."""


class Text(NamedTuple):
    """Text."""


class Whole(NamedTuple):
    """A whole number."""


class Switch(NamedTuple):
    """True or false; in answers only."""


class Blob(NamedTuple):
    """Bytes, in base64."""


class ListOf(NamedTuple):
    """A list."""

    item: Shape
    name: str


class MapOf(NamedTuple):
    """Values by text."""

    value: Shape
    name: str
    key_name: str = "Name"


class Struct(NamedTuple):
    """Members by name; any may be absent."""

    members: Mapping[str, Shape]


Shape = Text | Whole | Switch | Blob | ListOf | MapOf | Struct

TEXT: Final = Text()
WHOLE: Final = Whole()
SWITCH: Final = Switch()
BLOB: Final = Blob()


def from_json(shape: Shape, value: Any, where: str = "") -> Any:
    """A value of a JSON document, checked. Members that a struct does not have are passed over, as AWS does, and so is
    null.

    Raises:
        SqsError: it is something else.
    """
    match shape:
        case Text() if isinstance(value, str):
            return value
        case Struct() if isinstance(value, dict):
            return members_of(shape, value)
        case Whole() if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER:
            return value
        case Blob() if isinstance(value, str):
            return _bytes(value, where)
        case ListOf() if isinstance(value, list) and len(value) <= MOST_ITEMS:
            return [from_json(shape.item, each, where) for each in value]
        case MapOf() if isinstance(value, dict) and len(value) <= MOST_ITEMS:
            return {key: from_json(shape.value, each, where or key) for key, each in value.items() if each is not None}
    raise SqsError("SerializationException", f"{where or 'the request'} must be {_NAMES[type(shape)]}")


def members_of(shape: Struct, value: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`from_json`, of an object that is to be a struct."""
    members = shape.members
    found: dict[str, Any] = {}
    for name, each in value.items():
        member = members.get(name)
        if member is None or each is None:
            continue
        found[name] = each if member is TEXT and type(each) is str else from_json(member, each, name)
    return found


_NAMES: Final[Mapping[type, str]] = {
    Text: "text",
    Whole: "a whole number",
    Blob: "base64 text",
    ListOf: f"a list of at most {MOST_ITEMS}",
    MapOf: f"an object of at most {MOST_ITEMS} members",
    Struct: "an object",
}


def needed(wanted: Mapping[str, Any], name: str) -> Any:
    """A member of an input, or of an entry of a batch.

    Raises:
        SqsError: it is not there.
    """
    if name not in wanted:
        raise SqsError("MissingParameter", f"The request must contain the parameter {name}.")
    return wanted[name]


def number(wanted: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A whole number of an input, or of an entry of a batch; None where it is not there.

    Raises:
        SqsError: it is out of its range.
    """
    found: int | None = wanted.get(name)
    if found is not None and not low <= found <= high:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {found} for parameter {name} is invalid. Reason: Must be between {low} and {high}.",
        )
    return found


Tree = dict[str, Any]
"""A form by the parts of its names: each value is text, or a tree."""


def tree_of(fields: Sequence[tuple[str, str]]) -> Tree:
    """The fields of a form, by the parts of their names.

    Raises:
        SqsError: one is there twice, or is a value and a group at once.
    """
    root: Tree = {}
    for name, text in fields:
        *groups, last = name.split(".", _DEEPEST)
        place: Any = root
        for group in groups:
            place = place.setdefault(group, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last in place:
            raise SqsError("MalformedQueryString", f"the field {name[:80]} occurs twice")
        place[last] = text
    return root


def from_form(shape: Shape, value: Any, where: str = "") -> Any:
    """A part of a form, checked.

    Raises:
        SqsError: it is something else.
    """
    match shape:
        case Text() if isinstance(value, str):
            return value
        case Whole() if isinstance(value, str):
            return _whole(value, where)
        case Blob() if isinstance(value, str):
            return _bytes(value, where)
        case Struct() if isinstance(value, dict):
            return _members(shape, value)
    raise SqsError("MalformedInput", f"{where or 'the request'} must be {_NAMES[type(shape)]}")


def _members(shape: Struct, tree: Tree) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, member in shape.members.items():
        if isinstance(member, ListOf):
            if member.name in tree:
                found[name] = [from_form(member.item, each, member.name) for each in _counted(tree, member.name)]
        elif isinstance(member, MapOf):
            if member.name in tree:
                found[name] = dict(_entry(member, each) for each in _counted(tree, member.name))
        elif name in tree:
            found[name] = from_form(member, tree[name], name)
    return found


def _counted(tree: Tree, name: str) -> list[Any]:
    """The members below a name, in the order of their numbers. A name without a number is that of a single member."""
    group = tree[name]
    if isinstance(group, str):
        return [group]
    if isinstance(group, dict) and all(key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS for key in group):
        return [group[key] for key in sorted(group, key=int)]
    raise SqsError("MalformedInput", f"{name} must be numbered, as in {name}.1, {name}.2")


def _entry(shape: MapOf, value: Any) -> tuple[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get(shape.key_name), str) or "Value" not in value:
        raise SqsError("MalformedInput", f"each {shape.name} must have a {shape.key_name} and a Value")
    return value[shape.key_name], from_form(shape.value, value["Value"], shape.name)


def _whole(text: str, where: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < len(str(LARGEST_NUMBER))):
        raise SqsError("MalformedInput", f"{where} must be a whole number")
    return int(text)


def _bytes(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SqsError("SerializationException", f"{where} must be base64 text") from None


def in_base64(data: bytes) -> str:
    """Bytes as answers have them, in either protocol."""
    return base64.b64encode(data).decode()


def to_xml(shape: Struct, value: Mapping[str, Any]) -> str:
    """The members of a struct as XML elements."""
    return "".join(part for name, each in value.items() for part in _elements(shape.members[name], name, each))


def _elements(shape: Shape, name: str, value: Any) -> Iterator[str]:
    if isinstance(shape, ListOf):
        for each in value:
            yield from _elements(shape.item, shape.name, each)
    elif isinstance(shape, MapOf):
        for key, each in value.items():
            entry = "".join(_elements(shape.value, "Value", each))
            yield f"<{shape.name}><{shape.key_name}>{written(key)}</{shape.key_name}>{entry}</{shape.name}>"
    else:
        inner = to_xml(shape, value) if isinstance(shape, Struct) else written(_text(shape, value))
        yield f"<{name}>{inner}</{name}>"


def _text(shape: Shape, value: Any) -> str:
    if isinstance(shape, Switch):
        return "true" if value else "false"
    return in_base64(value) if isinstance(shape, Blob) else str(value)


def written(text: str) -> str:
    """Text inside an element. A carriage return would be read as a line feed (XML 1.0, section 2.11)."""
    return escape(text, {"\r": "&#13;"})
