"""The verb ``peek``: shows messages and leaves them where they are."""

from __future__ import annotations

import itertools
import sys
from typing import Final

import click

from mq.cli.receive import described
from mq.cli.remote import EMPTY, Remote, json_option, print_json, print_table, queue_argument, remote
from mq.client import Received

STATES: Final = ("ready", "leased", "delayed")
_SHOWN: Final = 40


@click.command("peek")
@queue_argument
@click.argument("id", required=False)
@click.option("-n", "--max", "limit", type=click.IntRange(1), default=10, show_default=True, help="At most so many.")
@click.option("--state", type=click.Choice(STATES), default="ready", show_default=True, help="Which messages.")
@json_option
@remote
def peek_command(remote: Remote, queue: str, id: str | None, limit: int, state: str, as_json: bool) -> None:
    """Show messages and leave them where they are.

    With an ID the body of that message, as it is.
    """
    with remote.client() as client:
        if id is not None:
            _show(client.show(queue, id), as_json=as_json)
            return
        messages = list(itertools.islice(client.browse(queue, state=state), limit))
    if as_json:
        for message in messages:
            print_json(described(message, message.body))
    else:
        print_table(("ID", "RECEIVES", "BYTES", "TYPE", "BODY"), map(_row, messages))
    sys.exit(0 if messages else EMPTY)


def _show(message: Received, *, as_json: bool) -> None:
    if as_json:
        print_json(described(message, message.body))
    else:
        sys.stdout.buffer.write(message.body)
        sys.stdout.buffer.flush()


def _row(message: Received) -> tuple[str, ...]:
    beginning = message.body[: _SHOWN + 1].decode("utf-8", "replace")
    text = "".join(character if character.isprintable() else "." for character in beginning)
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return message.id, str(message.receives), str(len(message.body)), message.content_type, shown
