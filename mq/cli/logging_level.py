"""The verb ``logging``: how much a daemon logs."""

from __future__ import annotations

import click

from mq.cli.remote import Remote, json_option, print_json, remote
from mq.log_lines import LEVELS


@click.command("logging")
@click.option("--level", type=click.Choice(LEVELS), help="Log lines of this weight, and heavier ones.")
@click.option("--requests/--no-requests", default=None, help="Log a line for each request over HTTP, or none.")
@json_option
@remote
def logging_command(remote: Remote, level: str | None, requests: bool | None, as_json: bool) -> None:
    """Show how much a daemon logs, or change it until the daemon ends."""
    with remote.client() as client:
        if level is None and requests is None:
            found = client.logging()
        else:
            found = client.change_logging(level=level, every_request=requests)
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found['level']}{', and every request' if found['requests'] else ''}")
