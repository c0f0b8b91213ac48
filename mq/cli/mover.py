"""The program ``mq-mover``: the broker's mover on its own, between two folders, with the seed's flags."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import click
import trio

from mq import __version__, log_lines
from mq.broker.clock import LOOK_SECONDS
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS
from mq.broker.kernel_clock import system_clock
from mq.broker.mover import Mover
from mq.cli.commands import Duration, PlainCommand, trust_options
from mq.cli.programs import run_program
from mq.errors import StorageFailed, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import GIVEN_MS, Entry, Outcome, Result
from mq.storage.options import StorageOptions

logger = logging.getLogger("mq.mover")


@click.command("mq-mover", cls=PlainCommand)
@click.option("--source", required=True, metavar="FOLDER", help="Folder to move message files from.")
@click.option(
    "--destination", required=True, metavar="FOLDER", help="Folder that contains the queues, one folder per queue."
)
@click.option(
    "--delay",
    default="0",
    show_default=True,
    type=Duration(),
    metavar="DURATION",
    help="How long to wait after a file arrives before moving it. A delivery time in the file name takes precedence.",
)
@click.version_option(__version__, prog_name="mq-mover")
@trust_options
def main(source: str, destination: str, delay: float, trust: Mapping[str, Any]) -> None:
    """Move each message file to its queue's folder. The file name contains the queue name."""
    log_lines.begin("info")
    serve = partial(_serve, source, destination, delay, StorageOptions(**trust))
    run_program("mq-mover", serve, (StorageUnusable, StorageFailed))


async def _serve(source: str, destination: str, delay: float, options: StorageOptions, stop: trio.Event) -> None:
    folder = SourceFolder(State.DELAYED if delay else State.NEW, source, destination, options)
    try:
        async with trio.open_nursery() as nursery:
            program = _Program(folder, delay)
            nursery.start_soon(program.mover.run)
            nursery.start_soon(program.follow)
            await stop.wait()
            nursery.cancel_scope.cancel()
    finally:
        folder.close()


class _Program:
    """Feeds a mover with the messages of a folder: by a listing at the start, then by the folder's changes."""

    def __init__(self, folder: SourceFolder, delay: float) -> None:
        self.mover = Mover(folder.commit, self._is_due, self._ended)
        self._folder = folder
        self._delay = delay
        self._clock = system_clock()
        self._told: set[str] = set()

    async def follow(self) -> None:
        """Add what is there and what arrives."""
        async with self._folder.changes() as changes:
            await self._look()
            async for change in changes:
                if change.entry is None:
                    await self._look()
                elif change.present:
                    await self._add(change.entry)
                else:
                    self.mover.cancel(change.entry.id)

    async def _look(self) -> None:
        for entry in sorted(await self._folder.scan(), key=lambda entry: entry.id.key):
            await self._add(entry)

    async def _add(self, entry: Entry) -> None:
        flaw = await self._flaw(entry)
        if flaw:
            self._tell(f"message {entry.id} in queue {entry.queue} is damaged ({flaw}) and was not moved")
            return
        seconds = await self._remaining_seconds(entry)
        if seconds is not None:
            self.mover.add(entry, trio.current_time() + max(0.0, seconds))

    async def _flaw(self, entry: Entry) -> str | None:
        while True:
            try:
                return await self._folder.flaw(entry)
            except StorageFull as error:
                self._tell(str(error))
                await trio.sleep(RETRY_SECONDS)

    async def _remaining_seconds(self, entry: Entry) -> float | None:
        """Seconds until an entry is due, at most the longest wait; None when it has left."""
        if entry.meta.deadline_ms is not None:
            return min(self._clock.seconds_until_due(entry), _longest_wait(entry))
        arrived_ns = await self._folder.arrived_ns(entry)
        return None if arrived_ns is None else min((arrived_ns - time.time_ns()) / 1e9, 0.0) + self._delay

    def _is_due(self, entry: Entry) -> bool:
        """Whether an entry is due: a delay of years is waited for in pieces, and a given instant follows the clock."""
        if entry.meta.deadline_ms is None or entry.meta.receipt is not None:
            return True
        self._clock.look()
        remaining = self._clock.seconds_until_due(entry)
        if remaining <= RETRY_SECONDS:
            return True
        self.mover.add(entry, trio.current_time() + min(remaining, _longest_wait(entry)))
        return False

    def _ended(self, entry: Entry, outcome: Outcome) -> None:
        if outcome.result is Result.FAILED:
            raise StorageFailed(f"the disk failed: {self._folder.failure}. Repair the disk and restart mq-mover")
        if outcome.result is Result.NO_QUEUE:
            self._tell(
                f"queue {entry.queue} does not exist. Its messages will be moved once the queue has been created"
            )
            self.mover.add(entry, trio.current_time() + RETRY_SECONDS)
        if outcome.result is Result.EXISTS:
            self._tell(
                f"queue {entry.queue} already contains a message with ID {entry.id}, so the second one was not moved"
            )

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning(text)


def _longest_wait(entry: Entry) -> float:
    """Seconds after which the clock is looked at again."""
    return LOOK_SECONDS if (entry.meta.deadline_ms or 0) >= GIVEN_MS else LONGEST_LEASE_SECONDS + MARGIN_SECONDS
