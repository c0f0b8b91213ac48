"""Messages of a queue as a file: JSON Lines, or a tar with one file a message. Written and read one message at a time.

A line of JSON has ``id``, ``state``, ``receives``, ``content_type``, ``attributes``, and ``body`` or ``base64``. In a
tar a member's name is the message's id and its content the body, byte for byte; the rest stands in pax headers that
tars take for extended attributes ``user.mq.export.*``. A tar made by anything else is read, too: every file in it is a
message.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final, Protocol

from mq.client import Outgoing, Received
from mq.client.codec import body_members, body_of, json_line

FORMATS: Final = ("tar", "jsonl")
_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_PAX: Final = "SCHILY.xattr.user.mq.export."
"""Other names make GNU tar complain of each member."""


class BadArchive(Exception):
    """The file holds something that is no message. The text says where."""


class Writer(Protocol):
    """Takes messages until it is closed."""

    def add(self, message: Received) -> None:
        """Write one."""

    def close(self) -> None:
        """Write what ends the file. The file itself stays open."""


def format_of(path: str) -> str:
    """The format that a file's name asks for."""
    return "tar" if path.endswith(_TAR_SUFFIXES) else "jsonl"


class LinesWriter:
    """JSON Lines to an open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, message: Received) -> None:
        """Write one."""
        self._file.write(json_line({"id": message.id, **_described(message), **body_members(message.body)}))

    def close(self) -> None:
        """Nothing ends it."""


class TarWriter:
    """A tar to an open file; compressed as `compression` says: "", "gz", "bz2" or "xz"."""

    def __init__(self, file: IO[bytes], compression: str = "") -> None:
        mode: Any = f"w|{compression}"
        self._tar = tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT)  # noqa: SIM115 - close() ends it

    def add(self, message: Received) -> None:
        """Write one."""
        member = tarfile.TarInfo(message.id)
        member.size = len(message.body)
        member.mode = 0o600
        member.pax_headers = {
            _PAX + name: value if isinstance(value, str) else json.dumps(value)
            for name, value in _described(message).items()
        }
        self._tar.addfile(member, io.BytesIO(message.body))

    def close(self) -> None:
        """Write the end of the tar."""
        self._tar.close()


def writer(format: str, file: IO[bytes], path: str) -> Writer:
    """A writer of that format; a tar is compressed as the end of `path` says."""
    if format == "jsonl":
        return LinesWriter(file)
    ending = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}
    return TarWriter(file, next((kind for suffix, kind in ending.items() if path.endswith(suffix)), ""))


def read(format: str, file: IO[bytes]) -> Iterator[Outgoing]:
    """The messages in a file, in their order, without keys.

    Raises:
        BadArchive: something in it is no message.
    """
    readers: dict[str, Callable[[IO[bytes]], Iterator[Outgoing]]] = {"jsonl": _read_lines, "tar": _read_tar}
    return readers[format](file)


def _read_lines(file: IO[bytes]) -> Iterator[Outgoing]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError("it is no JSON object")
            yield _outgoing(body_of(found), found)
        except ValueError as error:
            raise BadArchive(f"line {number} is no message: {error}") from error


def _read_tar(file: IO[bytes]) -> Iterator[Outgoing]:
    try:
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield _outgoing(content.read(), _from_pax(member.pax_headers))
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadArchive(f"the tar cannot be read: {error}") from error


def _from_pax(headers: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if content_type := headers.get(_PAX + "content_type"):
        found["content_type"] = content_type
    if attributes := headers.get(_PAX + "attributes"):
        found["attributes"] = json.loads(attributes)
    return found


def _outgoing(body: bytes, members: Mapping[str, Any]) -> Outgoing:
    content_type, attributes = members.get("content_type"), members.get("attributes") or {}
    if not isinstance(content_type, str | None) or not isinstance(attributes, dict):
        raise ValueError('its "content_type" is no text, or its "attributes" no object')
    return Outgoing(body, content_type, attributes={str(name): str(value) for name, value in attributes.items()})


def _described(message: Received) -> dict[str, Any]:
    """What is known of a message besides its id and body."""
    found: dict[str, Any] = {
        "state": message.state,
        "receives": message.receives,
        "content_type": message.content_type,
    }
    if message.attributes:
        found["attributes"] = dict(message.attributes)
    return found
