"""The verb ``import``: the messages of a file into a queue. It can be run again where it stopped."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

import click
from tqdm import tqdm

from mq.cli.archive import FORMATS, BadArchive, format_of, read
from mq.cli.remote import Remote, fail, json_option, print_json, queue_argument, remote, warn
from mq.client import Client, ClientError, Outcome, Outgoing
from mq.client.batches import cut


@click.command("import")
@queue_argument
@click.argument("file", default="-", type=click.Path(exists=True, allow_dash=True, dir_okay=False))
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Else as the end of FILE says; JSON Lines for -.")
@click.option("--run", metavar="NAME", help="Go on with the run of this name: what it has stored is not stored again.")
@click.option("--no-keys", is_flag=True, help="For daemons with peers, which refuse keys: it cannot be run again.")
@json_option
@remote
def import_command(
    remote: Remote, queue: str, file: str, kind: str | None, run: str | None, no_keys: bool, as_json: bool
) -> None:
    """Publish the messages of FILE to a queue.

    They keep their order and get new ids. When it is interrupted it says how to go on: the daemon remembers for a day
    what a run has stored.
    """
    if run is not None and no_keys:
        raise click.UsageError("without keys no run can be gone on with")
    run = run or secrets.token_hex(4)
    importing = _Import(queue, None if no_keys else run)
    try:
        with remote.client(keys=False) as client, ExitStack() as stack:
            source = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            importing.all(client, source, kind or format_of(file))
    except BadArchive as error:
        fail(f"{importing.sum()}. {error}")
    except (ClientError, KeyboardInterrupt):
        warn(f"{importing.sum()}. To go on: the same command with --run {run}" if not no_keys else importing.sum())
        raise
    if as_json:
        print_json({"stored": importing.stored, "there": importing.there})
    else:
        click.echo(importing.stored)


class _Import:
    """One run.

    Args:
        queue: where to.
        run: its name, from which each message's key is made; None for no keys.
    """

    def __init__(self, queue: str, run: str | None) -> None:
        self.stored = 0
        self.there = 0
        self._queue = queue
        self._run = run

    def all(self, client: Client, source: IO[bytes], kind: str) -> None:
        """Batch after batch; at the end at the first one that has an entry refused."""
        with tqdm(total=_size(source), disable=None, unit="B", unit_scale=True) as bar:
            for batch in cut(self._keyed(read(kind, source))):
                self._count(client.publish_many(self._queue, batch))
                bar.update(_position(source, bar.n) - bar.n)

    def sum(self) -> str:
        """What was done so far, in words."""
        return f"{self.stored} messages are stored" + (f", {self.there} were there already" if self.there else "")

    def _keyed(self, messages: Iterator[Outgoing]) -> Iterator[Outgoing]:
        for number, message in enumerate(messages, 1):
            yield message if self._run is None else replace(message, key=f"mq-import-{self._run}-{number}")

    def _count(self, outcomes: list[Outcome]) -> None:
        before = self.stored + self.there
        self.stored += sum(outcome.status == 201 for outcome in outcomes)
        self.there += sum(outcome.status == 200 for outcome in outcomes)
        for number, outcome in enumerate(outcomes, before + 1):
            if not outcome.ok:
                raise ClientError(f"message {number} was refused: {outcome.detail}")


def _size(source: IO[bytes]) -> int | None:
    """Bytes of a plain file; None for a pipe."""
    if not source.seekable():
        return None
    end = source.seek(0, 2)
    source.seek(0)
    return end


def _position(source: IO[bytes], otherwise: int) -> int:
    return source.tell() if source.seekable() else otherwise
