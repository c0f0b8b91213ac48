"""The verb ``top``: what is in every queue, live."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

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


class Look(NamedTuple):
    """A queue at one instant.

    Attributes:
        ready: messages that can be fetched.
        leased: messages that consumers hold.
        delayed: messages whose time has not come.
        oldest_seconds: the age of the oldest message; None when there is none.
        published_per_second: on average over the last minute; so are the others.
        delivered_per_second: leased, or sent to a consumer.
        removed_per_second: acknowledged, mostly.
        returned_per_second: came back, to be delivered again.
        dead_lettered_per_second: went to a dead-letter queue, or expired.
        paused: whether nothing is handed out.
        publish_paused: whether nothing is taken.
    """

    name: str
    ready: int
    leased: int
    delayed: int
    oldest_seconds: float | None
    published_per_second: float
    delivered_per_second: float
    removed_per_second: float
    returned_per_second: float
    dead_lettered_per_second: float
    paused: bool
    publish_paused: bool


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
    """Show the queues with the most messages, updated live."""
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
            say_json(look._asdict())
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


def _looks(client: Client) -> Iterator[Look]:
    """Every queue, the fullest first."""
    skip = 0
    while True:
        queues = client.rates(sort="ready", skip=skip, limit=_LARGEST_PAGE)["queues"]
        yield from map(_look, queues)
        skip += len(queues)
        if len(queues) < _LARGEST_PAGE:
            return


def _look(queue: Mapping[str, Any]) -> Look:
    rates = {name: averages[_OF_A_MINUTE] for name, averages in queue["per_second"].items()}
    return Look(
        name=queue["name"],
        ready=queue["ready"],
        leased=queue["leased"],
        delayed=queue["delayed"],
        oldest_seconds=queue["oldest_seconds"],
        published_per_second=rates["publish"],
        delivered_per_second=rates["deliver"],
        removed_per_second=rates["acknowledge"],
        returned_per_second=rates["redeliver"],
        dead_lettered_per_second=rates["dead_letter"] + rates["expire"],
        paused=queue["paused"],
        publish_paused=queue["publish_paused"],
    )


def _row(look: Look) -> tuple[str, ...]:
    oldest = "" if look.oldest_seconds is None else f"{look.oldest_seconds:.0f}s"
    counts = str(look.ready), str(look.leased), str(look.delayed)
    rates = (
        look.published_per_second,
        look.delivered_per_second,
        look.removed_per_second,
        look.returned_per_second,
        look.dead_lettered_per_second,
    )
    return (
        look.name,
        *counts,
        oldest,
        *(f"{rate:.1f}" for rate in rates),
        shown_pauses(delivery=look.paused, publishing=look.publish_paused),
    )
