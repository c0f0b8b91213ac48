"""The verb ``top``: what is in every queue, live."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

import click

from mq.cli_queues import HEADER, row
from mq.cli_remote import Remote, aligned, json_option, print_json, print_table, remote
from mq.client import Client, ClientError, Queue

_CLEAR = "\x1b[H\x1b[2J"


@click.command("top")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, show_default=True, metavar="SECONDS", help="Pause.")
@click.option("--once", is_flag=True, help="Show it once. So it is when nobody looks, too.")
@json_option
@remote
def top_command(remote: Remote, every: float, once: bool, as_json: bool) -> None:
    """Show what is in the queues, live; the fullest first."""
    with remote.client() as client:
        if once or as_json or not sys.stdout.isatty():
            _print(_ordered(client), as_json=as_json)
            return
        try:
            while True:
                click.echo(_CLEAR + "\n".join(_screen(client)))
                time.sleep(every)
        except KeyboardInterrupt:
            return


def _print(queues: Sequence[Queue], *, as_json: bool) -> None:
    if as_json:
        for queue in queues:
            counts = {"ready": queue.ready, "leased": queue.leased, "delayed": queue.delayed}
            print_json({"name": queue.name, **counts, "oldest_seconds": queue.oldest_seconds})
    else:
        print_table(HEADER, map(row, queues))


def _screen(client: Client) -> list[str]:
    """As many lines as the terminal has room for."""
    try:
        queues = _ordered(client)
    except ClientError as error:
        return [f"mq: {error}"]
    total = f"{len(queues)} queues, {sum(queue.ready for queue in queues)} messages ready"
    lines = [f"{client.access.url}  {total}", "", *aligned(HEADER, map(row, queues))]
    width, height = shutil.get_terminal_size()
    return [line[:width] for line in lines[: height - 1]]


def _ordered(client: Client) -> list[Queue]:
    return sorted(client.queues(), key=lambda queue: (-queue.ready, -queue.leased, queue.name))
