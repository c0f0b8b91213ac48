"""The verb ``export``: a whole queue to a file, left as it is."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

import click
from tqdm import tqdm

from mq.cli.archive import FORMATS, Writer, format_of, writer
from mq.cli.remote import Remote, fail, queue_argument, remote
from mq.client import Client

_ORDER: Final = ("delayed", "leased", "ready")
"""The way in which messages of a paused queue move: looked at in this order, none slips through."""


@click.command("export")
@queue_argument
@click.argument("file", default="-", type=click.Path(allow_dash=True, dir_okay=False))
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Else as the end of FILE says; JSON Lines for -.")
@click.option("--state", "states", multiple=True, type=click.Choice(_ORDER), help="Only these; may be given again.")
@remote
def export_command(remote: Remote, queue: str, file: str, kind: str | None, states: tuple[str, ...]) -> None:
    """Write all messages of a queue to FILE; they stay.

    FILE is there when all of it is written, and not before. What comes, goes or is fetched meanwhile may be in it or
    not; of a queue that is paused all is in it.
    """
    try:
        with remote.client() as client, _new_file(file) as target:
            archive = writer(kind or format_of(file), target, file)
            _export(client, queue, archive, states or _ORDER)
            archive.close()
    except OSError as error:
        fail(f"cannot write {click.format_filename(file)}: {error.strerror or error}")


def _export(client: Client, queue: str, archive: Writer, states: tuple[str, ...]) -> None:
    """Every message once, though it may change its state meanwhile."""
    found = client.queue(queue)
    seen: set[str] = set()
    with tqdm(total=sum(getattr(found, state) for state in states), disable=None, unit=" messages") as bar:
        for state in states:
            for message in client.browse(queue, state=state):
                if message.id not in seen:
                    seen.add(message.id)
                    archive.add(message)
                    bar.update()


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """Standard output, or a file that gets its name when all went well, and is on the disk then."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    folder, name = os.path.split(os.path.abspath(path))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name[:100]}.", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
