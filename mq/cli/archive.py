"""Messages of a queue as a file: the verbs ``export`` and ``import``, and the two formats, JSON Lines and tar.

A line of JSON has ``id``, ``state``, ``receives``, ``content_type``, ``content_encoding``, ``group``, ``attributes``,
and ``body`` or ``base64``. In a tar a member's name is the message's id and its content the body, byte for byte; the
rest stands in pax headers that tars take for extended attributes ``user.mq.export.*``. A tar made by anything else is
read, too: every file in it is a message. Files are written and read one message at a time; an import can be run again
where it stopped.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import click
from tqdm import tqdm

from mq.cli.remote import Remote, fail, json_option, queue_argument, remote, warn
from mq.cli.terminal import BodyWriter, say, say_json
from mq.client import Client, ClientError, Outcome, Outgoing, Received
from mq.client.codec import body_members, body_of, json_line, message_members
from mq.client.requests import cut

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
                raise ValueError("the line is not a JSON object")
            yield _outgoing(body_of(found), found)
        except ValueError as error:
            raise BadArchive(f"line {number} is not a valid message: {error}") from error


def _read_tar(file: IO[bytes]) -> Iterator[Outgoing]:
    try:
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield _outgoing(content.read(), _from_pax(member.pax_headers))
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadArchive(f"cannot read the tar archive: {error}") from error


def _from_pax(headers: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _TEXTS:
        if value := headers.get(_PAX + name):
            found[name] = value
    if attributes := headers.get(_PAX + "attributes"):
        found["attributes"] = json.loads(attributes)
    return found


def _outgoing(body: bytes, members: Mapping[str, Any]) -> Outgoing:
    given = {name: members.get(name) for name in _TEXTS}
    attributes = members.get("attributes") or {}
    if not all(isinstance(value, str | None) for value in given.values()) or not isinstance(attributes, dict):
        raise ValueError(
            '"content_type", "content_encoding" and "group" must be strings, and "attributes" must be an object'
        )
    return Outgoing(body, attributes={str(name): str(value) for name, value in attributes.items()}, **given)


def _described(message: Received) -> dict[str, Any]:
    """What is known of a message besides its id and body."""
    return {"state": message.state, **message_members(message)}


_TEXTS: Final = ("content_type", "content_encoding", "group")
"""Members of a message that are texts, and may be absent."""
_ORDER: Final = ("delayed", "leased", "ready")
"""The order in which messages of a paused queue move: read in this order, no message is missed."""


_format_option = click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="File format. [default: determined by the suffix of FILE; jsonl if FILE is -]",
)


@click.command("export")
@queue_argument
@click.argument("file", default="-", type=click.Path(allow_dash=True, dir_okay=False))
@_format_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_ORDER),
    help="Export only messages in this state. Can be repeated.",
)
@remote
def export_command(remote: Remote, queue: str, file: str, kind: str | None, states: tuple[str, ...]) -> None:
    """Copy all messages in a queue to a file.

    The messages stay in the queue. FILE is created only when the export is complete. Messages that are published,
    fetched or removed during the export may be missing. For a consistent copy, pause the queue first.
    """
    try:
        with remote.client() as client, _new_file(file) as target:
            archive = writer(kind or format_of(file), target, file)
            _export(client, queue, archive, states or _ORDER)
            archive.close()
    except OSError as error:
        fail(f"cannot write {click.format_filename(file)}: {error.strerror or error}")


def _export(client: Client, queue: str, archive: Writer, states: tuple[str, ...]) -> None:
    """Write every message once, though it may change its state meanwhile."""
    found = client.queue(queue)
    seen: set[str] = set()
    with tqdm(total=sum(getattr(found, state) for state in states), disable=None, unit=" messages") as bar:
        for state in states:
            for message in client.browse(queue, state=state):
                if message.id not in seen:
                    seen.add(message.id)
                    archive.add(message)
                    bar.update()


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """Standard output, or a file that gets its name when all went well, and is on the disk then."""
    if path == "-":
        output = BodyWriter()
        yield cast(IO[bytes], output)
        output.end()
        return
    folder, name = os.path.split(os.path.abspath(path))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name[:100]}.", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


@click.command("import")
@queue_argument
@click.argument("file", default="-", type=click.Path(exists=True, allow_dash=True, dir_okay=False))
@_format_option
@click.option(
    "--run",
    metavar="NAME",
    help="Resume an interrupted import; NAME is the run name that mq printed when the import was interrupted. Messages "
    "that have already been imported are skipped.",
)
@click.option(
    "--no-keys",
    is_flag=True,
    help=(
        "Do not send idempotency keys. Required if the daemon runs with --peers. An import without keys cannot "
        "be resumed."
    ),
)
@click.option(
    "--no-groups",
    is_flag=True,
    help="Import the messages without their message groups. Required if the queue does not have message groups "
    "enabled.",
)
@json_option
@remote
def import_command(
    remote: Remote,
    queue: str,
    file: str,
    kind: str | None,
    run: str | None,
    no_keys: bool,
    no_groups: bool,
    as_json: bool,
) -> None:
    """Publish the messages in an export file.

    Messages keep their order and get new IDs. If an import is interrupted, mq prints the command that resumes it. The
    daemon remembers for one day which messages have already been imported.
    """
    if run is not None and no_keys:
        raise click.UsageError("--run requires idempotency keys. Omit --no-keys")
    run = run or secrets.token_hex(4)
    importing = _Import(queue, None if no_keys else run, not no_groups)
    try:
        with remote.client(keys=False) as client, ExitStack() as stack:
            source = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            importing.all(client, source, kind or format_of(file))
    except BadArchive as error:
        fail(f"{importing.sum()}. {error}")
    except (ClientError, KeyboardInterrupt):
        stored = importing.sum()
        warn(stored if no_keys else f"{stored}. To resume the import, run the same command with --run {run}")
        raise
    if as_json:
        say_json({"stored": importing.stored, "there": importing.there})
    else:
        say(importing.stored)


class _Import:
    """One run.

    Args:
        run: its name, from which each message's key is made; None for no keys.
    """

    def __init__(self, queue: str, run: str | None, with_groups: bool) -> None:
        self.stored = 0
        self.there = 0
        self._queue = queue
        self._run = run
        self._with_groups = with_groups

    def all(self, client: Client, source: IO[bytes], kind: str) -> None:
        """Publish batch after batch, up to the first one with a refused entry."""
        with tqdm(total=_size(source), disable=None, unit="B", unit_scale=True) as bar:
            for batch in cut(self._keyed(read(kind, source))):
                self._count(client.publish_many(self._queue, batch))
                bar.update(_position(source, bar.n) - bar.n)

    def sum(self) -> str:
        """What was done so far, in words."""
        before = f", {self.there} already stored before" if self.there else ""
        return f"messages stored: {self.stored}{before}"

    def _keyed(self, messages: Iterator[Outgoing]) -> Iterator[Outgoing]:
        for number, message in enumerate(messages, 1):
            key = None if self._run is None else f"mq-import-{self._run}-{number}"
            yield replace(message, key=key, group=message.group if self._with_groups else None)

    def _count(self, outcomes: list[Outcome]) -> None:
        before = self.stored + self.there
        self.stored += sum(outcome.status == 201 for outcome in outcomes)
        self.there += sum(outcome.status == 200 for outcome in outcomes)
        for number, outcome in enumerate(outcomes, before + 1):
            if not outcome.ok:
                raise ClientError(f"message {number} was refused: {outcome.detail}")


def _size(source: IO[bytes]) -> int | None:
    """Bytes of a plain file; None for a pipe."""
    if not source.seekable():
        return None
    end = source.seek(0, 2)
    source.seek(0)
    return end


def _position(source: IO[bytes], otherwise: int) -> int:
    return source.tell() if source.seekable() else otherwise
