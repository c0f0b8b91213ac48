"""What a client sends and gets: keys with their values, comparisons, operations; and how JSON holds them.

Keys are text, values are bytes. In JSON both are base64 and whole numbers are text, as protobuf's mapping has it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

Json = Mapping[str, Any]

TO_THE_END: Final = "\0"
"""As the `end` of a range: every key from its beginning on."""


class KeyValue(NamedTuple):
    """A key as it stood at some revision.

    Attributes:
        value: its bytes; empty where only keys were asked for.
        created: the revision at which it was made. A key that is deleted and made again has another one.
        modified: the revision at which it was last written.
        version: how often it was written since it was made, 1 the first time.
        lease: the lease that it ends with; 0 for none.
    """

    key: str
    value: bytes
    created: int
    modified: int
    version: int
    lease: int = 0


class Compare(NamedTuple):
    """A condition of a transaction, on one key or on all of a range. Made by :func:`absent`, :func:`present`,
    :func:`created_at`, :func:`modified_at` and :func:`value_is`.

    Attributes:
        target: what is compared: ``CREATE``, ``MOD`` or ``VALUE``.
        relation: ``EQUAL``, ``GREATER``, ``LESS`` or ``NOT_EQUAL``.
        end: where the range ends; None for that key alone.
    """

    key: str
    target: str
    wanted: int | bytes
    relation: str = "EQUAL"
    end: str | None = None


def absent(key: str, end: str | None = None) -> Compare:
    """There is no such key, or none from `key` up to (and without) `end`."""
    return Compare(key, "CREATE", 0, end=end)


def present(key: str) -> Compare:
    """There is such a key."""
    return Compare(key, "CREATE", 0, "GREATER")


def created_at(key: str, revision: int) -> Compare:
    """The key is still the one that was made at `revision`: a fence."""
    return Compare(key, "CREATE", revision)


def modified_at(key: str, revision: int) -> Compare:
    """The key was last written at `revision`."""
    return Compare(key, "MOD", revision)


def value_is(key: str, value: bytes) -> Compare:
    """The key is there and has this value."""
    return Compare(key, "VALUE", value)


class Put(NamedTuple):
    """Write a key. Its answer is empty.

    Attributes:
        value: its bytes.
        lease: the lease that it ends with; 0 for none.
    """

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete a key, or all from `key` up to (and without) `end`. Its answer is how many there were."""

    key: str
    end: str | None = None


class Get(NamedTuple):
    """Look at a key, or at all from `key` up to (and without) `end`. Its answer is a :class:`Page`.

    Attributes:
        key: the first.
        end: where the range ends; None for this key alone.
        limit: at most so many; 0 for no limit.
        count_only: nothing but how many there are.
        revision: as it was then; 0 for now.
        by_creation: the oldest first, instead of by name.
    """

    key: str
    end: str | None = None
    limit: int = 0
    keys_only: bool = False
    count_only: bool = False
    revision: int = 0
    by_creation: bool = False


class Nested(NamedTuple):
    """A transaction in a transaction. Its answer is an :class:`Outcome`.

    The conditions of all of them are looked at before anything is done, and no two of them may write the same key.
    """

    compares: Sequence[Compare]
    then: Sequence[Operation]
    otherwise: Sequence[Operation] = ()


Operation = Put | Delete | Get | Nested


class Page(NamedTuple):
    """The answer of a :class:`Get`.

    Attributes:
        total: how many there are in the whole range.
        more: the limit has cut some off.
        revision: of the whole store, when it was read; 0 inside a transaction, which has its own.
    """

    found: list[KeyValue]
    total: int
    more: bool
    revision: int


class Outcome(NamedTuple):
    """What became of a transaction.

    Attributes:
        succeeded: all its conditions held, so the first list was done; else the second one.
        revision: of the whole store, after it. The `modified` of everything it wrote.
        answers: one for each operation done: None for a Put, a number for a Delete, a Page for a Get, an Outcome for a
            Nested, whose revision is 0.
    """

    succeeded: bool
    revision: int
    answers: list[Answer]


Answer = int | Page | Outcome | None


class Event(NamedTuple):
    """Something that happened to a key.

    Attributes:
        key: which one.
        current: what it is now; None when it was deleted or its lease ended.
        revision: at which that happened.
    """

    key: str
    current: KeyValue | None
    revision: int


class Status(NamedTuple):
    """What a member says of itself.

    Attributes:
        leader: the id of the member that leads; 0 when it knows none.
        size: of its file, in bytes.
        used: of these, in bytes; the rest is free after a defragmentation.
        revision: of the store, as far as this member knows.
    """

    member: int
    leader: int
    version: str
    size: int
    used: int
    revision: int


def changes_something(operation: Operation) -> bool:
    """Whether an operation is not only a look."""
    if isinstance(operation, Nested):
        return any(map(changes_something, (*operation.then, *operation.otherwise)))
    return not isinstance(operation, Get)


def end_of_prefix(prefix: str) -> str:
    """The `end` of the range of all keys that begin with `prefix`, which ends with a character below U+007F."""
    if not prefix:
        return TO_THE_END
    last = prefix[-1]
    assert last < "\x7f", f"a prefix that ends with {last!r} has no simple end"
    return prefix[:-1] + chr(ord(last) + 1)


def text(value: bytes) -> str:
    """Bytes as JSON has them."""
    return b64encode(value).decode("ascii")


def compare_json(compare: Compare) -> Json:
    """A condition as the gateway wants it. EQUAL goes without saying."""
    field = {"CREATE": "create_revision", "MOD": "mod_revision", "VALUE": "value"}[compare.target]
    wanted = text(compare.wanted) if isinstance(compare.wanted, bytes) else str(compare.wanted)
    condition = {**_range_json(compare.key, compare.end), "target": compare.target, field: wanted}
    return condition if compare.relation == "EQUAL" else {**condition, "result": compare.relation}


def operation_json(operation: Operation) -> Json:
    """An operation of a transaction as the gateway wants it."""
    match operation:
        case Put():
            return {"request_put": put_json(operation)}
        case Delete():
            return {"request_delete_range": delete_json(operation)}
        case Get():
            return {"request_range": get_json(operation)}
        case Nested():
            return {"request_txn": txn_json(operation)}


def txn_json(txn: Nested) -> Json:
    """A transaction as the gateway wants it."""
    wanted = {
        "compare": [compare_json(compare) for compare in txn.compares],
        "success": [operation_json(operation) for operation in txn.then],
    }
    if txn.otherwise:
        wanted["failure"] = [operation_json(operation) for operation in txn.otherwise]
    return wanted


def put_json(put: Put) -> Json:
    """A Put as the gateway wants it."""
    wanted = {"key": text(put.key.encode()), "value": text(put.value)}
    return {**wanted, "lease": str(put.lease)} if put.lease else wanted


def delete_json(delete: Delete) -> Json:
    """A Delete as the gateway wants it."""
    return _range_json(delete.key, delete.end)


def get_json(get: Get) -> Json:
    """A Get as the gateway wants it."""
    wanted: dict[str, Any] = dict(_range_json(get.key, get.end))
    if get.limit:
        wanted["limit"] = str(get.limit)
    if get.revision:
        wanted["revision"] = str(get.revision)
    if get.keys_only:
        wanted["keys_only"] = True
    if get.count_only:
        wanted["count_only"] = True
    if get.by_creation:
        wanted |= {"sort_order": "ASCEND", "sort_target": "CREATE"}
    return wanted


def _range_json(key: str, end: str | None) -> Json:
    wanted = {"key": text(key.encode())}
    return wanted if end is None else {**wanted, "range_end": text(end.encode())}


def revision_of(reply: Json) -> int:
    """The store's revision, in the header of any reply."""
    return int(reply.get("header", {}).get("revision", 0))


def key_value(found: Json) -> KeyValue:
    """A key with its value, out of a reply."""
    return KeyValue(
        b64decode(found["key"]).decode(errors="surrogateescape"),
        b64decode(found.get("value", "")),
        int(found.get("create_revision", 0)),
        int(found.get("mod_revision", 0)),
        int(found.get("version", 0)),
        int(found.get("lease", 0)),
    )


def page(reply: Json) -> Page:
    """The answer of a Get, out of a reply."""
    return Page(
        [key_value(found) for found in reply.get("kvs", ())],
        int(reply.get("count", 0)),
        bool(reply.get("more", False)),
        revision_of(reply),
    )


def outcome(reply: Json) -> Outcome:
    """What became of a transaction, out of a reply."""
    answers = [_answer(response) for response in reply.get("responses", ())]
    return Outcome(bool(reply.get("succeeded", False)), revision_of(reply), answers)


def _answer(response: Json) -> Answer:
    if "response_range" in response:
        return page(response["response_range"])
    if "response_delete_range" in response:
        return int(response["response_delete_range"].get("deleted", 0))
    if "response_txn" in response:
        return outcome(response["response_txn"])
    return None


def event(found: Json) -> Event:
    """An event, out of what a watch told."""
    seen = key_value(found["kv"])
    return Event(seen.key, None if found.get("type") == "DELETE" else seen, seen.modified)


def status(reply: Json) -> Status:
    """What a member says of itself, out of its reply."""
    return Status(
        int(reply["header"]["member_id"]),
        int(reply.get("leader", 0)),
        str(reply.get("version", "")),
        int(reply.get("dbSize", 0)),
        int(reply.get("dbSizeInUse", 0)),
        revision_of(reply),
    )
