"""The lifecycle journal of a daemon, when its settings ask for one."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING

import trio

from mq import __version__
from mq.broker import Broker
from mq.broker.clock import Clock
from mq.errors import InvalidSetting
from mq.lifecycle import Observer
from mq.settings import Settings

if TYPE_CHECKING:
    from mq.observers.journal import Journal


class DaemonJournal:
    """Connects a broker with its journal, if there is one.

    Attributes:
        observers: for the broker: the journal, or none.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.observers: Sequence[Observer] = [] if journal is None else [journal]
        self._journal = journal
        self._broker: Broker | None = None

    def begin(self, broker: Broker) -> None:
        """Tell the journal which messages the broker found in its store."""
        self._broker = broker
        if self._journal is not None:
            self._journal.found(
                (
                    queue.queue,
                    queue.created_ns,
                    chain(
                        ((entry.id, entry.state, entry.meta.receives) for entry in queue.entries),
                        ((id, None, 0) for id in queue.moving),
                    ),
                )
                for queue in broker.inventory()
            )

    async def end(self) -> None:
        """Tell the journal which messages were being moved when the broker ended, and close it."""
        if self._journal is not None:
            if self._broker is not None:
                self._journal.interrupted((queue.queue, queue.moving) for queue in self._broker.inventory())
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._journal.close)


@asynccontextmanager
async def journaling(settings: Settings, clock: Clock) -> AsyncIterator[DaemonJournal]:
    """The journal for the length of the block, or none. Its parts are loaded only when there is one.

    Raises:
        InvalidSetting: it cannot be written, or pyarrow is missing.
    """
    made = DaemonJournal(_start(settings, clock) if settings.journal else None)
    try:
        yield made
    finally:
        await made.end()


def _start(settings: Settings, clock: Clock) -> Journal:
    try:
        journal_module = importlib.import_module("mq.observers.journal")
        segments_module = importlib.import_module("mq.observers.journal_segments")
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"--journal requires the package {error.name}. Run pip install 'mq[journal]'") from error
    journal: Journal = journal_module.open_journal(
        settings.journal,
        segments_module.Limits(*settings.journal_keep),
        store=settings.store,
        peers=settings.peers + settings.no_mover + settings.no_reaper,
        version=__version__,
        date_ns=clock.date_ns,
        is_dated=lambda: not clock.doubt,
    )
    journal.start()
    return journal
