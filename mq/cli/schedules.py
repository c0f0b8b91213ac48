"""The verb ``schedule``: messages that are published regularly: made, listed, shown and deleted."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mq.cli.commands import Commands, Duration
from mq.cli.remote import Remote, all_pages, confirm, json_option, queue_argument, remote, yes_option
from mq.cli.send import message_options, warn_without_priorities
from mq.cli.terminal import say_json, say_table
from mq.client import Outgoing

_HEADER = ("SCHEDULE", "QUEUE", "WHEN", "NEXT", "LAST", "ERROR")


@click.group("schedule", cls=Commands)
def schedule_command() -> None:
    """Manage schedules, which publish messages at set times."""


@schedule_command.command("list")
@json_option
@remote
def list_command(remote: Remote, as_json: bool) -> None:
    """List the schedules that you are allowed to configure."""
    with remote.client() as client:
        found = list(all_pages(client.schedules, "schedules"))
    if as_json:
        for schedule in found:
            say_json(schedule)
    else:
        say_table(_HEADER, map(_row, found))


@schedule_command.command("put")
@click.argument("name")
@queue_argument
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--cron",
    metavar="LINE",
    help='Cron expression with five fields (minute, hour, day, month, weekday); for example, "0 3 * * MON-FRI".',
)
@click.option("--zone", metavar="ZONE", help="Time zone for --cron, such as Europe/Berlin. [default: UTC]")
@click.option(
    "--every",
    type=Duration(1),
    metavar="DURATION",
    help="Publish a message at this fixed interval, instead of at the times given with --cron.",
)
@click.option(
    "--unless-waiting", is_flag=True, help="Skip a run if the message from the previous run is still in the queue."
)
@click.option(
    "-m", "--message", help="Publish this text as the message body instead of reading standard input or FILE."
)
@message_options
@remote
def put_command(
    remote: Remote,
    name: str,
    queue: str,
    file: str | None,
    cron: str | None,
    zone: str | None,
    every: float | None,
    unless_waiting: bool,
    message: str | None,
    **fields: Any,
) -> None:
    """Create or replace a schedule.

    The message body is read from standard input or FILE. Each run publishes one message. If runs are missed while the
    daemon is down, the daemon publishes only one message for all missed runs after it restarts.
    """
    if (cron is None) == (every is None):
        raise click.UsageError('use either --cron (such as "0 3 * * *") or --every DURATION')
    if zone is not None and every is not None:
        raise click.UsageError("--zone requires --cron")
    if message is not None and file is not None:
        raise click.UsageError("use either --message or a file")
    outgoing = Outgoing(_body(file) if message is None else message.encode(), **fields)
    with remote.client() as client:
        if fields["priority"] is not None:
            warn_without_priorities(client, queue)
        client.put_schedule(name, queue, outgoing, cron=cron, zone=zone, every=every, unless_waiting=unless_waiting)


@schedule_command.command("show")
@click.argument("name")
@json_option
@remote
def show_command(remote: Remote, name: str, as_json: bool) -> None:
    """Show a schedule and its message."""
    with remote.client() as client:
        found = client.schedule(name)
    if as_json:
        say_json(dict(found))
    else:
        say_table(("NAME", "VALUE"), ((key, _text(value)) for key, value in found.items()))


@schedule_command.command("delete")
@click.argument("name")
@yes_option
@remote
def delete_command(remote: Remote, name: str, yes: bool) -> None:
    """Delete a schedule. Messages it has already published are kept."""
    confirm(f"Delete schedule {name}?", yes=yes)
    with remote.client() as client:
        client.delete_schedule(name)


def _body(file: str | None) -> bytes:
    return sys.stdin.buffer.read() if file in (None, "-") else Path(str(file)).read_bytes()


def _row(schedule: Mapping[str, Any]) -> tuple[str, ...]:
    when = f"every {schedule['every']:g}s" if schedule["every"] else f"{schedule['cron']} {schedule['zone']}"
    return schedule["name"], schedule["queue"], when, *(schedule[key] or "" for key in ("next", "last", "error"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
