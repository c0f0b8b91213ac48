"""The verb ``send``: publishes what is in files, on standard input, or in lines of these."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import click

from mq.cli.commands import REFUSED, Duration, Number
from mq.cli.remote import Remote, json_option, queue_argument, remote, warn
from mq.cli.terminal import say, say_json
from mq.client import Client, ClientError, Outcome, Outgoing, Published
from mq.client.requests import cut
from mq.message import shorten

_CHUNK: Final = 256 * 1024
_IN_MEMORY: Final = 8 << 20


def attributes_of(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The value of options NAME=TEXT.

    Raises:
        click.BadParameter: one is written otherwise.
    """
    pairs = [text.partition("=") for text in given]
    if any(not name or not equals for name, equals, _ in pairs):
        raise click.BadParameter("write NAME=TEXT")
    return {name.lower(): value for name, _, value in pairs}


def time_of(context: click.Context, parameter: click.Parameter, given: str | None) -> datetime | None:
    """The value of an option that is a time.

    Raises:
        click.BadParameter: it is none.
    """
    try:
        return None if given is None else datetime.fromisoformat(given).astimezone()  # of this machine, without a zone
    except (ValueError, OverflowError):
        raise click.BadParameter("enter the time as 2030-05-01T09:00 (local time) or 2030-05-01T09:00+02:00") from None


_MESSAGE_OPTIONS: Final = (
    click.option("--content-type", metavar="TYPE", help="Content type of each message body, such as application/json."),
    click.option("--content-encoding", metavar="CODING", help="Content encoding of each message body, such as gzip."),
    click.option(
        "--delay", type=Duration(), metavar="DURATION", help="Delay before each message becomes available to consumers."
    ),
    click.option(
        "--ttl",
        type=Duration(0.001),
        metavar="DURATION",
        help="Time to live: a message that is not fetched within this time expires.",
    ),
    click.option(
        "--priority",
        metavar="NUMBER",
        type=Number(0, 255),
        help="Priority from 0 to 255; messages with a higher priority are delivered first. Requires max_priority to be "
        "set on the queue.",
    ),
    click.option(
        "--attribute",
        "attributes",
        multiple=True,
        callback=attributes_of,
        metavar="NAME=TEXT",
        help="Attribute to store with each message. Can be repeated.",
    ),
)


def message_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options for what a message has beside its body, by their names in :class:`Outgoing`."""
    for option in reversed(_MESSAGE_OPTIONS):
        command = option(command)
    return command


class _BodyFile(click.Path):
    """A file with a message; where there is none of that name, the message itself was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if Path(value).exists():
                raise
            message = shlex.quote(shorten(value)[1:-1])
            self.fail(
                f"file {shorten(value)} does not exist. To send {shorten(value)} as the message text, use -m {message}",
                param,
                error.ctx,
            )


@click.command("send")
@queue_argument
@click.argument("files", nargs=-1, type=_BodyFile(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option("-m", "--message", help="Send this text as the message body instead of reading standard input or files.")
@click.option(
    "--lines", is_flag=True, help="Publish each line as a message, without its line ending. Empty lines are skipped."
)
@message_options
@click.option(
    "--at",
    callback=time_of,
    metavar="TIME",
    help="Time at which the messages become available, such as 2030-05-01T09:00.",
)
@click.option(
    "--group",
    metavar="NAME",
    help="Message group. Messages in a group are delivered in order, one at a time; the queue must have message groups "
    "enabled.",
)
@click.option(
    "--key",
    metavar="KEY",
    help=(
        "Idempotency key; allowed only if a single message is sent. If a message with this key has already been "
        "stored, nothing is stored."
    ),
)
@click.option(
    "--no-keys",
    is_flag=True,
    help="Do not send idempotency keys. Required if the daemon runs with --peers: such a daemon does not support keys.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print message IDs.")
@json_option
@remote
def send_command(
    remote: Remote,
    queue: str,
    files: tuple[str, ...],
    message: str | None,
    lines: bool,
    key: str | None,
    no_keys: bool,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Publish messages and print their IDs.

    The message bodies are read from standard input or from files. Each file becomes one message; with --lines, each
    line becomes one message.
    """
    if message is not None and (files or lines):
        raise click.UsageError("--message cannot be combined with files or --lines")
    if key is not None and (lines or len(files) > 1):
        raise click.UsageError("--key can only be used with a single message")
    show = _Shown(quiet, as_json)
    with remote.client(keys=not no_keys) as client:
        if fields["priority"]:
            warn_without_priorities(client, queue)
        sender = _Sender(client, queue, fields, show)
        if message is not None:
            sender.whole("", message.encode(), key)
            return
        for file in files or ("-",):
            sender.lines(file) if lines else sender.file(file, key)


def warn_without_priorities(client: Client, queue: str) -> None:
    """Warn on standard error if a priority has no effect in this queue."""
    with suppress(ClientError):  # the user may not look at the queue, and may publish to it all the same
        if client.queue(queue).settings.get("max_priority") == 0:
            warn(
                f"queue {shorten(queue)} does not support priorities, so --priority has no effect. To enable ten "
                f"priorities, run mq queue set {queue} max_priority=9"
            )


class _Shown:
    """Prints the outcome of each message."""

    def __init__(self, quiet: bool, as_json: bool) -> None:
        self._quiet = quiet
        self._as_json = as_json

    def __call__(self, file: str, id: str, *, is_new: bool) -> None:
        if self._quiet:
            return
        if self._as_json:
            say_json({"id": id, "new": is_new, **({"file": file} if file else {})})
        else:
            say(id)


class _Sender:
    """Publishes to one queue."""

    def __init__(self, client: Client, queue: str, fields: Mapping[str, Any], show: _Shown) -> None:
        self._client = client
        self._queue = queue
        self._fields = fields
        self._show = show

    def whole(self, file: str, body: bytes | Callable[[], Iterator[bytes]], key: str | None) -> None:
        """One message."""
        published: Published = self._client.publish(self._queue, body, key=key, **self._fields)
        self._show(file, published.id, is_new=published.is_new)

    def file(self, file: str, key: str | None) -> None:
        """A file's content as one message, whatever its length; what came through a pipe is kept for another try."""
        with _spooled() if file == "-" else Path(file).open("rb") as source:
            self.whole(file, lambda: _chunks(source), key)

    def lines(self, file: str) -> None:
        """Each line as one message. What can be read at once goes in one batch: nothing waits for a batch to fill."""
        number = 0
        for lines in _read_lines(file):
            for batch in cut(Outgoing(line, **self._fields) for line in lines if line):
                outcomes = self._client.publish_many(self._queue, batch)
                number = self._told(file, outcomes, number)

    def _told(self, file: str, outcomes: list[Outcome], number: int) -> int:
        """Show what was published; end when something was not. The count of messages so far."""
        for outcome in outcomes:
            number += 1
            if outcome.ok:
                self._show(file, outcome.id, is_new=outcome.status == 201)
            else:
                warn(f"message {number} of {click.format_filename(file)} was refused: {outcome.detail}")
        if not all(outcome.ok for outcome in outcomes):
            sys.exit(REFUSED)
        return number


@contextmanager
def _spooled() -> Iterator[IO[bytes]]:
    """Standard input as a file that can be read more than once."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        yield spool


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The whole file, from its beginning, each time."""
    file.seek(0)
    while chunk := file.read(_CHUNK):
        yield chunk


def _read_lines(file: str) -> Iterator[list[bytes]]:
    """The lines of a file or of standard input, as many at a time as can be read without waiting."""
    rest = b""
    with ExitStack() as stack:
        source = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
        read = getattr(source, "read1", source.read)
        while chunk := read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            yield lines
    yield [rest]
