"""What the verbs that speak to a daemon have in common: its address, the user, how data is shown, how they end."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from mq.cli.commands import INTERRUPTED, NOT_NOW, REFUSED, Duration
from mq.cli.terminal import say
from mq.client import (
    Access,
    Client,
    ClientError,
    Interrupted,
    NotAllowed,
    NotFound,
    QueueFull,
    Retry,
    Unavailable,
    Unreachable,
)
from mq.client.transport import DEFAULT_URL
from mq.message import shorten
from mq.settings import nearest

TOKEN_VARIABLE: Final = "MQ_TOKEN"
_FLAGS: Final = ("url", "credentials", "ca", "certificate")
_CREATE: Final = re.compile(r'client\.create_queue\("(\S+)"\)')
"""The Python client's advice if a queue does not exist."""
_NO_QUEUE: Final = re.compile(r'queue "(\S+)" does not exist')
_COMPLETION_SECONDS: Final = 1.0


class Remote(NamedTuple):
    """A daemon, as the flags of a verb name it."""

    access: Access
    retry: Retry

    def client(self, *, keys: bool = True) -> Client:
        """A client of it, to be closed."""
        return Client(self.access, retry=self.retry, keys=keys)


def remote(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the flags that name a daemon; it gets a :class:`Remote` first. Errors become a line."""

    @remote_flags
    @functools.wraps(command)
    def with_remote(*args: Any, **rest: Any) -> Any:
        _refuse_settings()
        daemon = remote_of(rest)
        with told(daemon):
            return command(daemon, *args, **rest)

    return with_remote


def remote_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the flags that name a daemon, for :func:`remote_of`."""
    for flag in reversed(_REMOTE_FLAGS):
        command = flag(command)
    return command


def remote_of(flags: dict[str, Any]) -> Remote:
    """The daemon that flags name; they are taken out of `flags`.

    Raises:
        click.UsageError: they make no sense.
    """
    where = {name: flags.pop(name) for name in ("url", "ca", "certificate")}
    credentials, patience = flags.pop("credentials"), flags.pop("patience")
    try:
        access = Access(**where, **_credentials(credentials))
        access.options()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return Remote(access, Retry(patience=patience))


REMOTE_NAMES: Final = ("url", "credentials", "ca", "certificate", "patience")
"""What :func:`remote_flags` gives a command."""
_REMOTE_FLAGS: Final = (
    click.option(
        "--url", envvar="MQ_URL", default=DEFAULT_URL, show_default=True, metavar="URL", help="URL of the daemon."
    ),
    click.option(
        "--credentials",
        envvar="MQ_CREDENTIALS",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="File that contains the credentials: a token or NAME:PASSWORD. A token can also be set in the "
        f"environment variable {TOKEN_VARIABLE}.",
    ),
    click.option(
        "--ca",
        envvar="MQ_CA",
        type=click.Path(exists=True),
        metavar="FILE",
        help="PEM file with the CA certificates to trust.",
    ),
    click.option(
        "--certificate",
        envvar="MQ_CERTIFICATE",
        type=click.Path(exists=True),
        metavar="FILE",
        help="PEM file with the client certificate and its key, if the daemon requires a certificate.",
    ),
    click.option(
        "--patience",
        envvar="MQ_PATIENCE",
        type=Duration(0, 1e6),
        default="5s",
        show_default=True,
        metavar="DURATION",
        help="How long to keep retrying while the daemon is unreachable or temporarily refuses requests.",
    ),
)


@contextmanager
def told(daemon: Remote | None = None) -> Iterator[None]:
    """Report a client's error as one line on standard error, and exit with its status.

    Args:
        daemon: names the queue that was meant, if one does not exist; None for a program that talks to no single one.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ClientError as error:
        passes = isinstance(error, Unreachable | Interrupted | Unavailable | QueueFull)
        fail(_with_queue_meant(_CREATE.sub(r"mq queue create \1", str(error)), daemon), NOT_NOW if passes else REFUSED)


def _with_queue_meant(text: str, daemon: Remote | None) -> str:
    missing = _NO_QUEUE.match(text)
    if missing is None or daemon is None:
        return text
    try:
        with daemon.client() as client:
            near = nearest(missing[1], [queue.name for queue in client.queues()], 0.6)
    except ClientError:  # the user may not see the queues
        return text
    return f"{missing[0]}: did you mean {near}?" if near else text


def all_pages(ask: Callable[[str | None], Mapping[str, Any]], name: str) -> Iterator[Mapping[str, Any]]:
    """All entries of a list that the daemon gives page by page.

    Args:
        ask: returns the page behind the entry that it is given; None for the first page.
        name: of the entries in a page.
    """
    after: str | None = None
    while True:
        page = ask(after)
        yield from page[name]
        after = page["next"]
        if after is None:
            return


def fail(text: str, status: int = REFUSED) -> NoReturn:
    """End with one line."""
    warn(text)
    sys.exit(status)


def warn(text: str) -> None:
    """One line on standard error."""
    say(f"mq: {' '.join(text.split())}", err=True)


def complete_queues(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The queues with names that begin so, for a shell. Silent when no daemon answers at once."""
    given = {name: context.params.get(name) or os.environ.get(f"MQ_{name.upper()}") for name in _FLAGS}
    try:
        access = Access(
            url=given["url"] or DEFAULT_URL,
            ca=given["ca"],
            certificate=given["certificate"],
            timeout=_COMPLETION_SECONDS,
            **_credentials(given["credentials"]),
        )
        with Client(access, retry=Retry(patience=0)) as client:
            return [CompletionItem(queue.name) for queue in client.queues() if queue.name.startswith(incomplete)]
    except (ClientError, ValueError, click.UsageError):
        return []


queue_argument: Final = click.argument("queue", shell_complete=complete_queues)
json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print the output as JSON, one object per line."
)
yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def check_exists(daemon: Remote, queue: str) -> None:
    """Check that a queue exists, as far as the user may see it.

    Raises:
        NotFound: it does not; the text does not advise to create it.
    """
    try:
        with daemon.client() as client:
            client.queue(queue)
    except NotFound as error:
        raise NotFound(error.status, f"queue {shorten(queue)} does not exist") from None
    except NotAllowed:
        return  # the user may delete or purge a queue without seeing it


def confirm(question: str, *, yes: bool, check: Callable[[], object] | None = None) -> None:
    """Ask at the terminal; without one, `yes` has to be given.

    Args:
        question: ends the program unless it is answered with yes.
        yes: True if the question was answered by an option.
        check: called before the question; raises if there is nothing to confirm.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation, because standard input is not a terminal. Use --yes")
    if check is not None:
        check()
    click.confirm(question, abort=True, err=True)


def _refuse_settings() -> None:
    """Flags before the verb are the daemon's settings: one that is given here is meant for something else."""
    flags = click.get_current_context().find_root().obj or {}
    for name, value in flags.items():
        if value is not None:
            option = name.replace("_", "-")
            raise click.UsageError(
                f"--{option} is an option of mq serve. For other commands, select the daemon with --url"
            )


def _credentials(path: str | None) -> dict[str, Any]:
    """A token, or a name and a password: a colon stands in no token (RFC 6750, section 2.1)."""
    try:
        text = os.environ.get(TOKEN_VARIABLE, "") if path is None else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read the credentials file {path}: {error}") from error
    text = text.strip()
    if not text.isprintable():
        raise click.UsageError("credentials must be a single line: a token or NAME:PASSWORD")
    name, colon, password = text.partition(":")
    return {"user": (name, password)} if colon else {"token": text}
