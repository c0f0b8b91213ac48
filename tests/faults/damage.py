"""The damage matrix: each kind of file under a root, damaged in each way, and what a start makes of it.

The kinds are the lines of the list in docs/dev/storage-formats.md, so a kind that is added there is in the matrix. A
file that is under the root and not in the list is an error.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from mq.amqp.model.declared import Binding, Destination, Exchange, ExchangeType
from mq.broker import Broker, BrokerConfig, Draft, open_broker
from mq.broker.api import BrokerAPI
from mq.errors import CorruptMessage, StorageUnusable
from mq.schedules.schedule import KIND as SCHEDULE
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import Health, health_of
from mq.storage.options import StorageOptions

LIST: Final = Path(__file__).parents[2] / "docs" / "dev" / "storage-formats.md"
LOGGED: Final = Mount("ext4", persistent=True, atomic_rename=True, ordered=True, syncfs=True, logged=True)
"""Whatever the tests' file system is: no power is cut."""
ATTRIBUTES: Final = {"content_type": "text/plain"}
LONG: Final = {"note": "x" * 2000}

# A line of the list -> the files that it is about, as a pattern; None: no file of a root at rest, and why.
PATTERNS: Final[dict[str, str | None]] = {
    "new/orders:ID": "new/orders:*",
    "new/_write-jobs@mq:ID": "new/_write-jobs@mq:*",
    "queues/orders/": "queues/*",
    "queues/orders/ID": "queues/*/*",
    "delay/orders:ID,dWHEN,r1,cWHO": "delay/*",
    "remove/orders:ID": "remove/*",
    "remove/orders:ID/": "remove/*",
    "state/lock, state/lock-moves": "state/lock*",
    "state/lock-turn, state/turn": "state/*turn",
    "state/stage/ID": "state/stage/*",
    "state/stage/PEER/ID": "state/stage/*/*",
    "state/peers/PEER": "state/peers/*",
    "state/properties/ID": "state/properties/*",
    "state/log/0, state/log/1": "state/log/[01]",
    "state/log/whole, state/log/half": "state/log/[wh]*",
    "state/format": "state/format",
    "state/ballast": "state/ballast",
    "state/failed": "state/failed",
    "state/confirmed-STORE": "state/confirmed-*",
}

FOLDERS: Final = (
    "new", "queues", "queues/orders", "delay", "remove", "state", "state/records", "state/records/queue",
    "state/stage", "state/properties", "state/log",
)  # fmt: skip

NO_EFFECT: Final[dict[str, str]] = {
    "state/lock": "it has no content: its lock ends with the daemon",
    "state/lock-moves": "it has no content: its lock ends with the daemon",
    "state/lock-turn": "it has no content: its lock ends with the daemon",
    "state/turn": "the daemon in turn makes its socket anew",
    "state/ballast": "its bytes mean nothing: it is filled again",
    "state/failed": "it is for brokers that run now: a start without others takes it away",
    "state/log/whole": "its name alone says something, to a backup: a start makes it again",
    "state/log/half": "its name alone says something, to a backup: a start makes it again",
    "state/stage": "bodies that never arrived are no messages",
    "state/peers": "it says that a broker lives, and none does",
    "remove": "what is there was removed",
}
"""Paths whose damage changes nothing, and why."""

BY_HAND: Final[dict[str, str]] = {
    "deleted message": "the specification lets people remove a message's file",
    "lengthened folder": "a file of another name is foreign: it is left alone",
}

_ADVICE: Final = re.compile("mq doctor|mq restore|move it elsewhere")
Damager = Callable[[Path], object]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    make(path)


def _link(path: Path) -> None:
    aside = path.parent.parent / f"aside-{path.name}"
    path.rename(aside)
    path.symlink_to(aside)


FILE_DAMAGES: Final[dict[str, Damager]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: os.truncate(path, 0),
    "halved": lambda path: os.truncate(path, path.stat().st_size // 2),
    "lengthened": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "noise": lambda path: path.write_bytes(bytes((7 * n) % 251 for n in range(path.stat().st_size or 16))),
    "one bit": _flip,
    "a folder": lambda path: _replace(path, Path.mkdir),
    "a link": lambda path: _replace(path, lambda path: path.symlink_to("/dev/null")),
}
XATTR_DAMAGES: Final[dict[str, Damager]] = {
    f"{what} {name.rpartition('.')[2]}": (lambda path, name=name, act=act: act(path, name))  # type: ignore[misc]
    for name in ("user.mq.sum", "user.mq.attributes")
    for what, act in {
        "deleted": os.removexattr,
        "one bit of": lambda path, name: os.setxattr(path, name, _flipped(os.getxattr(path, name))),
        "noise for": lambda path, name: os.setxattr(path, name, b"\xff\x00noise"),
    }.items()
}
FOLDER_DAMAGES: Final[dict[str, Damager]] = {
    "deleted": shutil.rmtree,
    "emptied": lambda path: _replace(path, Path.mkdir),
    "a file": lambda path: _replace(path, lambda path: path.write_bytes(b"x")),
    "a link": _link,
}


def _flipped(value: bytes) -> bytes:
    changed = bytearray(value)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def _flip_at(path: Path, how: str, bit: int) -> None:
    attribute = f"user.mq.{how.rpartition(' ')[2]}" if how != "one bit" else ""
    changed = bytearray(os.getxattr(path, attribute) if attribute else path.read_bytes())
    changed[bit // 8] ^= 1 << bit % 8
    if attribute:
        os.setxattr(path, attribute, bytes(changed))
    else:
        path.write_bytes(changed)


class Case(NamedTuple):
    """One damage to one file.

    Attributes:
        when: "at rest", after a clean stop; "live", after a kill with a log in use.
        path: below the root.
        how: of the damages.
        bit: of "one bit": which; None for one in the middle.
    """

    when: str
    path: str
    how: str
    bit: int | None = None

    def damage(self, root: Path) -> None:
        """Damage the file in a copy of the root."""
        path = root / self.path
        if self.bit is not None:
            _flip_at(path, self.how, self.bit)
            return
        damages = FOLDER_DAMAGES if path.is_dir() else FILE_DAMAGES | XATTR_DAMAGES
        damages[self.how](path)


class Seen(NamedTuple):
    """What a start made of a root.

    Attributes:
        refused: why it was refused; "" if it was served.
        content: all messages, settings and records.
        counts: what was counted, by name.
    """

    refused: str
    content: Mapping[str, Any]
    counts: Mapping[str, int]


def listed() -> list[str]:
    """The lines of the list of files, without their descriptions."""
    block = LIST.read_text().partition("```\n")[2].partition("```")[0]
    return [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]


def pattern_of(line: str) -> str | None:
    """The pattern of the files that a line is about."""
    kind = re.match(r"state/records/([a-z0-9_-]+)/", line)
    return f"state/records/{kind[1]}/*" if kind else PATTERNS[line]


def files_of(root: Path) -> Iterator[str]:
    """The files under a root, below it."""
    for folder, _, names in os.walk(root):
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), root)


def cases(root: Path, when: str) -> Iterator[Case]:
    """Every case: of each line of the list one file, and of files of messages each one."""
    there = sorted(files_of(root))
    for line in listed():
        found = [path for path in there if fnmatch.fnmatch(path, pattern_of(line) or "")]
        found = [path for path in found if path.count("/") == (pattern_of(line) or "").count("/")]
        for path in found if line.startswith(("queues", "delay", "state/log", "state/lock")) else found[:1]:
            attributes = os.listxattr(root / path)
            for how in FILE_DAMAGES:
                yield Case(when, path, how)
            for how in XATTR_DAMAGES:
                if f"user.mq.{how.rpartition(' ')[2]}" in attributes:
                    yield Case(when, path, how)
    for path in filter(lambda path: (root / path).is_dir(), FOLDERS):
        for how in FOLDER_DAMAGES:
            yield Case(when, path, how)


LOG_BYTES: Final = 8192
"""Of a segment of the log: what the content of these roots takes."""


def flips(root: Path, when: str, random: Random) -> Iterator[Case]:
    """Any bit of any file or attribute, for ever: each folder as often as the others."""
    files = [path for path in sorted(files_of(root)) if (root / path).stat().st_size]
    folders = sorted({os.path.dirname(path) for path in files})
    while True:
        folder = random.choice(folders)
        path = random.choice([each for each in files if os.path.dirname(each) == folder])
        names = [name for name in os.listxattr(root / path) if name.startswith("user.mq.")]
        name = random.choice([None, *names])
        size = len(os.getxattr(root / path, name)) if name else (root / path).stat().st_size
        if size:
            how = f"one bit of {name.rpartition('.')[2]}" if name else "one bit"
            yield Case(when, path, how, random.randrange(8 * min(size, LOG_BYTES)))


def unlisted(root: Path) -> set[str]:
    """The files under a root that no line of the list is about."""
    patterns = [pattern_of(line) or "" for line in listed()]
    return {path for path in files_of(root) if not any(fnmatch.fnmatch(path, pattern) for pattern in patterns)}


# A root with a bit of everything


async def fill(broker: Broker) -> None:
    """Put messages and records of every kind into a store."""
    for queue in ("orders", "dead", "fifo", "keyed"):
        await broker.create_queue(queue)
    await broker.change_settings("orders", {"dead_letter_queue": "dead", "max_receives": 3})
    await broker.change_settings("fifo", {"groups": True})
    await broker.publish("orders", b"plain")
    await broker.publish("orders", b"with attributes", ATTRIBUTES)
    await broker.publish("orders", b"with a side file", LONG)
    await broker.publish("orders", b"large" * 40_000, ATTRIBUTES)
    await broker.publish("orders", b"later", delay=3600)
    await broker.publish("keyed", b"keyed", key="k1")
    await broker.publish_many("fifo", [Draft(b"grouped", {"group": "g"})])
    await broker.publish("dead", b"held")
    await broker.fetch("dead")
    put = broker.declarations.put
    exchange = Exchange("/", "x", ExchangeType.FANOUT, durable=True)
    binding = Binding("/", "x", Destination(True, "orders"), "", {})
    for record in (exchange.record(), binding.record()):
        await put(*record)
    await put("cluster-record", "amqp-exchange.x", exchange.record()._asdict())
    await put(SCHEDULE, "nightly", {"name": "nightly", "queue": "orders"})
    await put("firing", "7", {"nightly": [1, 2, "id"]})
    incarnation = (await broker.declarations.records("queue"))["orders"]["incarnation"]
    consumer = {"incarnation": incarnation, "epoch": 1, "acknowledged": 0, "checkpoint": ""}
    await put("consumer", "orders/nightly", consumer)
    await put("write_job", "8d1f", {"state": "done", "at_ms": 1})
    await put("death", "000000000001-0123456789ab", {"entries": {}})
    await put("sqs-move", "dead", {"source": "dead"})
    await put("cluster-queue", "orders", {"number": 7})
    await put("cluster", "a", {"coordinator": "c"})
    await put("cluster-user", "u", {})
    await put("cluster-moved", "1", {"number": 1})
    await put("check", "messages", {"began_ms": 1})


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[tuple[FolderStorage, Broker]]:
    """A broker on a root with a log."""
    options = StorageOptions(log=True)
    storage = FolderStorage(f"posix:{root}", str(root), LinuxCalls(), options, mount=lambda _: LOGGED, syncfs=True)
    await storage.open()
    try:
        async with open_broker(storage, BrokerConfig(workers=1)) as broker:
            yield storage, broker
    finally:
        await storage.aclose()


async def start(root: Path) -> Seen:
    """Start a broker on a root, and look at everything in it."""
    seen = Seen("", {}, {})
    try:
        async with opened(root) as (storage, broker):
            health = health_of(storage)
            assert health is not None
            content = await _content(broker)
            seen = Seen("", content, _counts(health))
    except* StorageUnusable as errors:
        refused: BaseException = errors
        while isinstance(refused, BaseExceptionGroup):
            refused = refused.exceptions[0]
        seen = Seen(str(refused), {}, {})
    return seen


async def _content(broker: BrokerAPI) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in await broker.queues():
        found[f"queue {status.name}"] = status.settings
        for state in ("ready", "leased", "delayed"):
            for seen in await broker.peek(status.name, state=state):
                try:
                    body: object = await seen.message.body.read()
                except CorruptMessage as error:
                    body = f"damaged: {error}"
                await seen.message.body.aclose()
                found[f"message {seen.message.id}"] = (state, body, dict(seen.message.properties.attributes))
    for kind in _KINDS:
        for key, value in (await broker.declarations.records(kind)).items():
            found[f"{kind} {key}"] = value
    return found


_KINDS: Final = (
    "amqp-exchange", "amqp-binding", "cluster-record", SCHEDULE, "firing", "consumer", "write_job", "death",
    "sqs-move", "cluster-queue", "cluster", "cluster-user", "cluster-moved", "check", "key",
)  # fmt: skip


def _counts(health: Health) -> dict[str, int]:
    return {
        "damages": len(health.damages),
        "damaged": len(health.damaged),
        "unchecked": health.unchecked,
        "torn": health.torn,
        "skipped": health.skipped,
    }


def verdict(case: Case, before: Seen, after: Seen, logged: str) -> str:
    """How a case ended: one of the three that are allowed, or "SILENT" or "UNCLEAR" with what is wrong."""
    name = os.path.basename(case.path)
    if after.refused:
        is_clear = case.path in after.refused and re.search(
            r"mq doctor|mq restore|move it elsewhere|make room", after.refused
        )
        return f"refused: {after.refused}" if is_clear else f"UNCLEAR: {after.refused}"
    counted = sum(after.counts.values()) > sum(before.counts.values())
    if counted:
        is_named = name in logged or case.path in logged or (case.how in FOLDER_DAMAGES and "damaged:" in logged)
        return f"counted and named: {after.counts}" if is_named or after.counts["unchecked"] else f"UNCLEAR: {logged}"
    for path, why in NO_EFFECT.items():
        if case.path.startswith(path) and after.content == before.content:
            return f"no effect: {why}"
        if (
            f"{path}" == f"state/log {case.when}"
            and case.path.startswith("state/log")
            and after.content == before.content
        ):
            return f"no effect: {why}"
    if after.content == before.content:
        return f"no effect: {_harmless(case)}"
    is_message = case.path.startswith(("queues/", "delay", "new"))
    if is_message and set(before.content) >= set(after.content) and case.how in ("deleted", "emptied"):
        lost = {key for key in before.content if before.content[key] != after.content.get(key)}
        if all(key.startswith("message") for key in lost):
            return f"no effect: {BY_HAND['deleted message']}"
    return f"SILENT: {sorted(key for key in before.content if before.content.get(key) != after.content.get(key))}"


def _harmless(case: Case) -> str:
    if case.path.startswith("state/log"):
        is_live = case.when == "live"
        return "the files have it all" if is_live else "after a clean stop the log is empty: it is made anew"
    return "nothing was in it, or the same is written again"
