"""The verbs on messages: ``peek``, ``delete``, ``reschedule``, ``purge``, ``redrive`` and ``move``."""

from __future__ import annotations

import itertools
import sys
from datetime import datetime
from functools import partial
from typing import Final

import click

from mq.cli.commands import EMPTY, REFUSED, Duration, Number
from mq.cli.receive import described
from mq.cli.remote import (
    Remote,
    check_exists,
    complete_queues,
    confirm,
    json_option,
    queue_argument,
    remote,
    warn,
    yes_option,
)
from mq.cli.send import time_of
from mq.cli.terminal import say, say_json, say_table, write_body
from mq.client import Client, Conflict, Head, NotFound, Received
from mq.client.requests import LONGEST_BATCH
from mq.quantities import show_count

STATES: Final = ("ready", "leased", "delayed")
_SHOWN: Final = 40

limit_option = click.option(
    "-n", "--max", "limit", metavar="NUMBER", type=Number(1), help="Maximum number of messages to move. [default: all]"
)
id_option = click.option("--id", "ids", multiple=True, metavar="ID", help="Move only this message. Can be repeated.")


@click.command("peek")
@queue_argument
@click.argument("id", required=False)
@click.option(
    "-n",
    "--max",
    "limit",
    metavar="NUMBER",
    type=Number(1),
    default=10,
    show_default=True,
    help="Maximum number of messages to show.",
)
@click.option(
    "--state", type=click.Choice(STATES), default="ready", show_default=True, help="Show only messages in this state."
)
@json_option
@remote
def peek_command(remote: Remote, queue: str, id: str | None, limit: int, state: str, as_json: bool) -> None:
    """Show messages without fetching them.

    Delayed and leased messages are shown with the local time at which they become available. If an ID is given, the
    body of that message is printed; control characters are escaped only if the output is a terminal.
    """
    with remote.client() as client:
        if id is not None:
            _show(client.show(queue, id), as_json=as_json)
            return
        messages = list(itertools.islice(client.browse(queue, state=state), limit))
    if as_json:
        for message in messages:
            say_json(described(message, message.body))
    else:
        when = () if state == STATES[0] else ("AT",)
        say_table(("ID", *when, "RECEIVES", "BYTES", "TYPE", "BODY"), (_row(each, bool(when)) for each in messages))
    sys.exit(0 if messages else EMPTY)


def _show(message: Received, *, as_json: bool) -> None:
    if as_json:
        say_json(described(message, message.body))
    else:
        write_body(message.body)


def _row(message: Received, has_time: bool) -> tuple[str, ...]:
    beginning = message.body[: _SHOWN + 1].decode("utf-8", "replace")
    text = "".join(character if character.isprintable() else "." for character in beginning)
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    at = "" if message.at is None else message.at.astimezone().isoformat(" ", "seconds")
    when = (at,) if has_time else ()
    return message.id, *when, str(message.receives), str(len(message.body)), message.content_type, shown


@click.command("delete")
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option(
    "--receipt",
    metavar="RECEIPT",
    default="",
    help="Remove the message only if this is the receipt of its current lease. Can be used only with a single ID.",
)
@remote
def delete_command(remote: Remote, queue: str, ids: tuple[str, ...], receipt: str) -> None:
    """Remove messages by ID."""
    if receipt and len(ids) > 1:
        raise click.UsageError("--receipt can only be used with a single ID")
    with remote.client() as client:
        if len(ids) == 1:
            client.remove(Head(queue=queue, id=ids[0], receipt=receipt))
            return
        outcomes = client.remove_many(queue, ids)
    refused = [(id, outcome.detail) for id, outcome in zip(ids, outcomes, strict=True) if not outcome.ok]
    for id, detail in refused:
        warn(f"{id}: {detail}")
    sys.exit(REFUSED if refused else 0)


@click.command("reschedule")
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option(
    "--delay",
    type=Duration(),
    metavar="DURATION",
    help="New delay, counted from now; 0 makes the messages available immediately.",
)
@click.option(
    "--at",
    callback=time_of,
    metavar="TIME",
    help="Time at which the messages become available, such as 2030-05-01T09:00.",
)
@remote
def reschedule_command(
    remote: Remote, queue: str, ids: tuple[str, ...], delay: float | None, at: datetime | None
) -> None:
    """Change the delivery time of delayed messages."""
    if (delay is None) == (at is None):
        raise click.UsageError("use either --delay DURATION or --at TIME")
    refused = False
    with remote.client() as client:
        for id in ids:
            try:
                client.reschedule(queue, id, delay=delay, at=at)
            except (NotFound, Conflict) as error:
                if len(ids) == 1:
                    raise
                warn(str(error))  # it names the message
                refused = True
    sys.exit(REFUSED if refused else 0)


@click.command("purge")
@queue_argument
@yes_option
@json_option
@remote
def purge_command(remote: Remote, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all messages from a queue except leased ones.

    The command prints the number of messages removed.
    """
    confirm(f"Remove all messages from {queue}?", yes=yes, check=partial(check_exists, remote, queue))
    with remote.client() as client:
        purged = client.purge(queue)
    say_json({"purged": purged}) if as_json else say(purged)


@click.command("redrive")
@queue_argument
@limit_option
@id_option
@json_option
@remote
def redrive_command(remote: Remote, queue: str, limit: int | None, ids: tuple[str, ...], as_json: bool) -> None:
    """Move dead letters back to their original queues.

    The command prints the number of messages moved.
    """
    _move(remote, queue, None, limit, ids, as_json=as_json)


@click.command("move")
@queue_argument
@click.argument("target", shell_complete=complete_queues)
@limit_option
@id_option
@json_option
@remote
def move_command(
    remote: Remote, queue: str, target: str, limit: int | None, ids: tuple[str, ...], as_json: bool
) -> None:
    """Move ready messages to another queue.

    The command prints the number of messages moved.
    """
    _move(remote, queue, target, limit, ids, as_json=as_json)


def _move(
    remote: Remote, queue: str, to: str | None, limit: int | None, ids: tuple[str, ...], *, as_json: bool
) -> None:
    with remote.client() as client:
        moved, left = _moved(client, queue, to, limit, list(ids) or None)
    say_json({"moved": moved, "remaining": left}) if as_json else say(moved)
    if left and not ids and moved != limit:
        target = "their original queue" if to is None else f"queue {to}"
        warn(
            f"{show_count(left, 'message')} could not be moved from queue {queue}, because {target} is full or does "
            "not exist"
        )


def _moved(client: Client, queue: str, to: str | None, limit: int | None, ids: list[str] | None) -> tuple[int, int]:
    """Batch after batch, until enough are moved or nothing moves any more."""
    moved = 0
    while True:
        wanted = LONGEST_BATCH if limit is None else min(LONGEST_BATCH, limit - moved)
        done = client.redrive(queue, to=to, limit=wanted, ids=ids)
        moved += done.moved
        if not done.moved or not done.remaining or ids or moved == limit:
            return moved, done.remaining
