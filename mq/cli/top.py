"""The verb ``top``: what is in every queue, live."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from mq.cli.commands import Duration
from mq.cli.queues import shown_pauses
from mq.cli.remote import Remote, json_option, remote
from mq.cli.terminal import aligned, say_json, say_table
from mq.client import Client, ClientError

HEADER: Final = ("QUEUE", "READY", "LEASED", "DELAYED", "OLDEST", "IN/S", "OUT/S", "ACK/S", "BACK/S", "DEAD/S", "")
_CLEAR: Final = "\x1b[H\x1b[2J"
_LARGEST_PAGE: Final = 1000
_OF_A_MINUTE: Final = 1  # of the three averages of a flow


_FLOWS: Final = {
    "published_per_second": ("publish",),
    "delivered_per_second": ("deliver",),
    "removed_per_second": ("acknowledge",),
    "returned_per_second": ("redeliver",),
    "dead_lettered_per_second": ("dead_letter", "expire"),
}
"""Average rates over the last minute, and the flows of the daemon that each is the sum of."""


@click.command("top")
@click.option(
    "--every", type=Duration(0.1), default="2s", show_default=True, metavar="DURATION", help="Refresh interval."
)
@click.option(
    "--once", is_flag=True, help="Print the table once and exit. This is the default if the output is not a terminal."
)
@json_option
@remote
def top_command(remote: Remote, every: float, once: bool, as_json: bool) -> None:
    """Show a live view of the queues with the most messages."""
    with remote.client() as client:
        if once or as_json or not sys.stdout.isatty():
            _print(client, as_json=as_json)
            return
        try:
            while True:
                click.echo(_CLEAR + "\n".join(_screen(client)))
                time.sleep(every)
        except KeyboardInterrupt:
            return


def _print(client: Client, *, as_json: bool) -> None:
    looks = _looks(client)
    if as_json:
        for look in looks:
            say_json(look)
    else:
        say_table(HEADER, map(_row, looks))


def _screen(client: Client) -> list[str]:
    """As many lines as the terminal has room for."""
    width, height = shutil.get_terminal_size()
    try:
        found = client.rates(sort="ready", limit=min(max(height, 1), _LARGEST_PAGE))
    except ClientError as error:
        return [f"mq: {error}"]
    total = f"{found['total']} queues, {found['ready']} messages ready"
    looks = [_look(queue) for queue in found["queues"]]
    lines = [f"{client.access.url}  {total}", "", *aligned(HEADER, map(_row, looks))]
    return [line[:width] for line in lines[: height - 1]]


def _looks(client: Client) -> Iterator[dict[str, Any]]:
    """Every queue, the fullest first."""
    skip = 0
    while True:
        queues = client.rates(sort="ready", skip=skip, limit=_LARGEST_PAGE)["queues"]
        yield from map(_look, queues)
        skip += len(queues)
        if len(queues) < _LARGEST_PAGE:
            return


def _look(queue: Mapping[str, Any]) -> dict[str, Any]:
    """A queue now, as a line of JSON shows it."""
    rates = {name: sum(queue["per_second"][flow][_OF_A_MINUTE] for flow in flows) for name, flows in _FLOWS.items()}
    counts = {name: queue[name] for name in ("name", "ready", "leased", "delayed", "oldest_seconds")}
    return {**counts, **rates, "paused": queue["paused"], "publish_paused": queue["publish_paused"]}


def _row(look: Mapping[str, Any]) -> tuple[str, ...]:
    oldest = "" if look["oldest_seconds"] is None else f"{look['oldest_seconds']:.0f}s"
    counts = (str(look[name]) for name in ("ready", "leased", "delayed"))
    pauses = shown_pauses(delivery=look["paused"], publishing=look["publish_paused"])
    return look["name"], *counts, oldest, *(f"{look[name]:.1f}" for name in _FLOWS), pauses
