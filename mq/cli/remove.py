"""The verbs ``delete`` and ``purge``: remove messages for good."""

from __future__ import annotations

import sys

import click

from mq.cli.remote import REFUSED, Remote, confirm, json_option, print_json, queue_argument, remote, warn, yes_option
from mq.client import Head


@click.command("delete")
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--receipt", default="", help="Only while this delivery holds it; for one ID.")
@remote
def delete_command(remote: Remote, queue: str, ids: tuple[str, ...], receipt: str) -> None:
    """Remove messages by their ids."""
    if receipt and len(ids) > 1:
        raise click.UsageError("a receipt is for one message")
    with remote.client() as client:
        if len(ids) == 1:
            client.remove(Head(queue=queue, id=ids[0], receipt=receipt))
            return
        outcomes = client.remove_many(queue, ids)
    refused = [(id, outcome.detail) for id, outcome in zip(ids, outcomes, strict=True) if not outcome.ok]
    for id, detail in refused:
        warn(f"{id}: {detail}")
    sys.exit(REFUSED if refused else 0)


@click.command("purge")
@queue_argument
@yes_option
@json_option
@remote
def purge_command(remote: Remote, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all messages of a queue that nobody holds.

    Prints how many.
    """
    confirm(f"Remove all messages of {queue}?", yes=yes)
    with remote.client() as client:
        purged = client.purge(queue)
    print_json({"purged": purged}) if as_json else click.echo(purged)
