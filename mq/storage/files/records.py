"""Durable records: small JSON files below state/records/<kind>/, replaced without ever being half there.

A record's file is ``<key>.<version>``: ``k`` and the key percent-encoded, or ``d`` and its SHA-256 where that would be
too long for a file name. The file itself holds the whole key.

A new version is written beside the old one and synced with its folder; only then the old one goes. The highest version
that is whole JSON counts: an object torn anywhere is not JSON. This needs no atomic rename, so it holds everywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard
from urllib.parse import quote

from mq.storage.files.barrier import sync, sync_folder, synced_after
from mq.storage.files.calls import OPEN_NEW, OPEN_READ, Calls, FileKind, write_all

logger = logging.getLogger("mq.storage")

_LARGEST: Final = 16 * 1024 * 1024
_KIND: Final = re.compile(r"[a-z0-9_-]+")
_NAME: Final = re.compile(r"([kd][A-Za-z0-9_~%-]*)\.([0-9]{1,18})")
_LONGEST_FILE: Final = 200
_LOOKS: Final = 100


class Records:
    """Records by kind and key.

    Args:
        calls: the system.
        folder: the folder that holds one folder a kind.

    Attributes:
        passed_over: how many torn records were met, some of them perhaps being written by another process.
    """

    def __init__(self, calls: Calls, folder: str) -> None:
        self.passed_over = 0
        self._calls = calls
        self._folder = folder

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
        content = json.dumps({"key": key, "value": dict(value)}, ensure_ascii=False, sort_keys=True)
        path = f"{self._folder}/{kind}/{file}"
        with synced_after(self._calls, f"{self._folder}/{kind}"):
            made = self._write(path, max(versions, default=0) + 1, content.encode("utf-8", "surrogatepass"))
        return made, versions

    def forget(self, kind: str, key: str, versions: Sequence[int]) -> None:
        """Take versions of a record away; durable on return."""
        for version in versions:
            self._unlink(f"{self._folder}/{kind}/{_file(key)}.{version}")
        if versions:
            sync_folder(self._calls, f"{self._folder}/{kind}")  # no name may outlive its file: inodes are used again

    def drop(self, kind: str, key: str) -> bool:
        """Forget a record; durable on return. False when there was none."""
        file, versions = self._versions(kind, key)
        found = [self._unlink(f"{self._folder}/{kind}/{file}.{version}") for version in sorted(versions)]
        if self._calls.kind(f"{self._folder}/{kind}") is not None:
            sync_folder(self._calls, f"{self._folder}/{kind}")  # also when none is left: an earlier try may have failed
        return any(found)

    def sync(self) -> None:
        """Make durable what is there: a process that was killed may have left versions in memory only.

        Raises:
            OSError: the medium failed.
        """
        for kind, file in self._calls.names(self._folder):
            if file is not FileKind.FOLDER:
                continue
            for key, version in self._listed(kind):
                fd = self._calls.open(f"{self._folder}/{kind}/{key}.{version}", OPEN_READ)
                try:
                    sync(self._calls, fd)
                finally:
                    self._calls.close(fd)
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
        for file, version in sorted(self._listed(kind)):
            record = self._read(f"{self._folder}/{kind}/{file}.{version}")
            if record is not None and file == _file(record["key"]):
                found[record["key"]] = record["value"]
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

    def _unlink(self, path: str) -> bool:
        try:
            self._calls.unlink(path)
        except FileNotFoundError:  # another process was faster
            return False
        return True

    def newest(self, kind: str, keys: Iterable[str]) -> list[str]:
        """The paths of the files that hold these records now; those of which there is none are left out."""
        newest: dict[str, int] = {}
        for file, version in self._listed(kind):
            newest[file] = max(version, newest.get(file, 0))
        files = map(_file, keys)
        return [f"{self._folder}/{kind}/{file}.{newest[file]}" for file in files if file in newest]

    def versions(self, kind: str, key: str) -> list[int]:
        """The versions of a record that are there."""
        return self._versions(kind, key)[1]

    def _versions(self, kind: str, key: str) -> tuple[str, list[int]]:
        """The first part of a record's file names, and the versions that are there."""
        file = _file(key)
        return file, [version for other, version in self._listed(kind) if other == file]

    def _listed(self, kind: str) -> list[tuple[str, int]]:
        try:
            listed = self._calls.names(f"{self._folder}/{kind}")
        except FileNotFoundError:
            return []
        matches = (_NAME.fullmatch(name) for name, file in listed if file is FileKind.FILE)
        return [(match[1], int(match[2])) for match in matches if match is not None]

    def _make_kind(self, kind: str) -> None:
        assert _KIND.fullmatch(kind), f"not a kind of record: {kind!r}"
        if self._calls.kind(f"{self._folder}/{kind}") is None:
            with contextlib.suppress(FileExistsError):
                self._calls.mkdir(f"{self._folder}/{kind}")
            sync_folder(self._calls, self._folder)

    def _read(self, path: str) -> Mapping[str, Any] | None:
        return self._decoded(path, self._content(path))

    def _content(self, path: str) -> bytes:
        fd = self._calls.open(path, OPEN_READ)
        try:
            return b"".join(iter(lambda: self._calls.read(fd, _LARGEST), b""))
        finally:
            self._calls.close(fd)

    def _decoded(self, path: str, content: bytes) -> Mapping[str, Any] | None:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            self.passed_over += 1
            logger.warning("a torn record is passed over: %s", ascii(path))
            return None
        return value if _is_record(value) else None


def _is_record(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict) and isinstance(value.get("key"), str) and isinstance(value.get("value"), dict)


def _file(key: str) -> str:
    """A key as the first part of a file name."""
    text = key.encode("utf-8", "surrogatepass")
    plain = "k" + quote(text, safe="").replace(".", "%2E")
    return plain if len(plain) <= _LONGEST_FILE else "d" + hashlib.sha256(text).hexdigest()
