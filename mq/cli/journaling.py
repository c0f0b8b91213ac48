"""The lifecycle journal of a daemon, when its settings ask for one."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from mq import __version__
from mq.broker import Broker
from mq.errors import InvalidSetting
from mq.settings import Settings

if TYPE_CHECKING:
    from mq.observers.journal import Journal


@asynccontextmanager
async def journaling(settings: Settings) -> AsyncIterator[Sequence[Journal]]:
    """The journal for the length of the block, or none. Its parts are loaded only when there is one.

    Raises:
        InvalidSetting: it cannot be written, or pyarrow is missing.
    """
    if not settings.journal:
        yield []
        return
    try:
        journal_module = importlib.import_module("mq.observers.journal")
        segments_module = importlib.import_module("mq.observers.journal_segments")
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"--journal needs {error.name}: pip install 'mq[journal]'") from error
    journal: Journal = journal_module.open_journal(
        settings.journal,
        segments_module.Limits(settings.journal_bytes, settings.journal_age),
        store=settings.store,
        peers=settings.peers,
        version=__version__,
    )
    journal.start()
    try:
        yield [journal]
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(journal.close)


def tell_found(broker: Broker, journals: Sequence[Journal]) -> None:
    """Tell them what the broker has taken up from its store."""
    for journal in journals:
        journal.found(
            (
                queue.queue,
                queue.created_ns,
                ((entry.id, entry.state, entry.meta.receives) for entry in queue.entries),
            )
            for queue in broker.inventory()
        )
