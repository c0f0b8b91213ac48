"""The verb ``top``: what is in every queue, live."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from mq.cli.remote import Remote, aligned, json_option, print_json, print_table, remote
from mq.client import Client, ClientError, Queue

HEADER: Final = ("QUEUE", "READY", "LEASED", "DELAYED", "OLDEST", "IN/S", "OUT/S", "")
_CLEAR: Final = "\x1b[H\x1b[2J"


class Look(NamedTuple):
    """A queue at one instant.

    Attributes:
        name: its name.
        ready: messages that can be fetched.
        leased: messages that somebody holds.
        delayed: messages whose time has not come.
        oldest_seconds: the age of the oldest message; None when there is none.
        published_per_second: on average over the last minute.
        removed_per_second: the same.
        paused: whether nothing is handed out.
    """

    name: str
    ready: int
    leased: int
    delayed: int
    oldest_seconds: float | None
    published_per_second: float
    removed_per_second: float
    paused: bool


@click.command("top")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, show_default=True, metavar="SECONDS", help="Pause.")
@click.option("--once", is_flag=True, help="Show it once. So it is when nobody looks, too.")
@json_option
@remote
def top_command(remote: Remote, every: float, once: bool, as_json: bool) -> None:
    """Show what is in the queues, live; the fullest first."""
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
            print_json(look._asdict())
    else:
        print_table(HEADER, map(_row, looks))


def _screen(client: Client) -> list[str]:
    """As many lines as the terminal has room for."""
    try:
        looks = _looks(client)
    except ClientError as error:
        return [f"mq: {error}"]
    total = f"{len(looks)} queues, {sum(look.ready for look in looks)} messages ready"
    lines = [f"{client.access.url}  {total}", "", *aligned(HEADER, map(_row, looks))]
    width, height = shutil.get_terminal_size()
    return [line[:width] for line in lines[: height - 1]]


def _looks(client: Client) -> list[Look]:
    """Every queue, the fullest first."""
    rates: Mapping[str, Any] = client.stats().get("queues", {})
    looks = [_look(queue, rates.get(queue.name, {}).get("per_second", {})) for queue in client.queues()]
    return sorted(looks, key=lambda look: (-look.ready, -look.leased, look.name))


def _look(queue: Queue, rates: Mapping[str, float]) -> Look:
    counts = queue.ready, queue.leased, queue.delayed
    paused = bool(queue.settings.get("paused"))
    return Look(queue.name, *counts, queue.oldest_seconds, rates.get("publish", 0.0), rates.get("remove", 0.0), paused)


def _row(look: Look) -> tuple[str, ...]:
    oldest = "" if look.oldest_seconds is None else f"{look.oldest_seconds:.0f}s"
    counts = str(look.ready), str(look.leased), str(look.delayed)
    rates = f"{look.published_per_second:.1f}", f"{look.removed_per_second:.1f}"
    return look.name, *counts, oldest, *rates, "paused" if look.paused else ""
