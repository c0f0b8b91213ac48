"""Durable records: small JSON files below state/records/<kind>/, replaced without ever being half there.

A record's file is ``<key>.<version>``. A new version is written beside the old one and synced with its folder;
only then the old one goes. The highest version that is whole JSON counts: an object torn anywhere is not JSON.
This needs no atomic rename, so it holds on every file system.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from mq.storage.barrier import sync_folder
from mq.storage.calls import OPEN_NEW, OPEN_READ, Calls, FileKind
from mq.storage.staging import write_all

logger = logging.getLogger("mq.storage")

_LARGEST: Final = 16 * 1024 * 1024
_KIND: Final = re.compile(r"[a-z0-9_-]+")
_NAME: Final = re.compile(r"([A-Za-z0-9_~%-]+)\.([0-9]{1,18})")


class Records:
    """Records by kind and key.

    Args:
        calls: the system.
        folder: the folder that holds one folder a kind.
    """

    def __init__(self, calls: Calls, folder: str) -> None:
        self._calls = calls
        self._folder = folder

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Keep `value`; durable on return. True when there was none.

        Raises:
            OSError: the old value stands, or nothing is known of the record.
        """
        self._make_kind(kind)
        versions = self._versions(kind, key)
        self._write(f"{self._folder}/{kind}/{_file(key)}.{max(versions, default=0) + 1}", value)
        sync_folder(self._calls, f"{self._folder}/{kind}")
        for version in versions:
            self._calls.unlink(f"{self._folder}/{kind}/{_file(key)}.{version}")
        return not versions

    def drop(self, kind: str, key: str) -> bool:
        """Forget a record; durable on return. False when there was none."""
        versions = self._versions(kind, key)
        for version in sorted(versions):
            self._calls.unlink(f"{self._folder}/{kind}/{_file(key)}.{version}")
        if versions:
            sync_folder(self._calls, f"{self._folder}/{kind}")
        return bool(versions)

    def all(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Every record of a kind."""
        found: dict[str, Mapping[str, Any]] = {}
        for key, version in sorted(self._listed(kind)):
            value = self._read(f"{self._folder}/{kind}/{_file(key)}.{version}")
            if value is not None:
                found[key] = value
        return found

    def _write(self, path: str, value: Mapping[str, Any]) -> None:
        fd = self._calls.open(path, OPEN_NEW)
        try:
            write_all(self._calls, fd, json.dumps(dict(value), ensure_ascii=False, sort_keys=True).encode())
            self._calls.fsync(fd)
        except OSError:
            self._calls.unlink(path)
            raise
        finally:
            self._calls.close(fd)

    def _versions(self, kind: str, key: str) -> list[int]:
        return [version for other, version in self._listed(kind) if other == key]

    def _listed(self, kind: str) -> list[tuple[str, int]]:
        try:
            listed = self._calls.names(f"{self._folder}/{kind}")
        except FileNotFoundError:
            return []
        matches = (_NAME.fullmatch(name) for name, file in listed if file is FileKind.FILE)
        return [(unquote(match[1]), int(match[2])) for match in matches if match is not None]

    def _make_kind(self, kind: str) -> None:
        assert _KIND.fullmatch(kind), f"not a kind of record: {kind!r}"
        if self._calls.kind(f"{self._folder}/{kind}") is None:
            self._calls.mkdir(f"{self._folder}/{kind}")
            sync_folder(self._calls, self._folder)

    def _read(self, path: str) -> Mapping[str, Any] | None:
        fd = self._calls.open(path, OPEN_READ)
        try:
            value = json.loads(self._calls.read(fd, _LARGEST))
        except ValueError:
            logger.warning("a torn record is passed over: %s", ascii(path))
            return None
        finally:
            self._calls.close(fd)
        return value if isinstance(value, dict) else None


def _file(key: str) -> str:
    """A key as the first part of a file name."""
    return quote(key, safe="").replace(".", "%2E")
