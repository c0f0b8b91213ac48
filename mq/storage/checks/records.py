"""Records: small JSON values under (kind, key)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mq.storage.checks.kit import Check, one, together
from mq.storage.interface import QUEUE, Put, Result, Storage
from mq.storage.records import drop_record, put_record

KINDS: Final = ("exchange", "binding", "claim")
ODD_KEYS: Final = (
    "plain",
    "Plain",
    "",
    ".",
    "..",
    ".hidden",
    "a/b",
    "/",
    "a:b,c",
    "a b\tc\nd",
    "%2e%2F%",
    "ünï→😀",
    "\x01\x7f",
    "-rf *",
    "a\\b'\"",
    "tmp",
    "long " + "x" * 250,
    "longer " + "ü" * 1000,
    "longer " + "ü" * 1001,
)
"""Keys are texts; how a medium writes them down is its own affair. AMQP names come here as they are, but for NUL."""
VALUES: Final[dict[str, dict[str, Any]]] = {
    "empty": {},
    "every JSON type": {"null": None, "no": False, "int": -(2**53), "float": 0.1, "text": "ü\n\0", "list": [[], {}]},
    "nested": {"a": {"b": {"c": [{"d": 1}]}}},
    "large": {"text": "x" * 100_000},
}
CREATED: Final = 139_000_000_000_000_000
QUEUE_NAMES: Final = ("a", "A", "0", "_", "a.b@c-d_e", "a.", "new", "tmp", "q" * 100)


async def a_record_comes_back(storage: Storage) -> None:
    """Of any JSON type and size, of a queue as of anything else."""
    for kind in (QUEUE, *KINDS):
        for number, (name, value) in enumerate(VALUES.items()):
            key = f"key{number}"
            await _put(storage, kind, key, value, new=True)
            await _holds(storage, kind, key, value, name)


async def a_record_is_replaced(storage: Storage) -> None:
    """A queue is new once; what the old value had is gone."""
    for kind in (QUEUE, *KINDS):
        await _put(storage, kind, "key", {"old": 1, "both": 1}, new=True)
        await _put(storage, kind, "key", {"both": 2}, new=False)
        await _holds(storage, kind, "key", {"both": 2}, "replaced")


async def a_record_is_dropped(storage: Storage) -> None:
    """DONE once; then it is as if it had never been."""
    for kind in (QUEUE, *KINDS):
        assert not await drop_record(storage, kind, "key"), f"the Drop of an unknown {kind} was DONE"
        await _put(storage, kind, "key", {"a": 1}, new=True)
        assert await drop_record(storage, kind, "key"), f"the Drop of a {kind} that is there was not DONE"
        assert await storage.records(kind) == {}, f"a dropped {kind} is still there"
        assert not await drop_record(storage, kind, "key"), f"a second Drop of a {kind} was DONE"
        await _put(storage, kind, "key", {"b": 1}, new=True)
        await _holds(storage, kind, "key", {"b": 1}, "put again")


async def keys_may_be_odd(storage: Storage) -> None:
    """Each is its own, and none of them becomes a path."""
    await _each_is_its_own(storage, KINDS[0], ODD_KEYS)


async def every_queue_name_will_do(storage: Storage) -> None:
    """The whole grammar."""
    await _each_is_its_own(storage, QUEUE, QUEUE_NAMES)


async def kinds_do_not_mix(storage: Storage) -> None:
    """The same key in two kinds is two records, and an unknown kind is empty."""
    assert await storage.records("unknown") == {}, "records of an unknown kind"
    for kind in (QUEUE, *KINDS):
        await _put(storage, kind, "key", {"kind": kind}, new=True)
    await drop_record(storage, KINDS[0], "key")
    assert await storage.records(KINDS[0]) == {}, f"the dropped {KINDS[0]} is still there"
    for kind in (QUEUE, *KINDS[1:]):
        assert list(await storage.records(kind)) == ["key"], f"records of other kinds among those of {kind}"
        await _holds(storage, kind, "key", {"kind": kind}, "beside others")


async def a_record_is_a_snapshot(storage: Storage) -> None:
    """What the caller does to a value afterwards changes nothing, neither one put nor one got."""
    value: dict[str, Any] = {"list": [1]}
    await put_record(storage, KINDS[0], "key", value)
    value["list"].append(2)
    await _holds(storage, KINDS[0], "key", {"list": [1]}, "changed by the writer")
    (await storage.records(KINDS[0]))["key"]["list"].append(3)
    await _holds(storage, KINDS[0], "key", {"list": [1]}, "changed by a reader")


async def records_are_put_side_by_side(storage: Storage) -> None:
    """None is lost, and a key that many put at once holds the whole of one value."""

    async def put(number: int) -> None:
        await put_record(storage, KINDS[0], f"own {number}", {"number": number})
        await put_record(storage, KINDS[0], "shared", {"number": number, "text": f"{number}" * 5000})

    await together(partial(put, number) for number in range(10))
    found = await storage.records(KINDS[0])
    own = {key: value for key, value in found.items() if key != "shared"}
    assert own == {f"own {number}": {"number": number} for number in range(10)}, f"ten were put: {sorted(own)}"
    shared = found["shared"]
    assert shared["text"] == f"{shared['number']}" * 5000, "a record holds parts of two values"


def _as_kept(kind: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record of a queue also says when it was made."""
    return {"created": CREATED, **value} if kind == QUEUE else value


async def _put(storage: Storage, kind: str, key: str, value: Mapping[str, Any], *, new: bool) -> None:
    outcome = await one(storage, Put(kind, key, _as_kept(kind, value)))
    assert outcome.result is Result.DONE, f"{outcome} of the Put of {kind} {key[:40]!r}, not DONE"
    if kind == QUEUE:
        assert outcome.existed is not new, f"{outcome} of the Put of {'a new' if new else 'an old'} queue {key[:40]!r}"


async def _holds(storage: Storage, kind: str, key: str, value: Mapping[str, Any], when: str) -> None:
    found = (await storage.records(kind)).get(key)
    expected = _as_kept(kind, value)
    assert found == expected, f"the {kind} {key[:40]!r} ({when}) is {str(found)[:200]}, not {str(expected)[:200]}"


async def _each_is_its_own(storage: Storage, kind: str, keys: tuple[str, ...]) -> None:
    for key in keys:
        await _put(storage, kind, key, {"key": key}, new=True)
    expected = {key: _as_kept(kind, {"key": key}) for key in keys}
    found = await storage.records(kind)
    assert found == expected, f"records are {sorted(found)}, not {sorted(expected)}"
    for key in keys:
        assert await drop_record(storage, kind, key), f"the Drop of {kind} {key[:40]!r} was not DONE"
        del expected[key]
        assert await storage.records(kind) == expected, f"dropping {key[:40]!r} took something else along"


CHECKS: Final[tuple[Check, ...]] = (
    a_record_comes_back,
    a_record_is_replaced,
    a_record_is_dropped,
    keys_may_be_odd,
    every_queue_name_will_do,
    kinds_do_not_mix,
    a_record_is_a_snapshot,
    records_are_put_side_by_side,
)
