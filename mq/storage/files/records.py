"""Durable records: small JSON files below state/records/<kind>/, each with its checksum, replaced without ever being
half there.

A record's file is ``<key>.<version>``: ``k`` and the key percent-encoded, or ``d`` and its SHA-256 where that would be
too long for a file name. The file itself holds the whole key.

A new version is written beside the old one and synced with its folder; only then the old one goes. The highest version
whose checksum matches counts. This needs no atomic rename, so it holds everywhere.

Where one process alone changes the records, it keeps the names of their files in memory (:meth:`Records.keep_names`):
a change then costs the same however many records there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard
from urllib.parse import quote, unquote

from mq.message import with_checksum, without_checksum
from mq.storage.files.calls import OPEN_NEW, OPEN_READ, Calls, FileKind, UnsyncedCalls, opened, write_all
from mq.storage.files.sync import sync, sync_folder, synced_after
from mq.storage.interface import Damage

logger = logging.getLogger("mq.storage")

_LARGEST: Final = 16 * 1024 * 1024
_KIND: Final = re.compile(r"[a-z0-9_-]+")
_NAME: Final = re.compile(r"([kd][A-Za-z0-9_~%-]*)\.([0-9]{1,18})")
_WRITTEN: Final = re.compile(rb"[^\0]* [0-9a-f]{8}")
"""What a file looks like that was written to its end, whatever became of its bytes since: JSON has no zeros."""
_LONGEST_FILE: Final = 200
_LONGEST_HINT: Final = 1 << 20
_LOOKS: Final = 100


class _KeptNames:
    """The names of all records' files, shared by all :class:`Records` of a root.

    Attributes:
        kinds: of each kind of record, the first parts of its files' names, and the versions of each.
        is_new: whether records have come or gone since the inventory was written.
        is_less: whether records have gone since then.
        damaged: versions that cannot be read, by kind and file. They stay until the record is dropped.
    """

    def __init__(self, kinds: dict[str, dict[str, tuple[int, ...]]]) -> None:
        self.kinds = kinds
        self.is_new = True
        self.is_less = True
        self.damaged: set[tuple[str, str, int]] = set()


class Records:
    """Records by kind and key.

    Args:
        folder: the folder that holds one folder a kind.

    Attributes:
        passed_over: how many torn records were met, some of them perhaps being written by another process.
    """

    def __init__(self, calls: Calls, folder: str) -> None:
        self.passed_over = 0
        self._calls = calls
        self._folder = folder
        self._kept: _KeptNames | None = None

    def keep_names(self) -> None:
        """Keep the names of all files in memory from now on: no other process changes records."""
        self._kept = _KeptNames({kind: self._listed(kind) for kind in self.kinds()})

    def kinds(self) -> list[str]:
        """The kinds of which there are records, or were."""
        return [kind for kind, file in self._calls.names(self._folder) if file is FileKind.FOLDER]

    def files(self, kind: str) -> set[str]:
        """The first parts of the names of all files of a kind."""
        return set(self._names(kind))

    def through(self, calls: Calls) -> Records:
        """The same records by other calls. Both know of each other's changes where names are kept."""
        others = Records(calls, self._folder)
        others._kept = self._kept
        return others

    def unsynced(self) -> Records:
        """The same records by calls that do not sync."""
        return self.through(UnsyncedCalls(self._calls))

    def new_names(self) -> dict[str, list[str]] | None:
        """The first parts of all files' names by kind, if records have come or gone since the last call; else None.
        May be called in another thread."""
        if self._kept is None or not self._kept.is_new:
            return None
        self._kept.is_new = self._kept.is_less = False  # first: what comes meanwhile is in the next list
        return {kind: list(names) for kind, names in list(self._kept.kinds.items())}

    def names_are_listed(self, listed: Mapping[str, Sequence[str]], but: str) -> None:
        """Let :meth:`new_names` return nothing until records come or go, if an inventory lists all names.

        Args:
            listed: by kind.
            but: a kind that is not listed.
        """
        if self._kept is not None:
            there = {kind: set(files) for kind, files in self._kept.kinds.items() if files and kind != but}
            self._kept.is_new = there != {kind: set(files) for kind, files in listed.items()}
            self._kept.is_less = any(set(files) - there.get(kind, set()) for kind, files in listed.items())

    @property
    def have_gone(self) -> bool:
        """Whether records have gone since :meth:`new_names` was last called."""
        return self._kept is not None and self._kept.is_less

    def names_are_new(self, *, have_gone: bool) -> None:
        """Let :meth:`new_names` return all names next time.

        Args:
            have_gone: whether records had gone before the last call of it.
        """
        if self._kept is not None:
            self._kept.is_new = True
            self._kept.is_less = self._kept.is_less or have_gone

    def check(
        self, *, is_settled: bool, answered: Container[tuple[str, str]] = (), unlogged: str = ""
    ) -> dict[tuple[str, str], Damage]:
        """Read all records, and take away versions that a later one has replaced. Only while no other process changes
        records.

        Args:
            is_settled: whether no crash can have left a torn version. Otherwise a record of which only a first version
                is there, not written to its end, was never answered: it is taken away.
            answered: records that are known to have been durable, by kind and first part of the file's name.
            unlogged: a kind of which a crash can always have left a torn version.

        Returns:
            The damaged ones by kind and first part of the file's name.
        """
        found: dict[tuple[str, str], Damage] = {}
        for kind in self.kinds():
            for name, type in self._calls.names(f"{self._folder}/{kind}"):
                match = _NAME.fullmatch(name)
                if match is not None and type is not FileKind.FILE:
                    path = f"{self._folder}/{kind}/{name}"
                    found[kind, match[1]] = Damage(kind, key_of(match[1]), path, "the path is a folder or a link")
            for file in sorted(self._listed(kind)):
                damage = self._check_one(kind, file, is_settled=is_settled and kind != unlogged)
                if damage is not None and not is_settled and (kind, file) not in answered:
                    damage = self._forget_unanswered(kind, file, damage)
                if damage is not None:
                    found[kind, file] = damage
        return found

    def _check_one(self, kind: str, file: str, *, is_settled: bool) -> Damage | None:
        versions = sorted(self._versions_of(kind, file), reverse=True)
        damage: Damage | None = None
        for version in versions:
            path = f"{self._folder}/{kind}/{file}.{version}"
            content = self._content(path)
            try:
                record = decode_record(content)
                if file != file_of(record["key"]):
                    raise ValueError(f"the file contains the record {record['key']!r}, which belongs in another file")
            except ValueError as error:
                damage = damage or Damage(kind, key_of(file), path, str(error), content[:_LONGEST_HINT])
                self._note_damaged(kind, file, version)
                continue
            if damage is None or not is_settled:
                self._forget_but(kind, file, version)
                return None
            return damage._replace(why=f"{damage.why}; the older version {version} is used instead")
        return damage

    def _forget_unanswered(self, kind: str, file: str, damage: Damage) -> Damage | None:
        """Take a record away that a crash can have left half-written when it was put for the first time. Else it is
        damaged. Durable on return."""
        if self._versions_of(kind, file) != [1] or _WRITTEN.fullmatch(self._content(damage.path)):
            return damage
        logger.warning("removed a partially written record that was never confirmed: %s", ascii(damage.path))
        if self._kept is not None:
            self._kept.damaged.discard((kind, file, 1))
        self._unlink(kind, file, 1)
        sync_folder(self._calls, f"{self._folder}/{kind}")
        return None

    def _note_damaged(self, kind: str, file: str, version: int) -> None:
        if self._kept is not None:
            self._kept.damaged.add((kind, file, version))

    def _forget_but(self, kind: str, file: str, version: int) -> None:
        """Take away all other versions of a record. Durable on return."""
        others = [other for other in self._versions_of(kind, file) if other != version]
        for other in others:
            if other > version:
                logger.warning("removed a partially written record: %s", ascii(f"{self._folder}/{kind}/{file}.{other}"))
            elif self._decoded(path := f"{self._folder}/{kind}/{file}.{other}", self._content(path)) is None:
                self._note_damaged(kind, file, other)  # an operator has written a later one, and not moved it away
                continue
            self._unlink(kind, file, other)
        if others:
            sync_folder(self._calls, f"{self._folder}/{kind}")

    def drop_torn(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Take away versions that a put of this value can have left when it was refused half-way: parts of its content,
        with zeros for what the medium does not have. Any other version that cannot be read is damaged, and stays."""
        content = encode_record(key, value)
        file, versions = self._versions(kind, key)
        for version in versions:
            found = self._content(f"{self._folder}/{kind}/{file}.{version}")
            is_torn = found != content and len(found) <= len(content)
            if is_torn and all(byte in (0, meant) for byte, meant in zip(found, content, strict=False)):
                self._unlink(kind, file, version)

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Keep `value`; durable on return. True when there was none.

        Raises:
            OSError: the old value stands, or nothing is known of the record.
        """
        _, older = self.put_beside(kind, key, value)
        self.forget(kind, key, older)
        return not older

    def put_beside(self, kind: str, key: str, value: Mapping[str, Any]) -> tuple[int, list[int]]:
        """Keep `value` in a version of its own: its number, and those of the older ones, which are still there.

        Raises:
            OSError: as :meth:`put`.
        """
        self._make_kind(kind)
        file, versions = self._versions(kind, key)
        content = encode_record(key, value)
        path = f"{self._folder}/{kind}/{file}"
        with synced_after(self._calls, f"{self._folder}/{kind}"):
            made = self._write(path, max(versions, default=0) + 1, content)
            self._note_versions(kind, file, (*versions, made))
        return made, versions

    def forget(self, kind: str, key: str, versions: Sequence[int]) -> None:
        """Take versions of a record away, but damaged ones; durable on return."""
        file = file_of(key)
        if self._kept is not None:
            versions = [version for version in versions if (kind, file, version) not in self._kept.damaged]
        for version in versions:
            self._unlink(kind, file, version)
        if versions and not isinstance(self._calls, UnsyncedCalls):
            sync_folder(self._calls, f"{self._folder}/{kind}")  # no name may outlive its file: inodes are used again

    def drop(self, kind: str, key: str) -> bool:
        """Forget a record; durable on return. False when there was none."""
        file, versions = self._versions(kind, key)
        found = [self._unlink(kind, file, version) for version in sorted(versions)]
        if not isinstance(self._calls, UnsyncedCalls) and self._calls.kind(f"{self._folder}/{kind}") is not None:
            sync_folder(self._calls, f"{self._folder}/{kind}")  # also when none is left: an earlier try may have failed
        return any(found)

    def sync(self) -> None:
        """Make durable what is there: a process that was killed may have left versions in memory only."""
        for kind in self.kinds():
            for file, versions in self._listed(kind).items():
                for version in versions:
                    with opened(self._calls, f"{self._folder}/{kind}/{file}.{version}", OPEN_READ) as fd:
                        sync(self._calls, fd)
            sync_folder(self._calls, f"{self._folder}/{kind}")

    def all(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Every record of a kind."""
        for _ in range(_LOOKS):
            with contextlib.suppress(FileNotFoundError):  # another process put or dropped one just now: look again
                return self._all(kind)
        return self._all(kind)

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """A record that no other process changes; None where there is none."""
        return self.reading(kind, key)()

    def reading(self, kind: str, key: str) -> Callable[[], Mapping[str, Any] | None]:
        """What returns a record as it is now, whenever it is called: all that can fail is done here."""
        file, versions = self._versions(kind, key)
        paths = [f"{self._folder}/{kind}/{file}.{version}" for version in sorted(versions, reverse=True)]
        contents = [(path, self._content(path)) for path in paths]

        def read() -> Mapping[str, Any] | None:
            found = (self._decoded(path, content) for path, content in contents)
            return next((record["value"] for record in found if record is not None and record["key"] == key), None)

        return read

    def _all(self, kind: str) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for file, versions in sorted(self._listed(kind).items()):
            for version in sorted(versions, reverse=True):
                record = self._read(f"{self._folder}/{kind}/{file}.{version}")
                if record is not None and file == file_of(record["key"]):
                    found[record["key"]] = record["value"]
                    break
        return found

    def _write(self, file: str, version: int, content: bytes) -> int:
        path = f"{file}.{version}"
        try:
            fd = self._calls.open(path, OPEN_NEW)
        except FileExistsError:  # another process puts it just now: the later one counts
            return self._write(file, version + 1, content)
        try:
            write_all(self._calls, fd, content)
            sync(self._calls, fd)
        except OSError:
            self._calls.unlink(path)
            raise
        finally:
            self._calls.close(fd)
        return version

    def _unlink(self, kind: str, file: str, version: int) -> bool:
        is_there = True
        try:
            self._calls.unlink(f"{self._folder}/{kind}/{file}.{version}")
        except FileNotFoundError:  # another process was faster
            is_there = False
        if self._kept is not None:
            self._note_versions(kind, file, [other for other in self._versions_of(kind, file) if other != version])
        return is_there

    def newest(self, kind: str, keys: Iterable[str]) -> list[str]:
        """The paths of the files that hold these records now; those of which there is none are left out."""
        names = self._names(kind)
        files = ((file, names.get(file)) for file in map(file_of, keys))
        return [f"{self._folder}/{kind}/{file}.{max(versions)}" for file, versions in files if versions]

    def versions(self, kind: str, key: str) -> list[int]:
        """The versions of a record that are there."""
        return self._versions(kind, key)[1]

    def _versions(self, kind: str, key: str) -> tuple[str, list[int]]:
        file = file_of(key)
        return file, self._versions_of(kind, file)

    def _versions_of(self, kind: str, file: str) -> list[int]:
        return list(self._names(kind).get(file, ()))

    def _names(self, kind: str) -> Mapping[str, tuple[int, ...]]:
        return self._listed(kind) if self._kept is None else self._kept.kinds.get(kind, {})

    def _note_versions(self, kind: str, file: str, versions: Iterable[int]) -> None:
        """Keep in memory which versions of a record are there now."""
        # Each change is one item of a dictionary, for a checkpoint reads them in another thread.
        if self._kept is None:
            return
        names, left = self._kept.kinds.setdefault(kind, {}), tuple(versions)
        is_new = (file in names) != bool(left)
        if left:
            names[file] = left
        else:
            names.pop(file, None)
        if is_new:  # last: a list that is made meanwhile may have missed it
            self._kept.is_new = True
            self._kept.is_less = self._kept.is_less or not left

    def _listed(self, kind: str) -> dict[str, tuple[int, ...]]:
        try:
            listed = self._calls.names(f"{self._folder}/{kind}")
        except FileNotFoundError:
            return {}
        found: dict[str, tuple[int, ...]] = {}
        matches = (_NAME.fullmatch(name) for name, file in listed if file is FileKind.FILE)
        for match in filter(None, matches):
            found[match[1]] = (*found.get(match[1], ()), int(match[2]))
        return found

    def _make_kind(self, kind: str) -> None:
        assert _KIND.fullmatch(kind), f"not a kind of record: {kind!r}"
        if self._calls.kind(f"{self._folder}/{kind}") is None:
            with contextlib.suppress(FileExistsError):
                self._calls.mkdir(f"{self._folder}/{kind}")
            sync_folder(self._calls, self._folder)

    def _read(self, path: str) -> Mapping[str, Any] | None:
        return self._decoded(path, self._content(path))

    def _content(self, path: str) -> bytes:
        with opened(self._calls, path, OPEN_READ) as fd:
            return b"".join(iter(lambda: self._calls.read(fd, _LARGEST), b""))

    def _decoded(self, path: str, content: bytes) -> Mapping[str, Any] | None:
        try:
            return decode_record(content)
        except ValueError as error:
            self.passed_over += 1
            logger.warning("ignoring unreadable record %s: %s", ascii(path), error)
            return None


def encode_record(key: str, value: Mapping[str, Any]) -> bytes:
    """The content of a record's file."""
    content = json.dumps({"key": key, "value": dict(value)}, ensure_ascii=False, sort_keys=True)
    return with_checksum(content.encode("utf-8", "surrogatepass"))


def decode_record(content: bytes) -> Mapping[str, Any]:
    """The key and the value in a record's file.

    Raises:
        ValueError: it is not as mq wrote it.
    """
    try:
        record = json.loads(without_checksum(content))
    except RecursionError as error:
        raise ValueError("the record is nested too deeply, although its checksum matches") from error
    if not _is_record(record):
        raise ValueError("the record has no key or no value, although its checksum matches")
    return record


def _is_record(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict) and isinstance(value.get("key"), str) and isinstance(value.get("value"), dict)


def file_of(key: str) -> str:
    """The first part of the file name of a record with this key."""
    text = key.encode("utf-8", "surrogatepass")
    plain = "k" + quote(text, safe="").replace(".", "%2E")
    return plain if len(plain) <= _LONGEST_FILE else "d" + hashlib.sha256(text).hexdigest()


def key_of(file: str) -> str | None:
    """The key that the first part of a file name stands for; None where it is a digest."""
    return unquote(file[1:], errors="surrogatepass") if file.startswith("k") else None
