"""The program ``mq-reaper``: the broker's reaper on its own, over one folder, with the seed's flag."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import click
import trio

from mq import __version__, log_lines
from mq.broker.mover import Reaper
from mq.cli.commands import PlainCommand, trust_options
from mq.cli.programs import run_program
from mq.errors import StorageFailed, StorageUnusable
from mq.lifecycle import State
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import Entry, Outcome, Result
from mq.storage.options import StorageOptions

logger = logging.getLogger("mq.reaper")


@click.command("mq-reaper", cls=PlainCommand)
@click.option(
    "--source",
    default="/tmp/mq/remove",
    show_default=True,
    metavar="FOLDER",
    help="Folder that contains the files of removed messages.",
)
@click.version_option(__version__, prog_name="mq-reaper")
@trust_options
def main(source: str, trust: Mapping[str, Any]) -> None:
    """Delete the files of removed messages."""
    log_lines.begin("info")
    run_program("mq-reaper", partial(_serve, source, StorageOptions(**trust)), (StorageUnusable, StorageFailed))


async def _serve(source: str, options: StorageOptions, stop: trio.Event) -> None:
    folder = SourceFolder(State.REMOVED, source, options=options)

    def ended(entry: Entry, outcome: Outcome) -> None:
        if outcome.result is Result.FAILED:
            raise StorageFailed(f"the disk failed: {folder.failure}. Repair the disk and restart mq-reaper")

    reaper = Reaper(folder.commit, ended)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reaper.run)
            nursery.start_soon(_follow, folder, reaper)
            await stop.wait()
            nursery.cancel_scope.cancel()
    finally:
        folder.close()


async def _follow(folder: SourceFolder, reaper: Reaper) -> None:
    async with folder.changes() as changes:
        for entry in await folder.scan():
            reaper.add(entry)
        async for change in changes:
            if change.entry is None:
                for entry in await folder.scan():
                    reaper.add(entry)
            elif change.present:
                reaper.add(change.entry)
