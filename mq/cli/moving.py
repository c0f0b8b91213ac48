"""The verbs ``redrive`` and ``move``: take messages to other queues, where they keep their ids."""

from __future__ import annotations

import click

from mq.cli.remote import Remote, complete_queues, json_option, print_json, queue_argument, remote
from mq.client import Client
from mq.client.requests import LONGEST_BATCH

limit_option = click.option("-n", "--max", "limit", type=click.IntRange(1), help="At most so many; else all.")
id_option = click.option("--id", "ids", multiple=True, metavar="ID", help="Only this message; may be given again.")


@click.command("redrive")
@queue_argument
@limit_option
@id_option
@json_option
@remote
def redrive_command(remote: Remote, queue: str, limit: int | None, ids: tuple[str, ...], as_json: bool) -> None:
    """Move dead messages back to the queues they died in.

    Prints how many.
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
    """Move messages that are ready from a queue to the queue TARGET.

    Prints how many.
    """
    _move(remote, queue, target, limit, ids, as_json=as_json)


def _move(
    remote: Remote, queue: str, to: str | None, limit: int | None, ids: tuple[str, ...], *, as_json: bool
) -> None:
    with remote.client() as client:
        moved, left = _moved(client, queue, to, limit, list(ids) or None)
    print_json({"moved": moved, "left": left}) if as_json else click.echo(moved)


def _moved(client: Client, queue: str, to: str | None, limit: int | None, ids: list[str] | None) -> tuple[int, int]:
    """Batch after batch, until enough are moved or nothing moves any more."""
    moved = 0
    while True:
        wanted = LONGEST_BATCH if limit is None else min(LONGEST_BATCH, limit - moved)
        done = client.redrive(queue, to=to, limit=wanted, ids=ids)
        moved += done.moved
        if not done.moved or not done.left or ids or moved == limit:
            return moved, done.left
