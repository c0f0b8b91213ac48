"""The start of a root that no other process serves: it is repaired, and gets a log if the engine needs one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mq.lifecycle import State
from mq.storage.files.calls import Calls, FileKind
from mq.storage.files.engine import LOGGED, EngineChoice
from mq.storage.files.folders import Folders
from mq.storage.files.format import RootUse, note_use
from mq.storage.files.inventory import INVENTORY, keep_inventory, read_inventory
from mq.storage.files.layout import Layout
from mq.storage.files.logged import checkpoint
from mq.storage.files.logged.boots import life_of
from mq.storage.files.logged.fates import forgotten_by
from mq.storage.files.logged.groups import mark_whole
from mq.storage.files.logged.log import LARGEST, SMALLEST, Log
from mq.storage.files.logged.redo import redo
from mq.storage.files.logged.root import LoggedRoot, RemovedQueues
from mq.storage.files.logged.segments import Record, salvage
from mq.storage.files.lost import LOST_STATE
from mq.storage.files.records import Records, file_of, key_of
from mq.storage.files.recovery import recover
from mq.storage.files.stepwise.peers import Alarm
from mq.storage.interface import QUEUE, Damage
from mq.storage.options import StorageOptions

logger = logging.getLogger("mq.storage")


class Start:
    """Restore what a crash has taken, and begin a log if the engine needs one.

    Args:
        choice: the engine that will serve the root.
        use: how the root was left; None if it is new.
        accept_loss: whether the root is served although its log is damaged.
    """

    def __init__(
        self,
        choice: EngineChoice,
        use: RootUse | None,
        folders: Folders,
        records: Records,
        options: StorageOptions,
        *,
        in_thread: bool,
        accept_loss: bool,
    ) -> None:
        self._use = use
        self._folders = folders
        self._calls = folders.calls
        self._layout = folders.layout
        self._records = records
        self._options = options
        self._in_thread = in_thread
        self._accept_loss = accept_loss
        self._wants_log = choice.engine == LOGGED
        self._removed_queues = RemovedQueues(folders.calls, folders.emptied)

    def repair(
        self, opened: Mapping[str, int], draw: Callable[[int], bytes], unless_opened: contextlib.ExitStack
    ) -> LoggedRoot | None:
        """Repair the root. Returns it with its log if it gets one.

        Args:
            draw: random bytes, as many as asked for.
            unless_opened: gets what has to be closed if the root cannot be opened.

        Raises:
            LogDamaged: confirmed messages may be missing.
            OSError: the disk failed, or has no room.
        """
        last, live = self._redo(draw, unless_opened)
        is_settled = self._use in (RootUse.LOG, RootUse.CLEAN)
        self._check_records(live, is_settled=is_settled)
        recover(self._folders, self._records, opened, is_settled=is_settled)
        if self._use is None:
            self._note_lost_state()
        Alarm(self._calls, self._layout.alarm).clear()
        if self._wants_log:
            return self._go_on_with(last or self._make_log(draw, unless_opened, in_use=False))
        self._go_on_without(last)
        return None

    def _redo(
        self, draw: Callable[[int], bytes], unless_opened: contextlib.ExitStack
    ) -> tuple[Log | None, Sequence[Record]]:
        """Do again what the last daemon's log has. Returns that log, and its records."""
        if self._use is not RootUse.LOG:
            return None, []
        if self._accept_loss:
            return None, self._salvage()
        log = self._make_log(draw, unless_opened, in_use=True)
        live = log.read()
        redo(self._folders, self._records, live, survived=log.survived)
        return log, live

    def _go_on_with(self, log: Log) -> LoggedRoot:
        self._forget(log)
        note_use(self._calls, self._layout, RootUse.LOG)
        mark_whole(self._folders)
        log.begin()
        layout, records = self._layout, self._records.unsynced()
        return LoggedRoot(self._folders, records, log, self._removed_queues, layout.above(""), layout.by_state)

    def _go_on_without(self, last: Log | None) -> None:
        if last is not None:
            self._forget(last)
        note_use(self._calls, self._layout, RootUse.FILES)  # first: the segments of a log in use must exist
        if last is not None:
            last.close()
        if self._calls.kind(self._layout.log_folder) is FileKind.FOLDER:
            _remove_log(self._calls, self._layout)

    def _forget(self, log: Log) -> None:
        """Let no record of the log count any more: all that they say is in the files."""
        # First: a start that finds an empty log and an old inventory would report the dropped records as missing.
        keep_inventory(self._records)
        self._folders.volume.syncs.everything()
        log.forget()

    def _make_log(self, draw: Callable[[int], bytes], unless_opened: contextlib.ExitStack, *, in_use: bool) -> Log:
        folders = self._folders
        log = Log(
            self._calls,
            self._layout.log_folder,
            partial(checkpoint.bring, folders, self._records),
            folders.volume.fail,
            self._removed_queues.forget,
            life=life_of(folders.volume.syncs.root_fd) if self._in_thread else "",
            draw=draw,
            in_use=in_use,
            in_thread=self._in_thread,
            smallest=self._options.log_bytes or SMALLEST,
            largest=self._options.log_bytes or LARGEST,
            spare_room=folders.volume.reserve.held,
        )
        unless_opened.callback(log.close, failed=True)
        return log

    def _salvage(self) -> list[Record]:
        """Do again what can still be read of the log."""
        live, flaws = salvage(self._calls, self._layout.log_folder)
        for flaw in flaws:
            self._folders.note_damage(Damage("", None, self._layout.log_folder, flaw))
        redone = redo(self._folders, self._records, live, survived=False)
        for path in redone.lost:
            self._folders.note_damage(
                Damage("", None, path, "the log contains this message, but the message was not found in any folder")
            )
        return live

    def _check_records(self, live: Sequence[Record], *, is_settled: bool) -> None:
        """Note records that are damaged or missing."""
        # The record of a queue is durable before the queue's folder is made.
        made = {(QUEUE, file_of(queue)) for queue in self._folders.queues()}
        damaged = self._records.check(is_settled=is_settled, answered=made, unlogged=INVENTORY)
        for damage in damaged.values():
            self._folders.note_damage(damage)
        if not is_settled:
            return
        listed = read_inventory(self._records)
        if listed is None:
            path = f"{self._layout.records}/{INVENTORY}"
            why = "the list of all records cannot be read, so records may be missing"
            self._folders.note_damage(Damage(INVENTORY, None, path, why))
            return
        self._records.names_are_listed(listed, INVENTORY)
        forgotten = forgotten_by(live)
        for kind, files in listed.items():
            there = self._records.files(kind)
            for file in files:
                key = key_of(file)
                if file not in there and (kind, file) not in damaged and (kind, file) not in forgotten:
                    path = f"{self._layout.records}/{kind}/{file}"
                    self._folders.note_damage(Damage(kind, key, path, "the record is missing"))

    def _note_lost_state(self) -> None:
        """Note that a root with messages has lost all of state/."""
        folders = self._folders
        queues = folders.queues()
        has_messages = any(folders.scan(state, limit=1) for state in (State.NEW, State.DELAYED))
        if has_messages or any(folders.scan(State.READY, queue, limit=1) for queue in queues):
            why = f"{LOST_STATE}. Queues without settings: {', '.join(sorted(queues)) or 'none'}"
            folders.note_damage(Damage("", None, self._layout.state, why))
        elif queues:
            named = ", ".join(sorted(queues))
            logger.info("found queue folders without settings; using default settings for: %s", named)


def _remove_log(calls: Calls, layout: Layout) -> None:
    for name, _ in calls.names(layout.log_folder):
        calls.unlink(f"{layout.log_folder}/{name}")
    calls.rmdir(layout.log_folder)
