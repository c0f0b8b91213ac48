"""Puts and Drops of records one at a time: a queue's with its folder, and others where no log makes them durable."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mq.message import MessageIds, shorten
from mq.storage.files.calls import Calls, FileKind, is_transient, is_unsure
from mq.storage.files.folders import Folders
from mq.storage.files.layout import flat_name
from mq.storage.files.outcomes import DONE, GONE
from mq.storage.files.records import Records
from mq.storage.files.sync import make_folder, sync_folder, synced_after
from mq.storage.interface import QUEUE, Drop, Outcome, Put, Result


class RecordChanges:
    """Do Puts and Drops in a root.

    Args:
        ids: name the folders of deleted queues.
    """

    def __init__(self, folders: Folders, records: Records, ids: MessageIds) -> None:
        self._folders = folders
        self._calls = folders.calls
        self._records = records
        self._ids = ids

    def commit(self, operation: Put | Drop) -> Outcome:
        """Do it, durably."""
        folders = self._folders
        if not folders.volume.failure:
            try:
                outcome = self._put(operation) if isinstance(operation, Put) else self._drop(operation)
                self._check()
                return outcome
            except OSError as error:
                if is_unsure(error):
                    return Outcome(Result.UNKNOWN, reason=error.strerror or str(error))
                if is_transient(error):
                    return Outcome(Result.FULL, reason=error.strerror or str(error))
                folders.volume.fail(error)
        return Outcome(Result.FAILED, reason=folders.volume.failure)

    def _put(self, put: Put) -> Outcome:
        self._folders.volume.reserve.ensure()
        if put.kind == QUEUE:
            return self._make_queue(put.key, put.value)
        self._records.put(*put)
        return DONE

    def _drop(self, drop: Drop) -> Outcome:
        found = self._delete_queue(drop.key) if drop.kind == QUEUE else self._records.drop(*drop)
        return DONE if found else GONE

    def _make_queue(self, name: str, value: Mapping[str, Any]) -> Outcome:
        """Put the record, and make the folder unless it is there."""
        folders, calls = self._folders, self._calls
        folder = f"{folders.layout.queues}/{name}"
        there = calls.kind(folder)
        if there not in (FileKind.FOLDER, None):
            reason = f"cannot create queue {name}, because {shorten(folder)} is not a folder; move it elsewhere"
            return Outcome(Result.FULL, reason=reason)
        made = there is None
        value = value if made else self._made_before(name, value)
        # The folders to sync are opened first: if no handle is left for that, nothing was changed.
        with (
            self._making(name, value) as folder_calls,
            synced_after(folder_calls, *self._to_sync(made=made)),  # also when it is there: for an earlier try
        ):
            self._records.put(QUEUE, name, value)
            if made:
                try:
                    make_folder(folder_calls, folder)
                except FileExistsError:
                    made = False  # another broker was faster
                except OSError as error:
                    if is_transient(error):
                        self._records.through(calls).drop(QUEUE, name)  # or else the next start makes the queue
                    raise
            if not made:
                sync_folder(folder_calls, folder)
        return Outcome(Result.DONE, existed=not made)

    def _made_before(self, name: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The new value of an existing queue: of two brokers that make one at once, the first has made it."""
        # A queue without a record was made by hand, at an unknown time.
        before = self._records.get(QUEUE, name)
        if before is None and any((QUEUE, name) == damage[:2] for damage in self._folders.health.damages):
            return value  # its record is lost
        return {**value, **{what: (before or {}).get(what, 0) for what in {"created", "incarnation"} & value.keys()}}

    def _delete_queue(self, name: str) -> bool:
        """Move the queue's folder to remove/, and drop the record. Returns False if there was no folder."""
        folders = self._folders
        layout, reserve = folders.layout, folders.volume.reserve
        found = self._calls.kind(f"{layout.queues}/{name}") is FileKind.FOLDER
        removed = f"{layout.remove}/{flat_name(name, self._ids.new())}"
        with self._deleting(name, removed) as calls:
            with synced_after(calls, layout.remove, layout.queues):  # also when it is gone: for an earlier try
                if found:
                    try:
                        reserve.give_way(self._calls.rename, f"{layout.queues}/{name}", removed)
                    except FileNotFoundError:
                        found = False  # another broker was faster
            try:
                reserve.give_way(self._records.drop, QUEUE, name)
            except OSError as error:
                if error.errno != errno.ENOENT and not is_transient(error):
                    raise  # else the queue is deleted all the same: a start that finds its folder in remove/ knows that
        return found

    # What the engines add

    def _making(self, name: str, value: Mapping[str, Any]) -> AbstractContextManager[Calls]:
        """Return a context for making a queue. It gives the calls that make the folder."""
        return nullcontext(self._calls)

    def _deleting(self, name: str, removed: str) -> AbstractContextManager[Calls]:
        """Return a context for moving a queue's folder to `removed`. It gives the calls that do it."""
        return nullcontext(self._calls)

    def _to_sync(self, *, made: bool) -> tuple[str, ...]:
        """Return the folders whose names have to be durable before a queue is there: more where there is no journal.

        Args:
            made: whether its folder is made now; it was there otherwise.
        """
        return (self._folders.layout.queues,)

    def _check(self) -> None:
        """Check that the last sync can be relied on.

        Raises:
            OSError: it cannot.
        """
