"""Bugs to plant in the real code: the simulation has to find every one of them.

The seed that finds each is in ``found_by.json``, which ``make planted`` writes.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.planting import Bug

BUGS: Final = {
    "a folder is not synced": Bug("Barrier._sync_folders", "self._syncs.folder(folder)", "pass"),
    "a file is not synced": Bug("Barrier._sync_files", "sync(self._calls, fd)", "pass"),
    "an fsync that failed is tried again": Bug(
        "mq.storage.files.sync:sync",
        "_sync_by(calls.fsync, fd)",
        """
        try:
            calls.fsync(fd)
        except OSError:
            _sync_by(calls.fsync, fd)
        """,
    ),
    "a batch that failed is answered as done": Bug("Batch.run", "volume.fail(error)", "return self._outcomes"),
    "a message carries no checksum": Bug(
        "write_message", "set_properties(folders.calls, fd, attributes, noted)", "pass"
    ),
    "a link is not durable before its unlink": Bug("LinkBatch._move_name", "self._must_flush = True", "pass"),
    "a durable batch is not synced": Bug(
        "Batch._write_and_move", "durable |= self._is_durable(operation) and outcome.result is Result.DONE", "pass"
    ),
    "a written file is not synced": Bug("Batch._keep", "self._barrier.add_file(fd)", "self._calls.close(fd)"),
    "the folder that was left is not synced": Bug(
        "mq.storage.files.stepwise.batch:Batch._note_moved", "[left] if is_durable else []", "[]"
    ),
    "the folder that was entered is not synced": Bug(
        "LinkBatch._note_moved", "self._barrier.add_folders(_folder(target))", "pass"
    ),
    "one folder is synced of two where names have no order": Bug(
        "mq.storage.files.sync:Barrier.add_folders",
        "self._folders.update(paths)",
        """
        held = [path for path in paths if path in self._syncs.held]
        self._folders = {held[0]} if held else self._folders | set(paths)
        """,
    ),
    "a file is thought to bring its name where names have no order": Bug(
        "mq.storage.files.sync:Barrier._sync_files", "return False", "return bool(self._files)"
    ),
    "a file is thought to bring what was changed after it": Bug("bring_in_order", "calls.touch(files[-1])", "pass"),
    "a file is thought to bring the bytes of others": Bug("bring_in_order", "if others or len(files) > 1: ...", "pass"),
    "an old name is unlinked, and that not synced": Bug("LinkBatch._finish_links", "durable = True", "pass"),
    "a message is unlinked while an older name can come back": Bug(
        "Batch._unlink_removed", "if self._root.dirty_folders: ...", "pass"
    ),
    "a queue's folder is made, and that not synced": Bug(
        "RecordChanges._make_queue", "synced_after(folder_calls, *self._to_sync(made=made))", "nullcontext()"
    ),
    "a queue's deletion is not synced": Bug(
        "RecordChanges._delete_queue", "with synced_after(calls, layout.remove, layout.queues): ...", "..."
    ),
    "recovery keeps torn messages": Bug("_drop_torn", "if flaw: ...", "if False: ..."),
    "recovery keeps a torn message that was being leased": Bug("_moved_on", "entry.meta.receives == 1", "False"),
    "a publish is not durable": Bug(
        "PublishJob.operation",
        "Write(..., id, body, draft.attributes, meta, True, transient, state, ...)",
        "Write(..., id, body, draft.attributes, meta, False, transient, state, ...)",
    ),
    "a lease is not durable": Bug(
        "Leases.move",
        "Move(entry, _DELAYED, ..., reads=reads)",
        "Move(entry, _DELAYED, ..., reads=reads, durable=False)",
    ),
    "a lease is counted from before its move": Bug(
        "Deliverer.leased",
        "due = now + lease_seconds + allowance",
        "due = barrier.began + lease_seconds + allowance",
    ),
    "a lease's name leaves no time for its barrier": Bug("Leases.deadline_ms", "seconds + MARGIN_SECONDS", "seconds"),
    "leases end with the broker": Bug("Upkeep._remaining_seconds", "return min(max(..., 0.0), ...)", "return 0.0"),
    "a removal is not durable": Bug(
        "Remover._batch",
        "removing(entries, in_one_step=self._removes, durable=durable)",
        "removing(entries, in_one_step=self._removes, durable=False)",
    ),
    "ids go back with the clock": Bug("MessageIds.new", "ticks <= self._last", "ticks == self._last"),
    "what is ahead of the clock is taken for a leftover": Bug(
        "Catalog.place",
        """
        if index is None:
            if entry.queue in self.leaving: ...
            return
        """,
        """
        if index is None or entry.id.published_ns > self.events.clock.wall_ns() + 400 * 86_400 * 10**9:
            if True: ...
            return
        """,
    ),
    "a lease lasts until a clock that was set back comes there": Bug(
        "Upkeep._remaining_seconds", "min(max(..., 0.0), LONGEST_LEASE_SECONDS + MARGIN_SECONDS)", "max(..., 0.0)"
    ),
    "what is in NEW at the start is left there": Bug(
        "StoreWatcher.load", "(State.DELAYED, State.NEW, State.REMOVED)", "(State.DELAYED, State.REMOVED)"
    ),
    "a key is not durable before its message": Bug("Keys._put", "await self._flush()", "pass"),
    "a key is forgotten when its message is removed": Bug(
        "Keys.secure", "if not self.unsecured.isdisjoint(ids): ...", "pass"
    ),
    "of two who publish with one key each is stored": Bug(
        "Publisher._earlier", "(index, draft.key) in self._by_key", "False"
    ),
    "a history is not durable before its message moves": Bug(
        "DeadLetters._put", "await self._ledger.put(...)", "self._ledger.put_later(...)"
    ),
    "a ledger forgets what was put while it was written": Bug(
        "Ledger.end", "self._durable = write.changes", "self._durable = self._changes + 1"
    ),
    "a ledger forgets what was refused": Bug("Ledger.end", "self._dirty.update(write.segments)", "pass"),
    "a ledger writes what was left before where that went": Bug(
        "Ledger.begin", "sorted(self._dirty, key=_by_age, reverse=True)", "sorted(self._dirty, key=_by_age)"
    ),
    "a delivery that is refused is forgotten": Bug(
        "Upkeep._end_move", "self._catalog.end(entry, entry, kind)", "self._catalog.end(entry, None, kind)"
    ),
    "a delivery that is refused is not tried again": Bug(
        "Mover._end_move", "self.add(entry, trio.current_time() + RETRY_SECONDS)", "pass"
    ),
    "a death that is refused is forgotten": Bug("DeadLetters._put_back", "None if is_gone else each.entry", "None"),
    "a receipt is not compared": Bug("_checked", "entry.meta.receipt != receipt", "entry.meta.receipt is None"),
    "what has expired is handed out": Bug(
        "Upkeep.is_dead",
        "entry.meta.expires_ms is not None and dead_letters.is_expired(entry)",
        "False",
    ),
    "what was received too often is handed out": Bug(
        "DeadLetters.is_worn_out",
        "entry.meta.receives < index.settings.max_receives",
        "entry.meta.receives <= index.settings.max_receives",
    ),
    "a limit does not count what is being published": Bug(
        "check_room",
        "index.counted + messages > most",
        "index.counted - index.reserved + messages > most",
    ),
    "a unique queue does not know what is being published": Bug(
        "Publisher._earlier", "(index, digest) in self._by_digest", "False"
    ),
    "a delay is not kept": Bug(
        "_aim", "return Move(entry, State.DELAYED, entry.meta, durable=False)", "return to_ready(entry)"
    ),
    "a delayed message keeps its earlier time": Bug(
        "Consumption.reschedule", "job = self._begin(move, Kind.DELAY, ...)", "return"
    ),
    "a settings change is not durable": Bug(
        "RecordChanges._make_queue",
        """
        self._records.put(QUEUE, name, value)
        if made: ...
        """,
        """
        made and self._records.put(QUEUE, name, value)
        if made: ...
        """,
    ),
    "a claim is not durable": Bug(
        "_Keeping.put",
        "return [Put(KIND, self._key, _record(self._consumer, self._state))]",
        """
        known = self._consumer.state.claim
        return [Put(KIND, self._key, _record(self._consumer, self._state._replace(claim=known)))]
        """,
    ),
    "what is claimed is not taken out at the start": Bug(
        "BatchConsumers.load", "consumer.is_held or consumer.state.is_acknowledged", "False"
    ),
    "an acknowledgement forgets a removal": Bug(
        "ClaimedMessages.remove",
        "there = [entry for entry in found if entry is not None]",
        "there = [entry for entry in found[1:] if entry is not None]",
    ),
    "a claim is not renewed": Bug(
        "BatchConsumers._hold", "not (is_fresh and len(there) == len(wanted))", "len(there) < len(wanted)"
    ),
    "a claim has what somebody else has by now": Bug(
        "ClaimedMessages._is_to_be_had",
        "if entry is None or id in index.held or index.claims.get(id, consumer) is not consumer: ...",
        "if entry is None: ...",
    ),
    "an acknowledgement is not durable": Bug(
        "BatchConsumers.acknowledge",
        "await self._keep(index, consumer, state._replace(acknowledged=batch))",
        "consumer.state = state._replace(acknowledged=batch)",
    ),
    "an acknowledgement passes over what is on its way": Bug("ClaimedMessages.remove", "left = moving", "left = []"),
    "an acknowledgement leaves what is ready again": Bug(
        "ClaimedMessages.remove",
        "[entry for entry in found if entry is not None]",
        "[entry for entry in found if entry is not None and entry.state is not State.READY]",
    ),
    "an acknowledgement leaves what was handed out again": Bug(
        "ClaimedMessages.remove",
        "[entry for entry in found if entry is not None]",
        "[entry for entry in found if entry is not None and entry.meta.receives < 2]",
    ),
    "an acknowledgement leaves what has died": Bug(
        "DeadLetters.find", "while found is None and target is not None: ...", "pass"
    ),
    "a consumer that was started again shuts nobody out": Bug(
        "BatchConsumers._check_epoch", "epoch != consumer.state.epoch", "False"
    ),
    "an extended lease ends as before": Bug(
        "MoveJob.done",
        "None if self._seconds is None else trio.current_time() + self._seconds",
        "self._started + 0.01",
    ),
    "a waiting fetch gets a second message of a group": Bug(
        "MessageGroups.is_blocked", "number_of(id) in self._groups", "False"
    ),
    "a group is not blocked by what is held back": Bug(
        "_was_handed_out", "entry.meta.receipt is not None or entry.meta.receives > 0", "entry.meta.receipt is not None"
    ),
    "a message's id does not tell its group": Bug(
        "PublishJob.operation", "publisher.ids.new(draft.group, ...)", "publisher.ids.new(None, ...)"
    ),
    "a message with a key does not tell its group": Bug(
        "PublishJob.choose_id", "self._publisher.ids.new(self._draft.group)", "self._publisher.ids.new()"
    ),
    "the rows of a write job are not durable": Bug(
        "WriteJobs._hold",
        "self._core.committer.submit(lambda: writes, len(writes), stored)",
        """
        loose = [write._replace(durable=False) for write in writes]
        self._core.committer.submit(lambda: loose, len(loose), stored)
        """,
    ),
    "a write job's commit is not durable": Bug(
        "WriteJobs._decide",
        "await self._note(job, JobState.COMMITTED, parts=counted, rows=rows, queues=queues)",
        'job.take({"state": "committed", "parts": counted, "rows": rows, "queues": queues})',
    ),
    "all runs of a task come": Bug("WriteJobs._finish", "list(job.chunks(job.wanted))", "list(job.chunks())"),
    "a row of a write job has no key": Bug("_decoded", "draft if draft.key is not None else ...", "draft"),
    "a committed write job is not gone on with at the start": Bug(
        "WriteJobs._redo", "if job.state is JobState.COMMITTED: ...", "pass"
    ),
    "who browses sees a part of a write job": Bug("WriteJobs.settle", "while self._filling[index]: ...", "pass"),
    "rows of an aborted write job are left": Bug(
        "WriteJobs._abort", "self._garbage += job.take_all()", "job.take_all()"
    ),
}
"""Each by what it does, in words. To plant a new one: add it here, then ``make planted``."""

OF_THE_LOG: Final = {
    "what a refused write left half-way comes back": Bug(
        "redo", "_drop_refused(folders, records, told, refused_by(told))", "pass"
    ),
    "a delayed message is written where it can be had": Bug(
        "PublishJob.operation", "_READY if meta.deadline_ms is None else State.DELAYED", "State.READY"
    ),
    "a key is not in one group with its message": Bug(
        "_KeyedGroup.make", "Group((*self.kept.puts, *writes))", "Group(tuple(writes))"
    ),
    "a key stands for a message that was refused": Bug(
        "_KeyedGroup._take_back_keys", "self._keys.give_up(each.job.index, each.key)", "pass"
    ),
    "half of a group that was refused is done": Bug("Units.end", "step.do()", "pass"),
    "the log is not flushed": Bug("Log.flush", "(flush or self._calls.fdatasync)(self._current.fd)", "pass"),
    "a segment is freed before what it speaks of is on the medium": Bug(
        "Log._checkpoint",
        "self._bring(segment.fd, segment.size, (record for _, record in segment.records(self._left)))",
        "pass",
    ),
    "a checkpoint leaves the bytes of its files in memory": Bug(
        "_write_bytes_out", "write_out(calls, fd, waits=True)", "pass"
    ),
    "a checkpoint syncs what was not changed after its files": Bug(
        "bring", "bring_in_order(folders.calls, [segment])", "folders.calls.fsync(segment)"
    ),
    "a checkpoint forgets records": Bug("_few_files", "files + found", "files"),
    "a record of an earlier epoch is believed": Bug(
        "Segment._read", "(epoch, key) != (self.epoch, self.key)", "epoch > self.epoch"
    ),
    "what a record says is done though it was refused": Bug(
        "mq.storage.files.logged.commit:_commit",
        "log.append(encode([Refused(sequence, tuple(refused)), *(() if units is None else units.undoing)]))",
        "pass",
    ),
    "the last of what the log says is not done again": Bug(
        "redo", "fates = fates_of(sayings)", "fates = fates_of(sayings[:-1])"
    ),
    "queues are not made again from the log": Bug("redo", "_redo_queues(folders, records, sayings)", "pass"),
    "records are not put again from the log": Bug("redo", "_redo_records(records, everything)", "pass"),
    "a file is believed for its name": Bug("_make_whole", "_is_whole(folders, name, fate.wrote)", "True"),
    "a large body is not on the medium when the log names it": Bug(
        "bring_in_order", "write_out(calls, fd, waits=True)", "pass"
    ),
    "large bodies are not changed before the sync that is to bring them": Bug(
        "bring_in_order", "calls.touch(files[-1])", "pass"
    ),
    "files are there before the log has them": Bug(
        "mq.storage.files.logged.commit:_commit",
        "log.append(encode(portion.recorded, root.prefix), flushes=portion.flushes, flush=flush)",
        "log.append(encode(portion.recorded, root.prefix))",
    ),
    "it is told of what is not on the medium yet": Bug(
        "mq.storage.files.logged.commit:_commit",
        """
        sequence = log.append(encode(portion.recorded, root.prefix), flushes=portion.flushes, flush=flush)
        units = None if portion.units is None else Units(root, portion, portion.units, early)
        outcomes, refused = _do_messages(root, portion, early) if units is None else (units.outcomes, units.refused)
        """,
        """
        sequence = log.append(encode(portion.recorded, root.prefix))
        units = None if portion.units is None else Units(root, portion, portion.units, early)
        outcomes, refused = _do_messages(root, portion, early) if units is None else (units.outcomes, units.refused)
        log.flush(flush)
        """,
    ),
    "what comes after a refusal is told as if it were the refused one": Bug(
        "EarlyResults.append", "self.is_over or not is_expected", "False"
    ),
    "what was told is told again at the end": Bug("commit_in_parts", "del outcomes[:heard]", "pass"),
    "an outcome that was heard is given to the next submission, too": Bug(
        "_answer_some", "outcomes[at:end]", "outcomes[: end - at]"
    ),
}
"""Found where stores have a log (``--log``)."""
