"""Bugs to plant in the real code, a line each: the simulation has to find every one of them."""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from mq.broker import (
    claimed,
    claims,
    consumers,
    consuming,
    deaths,
    fetching,
    follow,
    handing_out,
    jobs,
    keys,
    leases,
    ledger,
    publishing,
    removing,
    upkeep,
)
from mq.message import MessageIds
from mq.storage import barrier, batch, posix, recovery
from mq.testing.simulation import Report, run_seed


class Bug(NamedTuple):
    """A line of the real code, and what stands there instead.

    Attributes:
        owner: the class or module that has the function.
        function: its name.
        line: what is replaced; it occurs once.
        instead: what replaces it.
    """

    owner: Any
    function: str
    line: str
    instead: str


BUGS: Final = {
    "a folder is not synced": Bug(barrier.Barrier, "_sync_folders", "self._syncs.folder(folder)", "pass"),
    "a file is not synced": Bug(barrier.Barrier, "settle", "sync(self._calls, fd)", "pass"),
    "an fsync that failed is tried again": Bug(
        barrier.Barrier, "settle", "sync(self._calls, fd)", "try_again(self._calls.fsync, fd)"
    ),
    "a batch that failed is answered as done": Bug(
        batch.Batch, "run", "self._folders.fail(error)", "return self._outcomes"
    ),
    "a message carries no checksum": Bug(batch.Batch, "_write", "self._note(fd, operation, size, crc)", "pass"),
    "a link is not durable before its unlink": Bug(
        batch.Batch, "_write_and_move", "if durable or self._links or self._must_settle:", "if durable:"
    ),
    "what is done at once is not synced": Bug(
        batch.Batch, "_do_at_once", "durable |= self._is_durable(operation)", "pass"
    ),
    "what is written at once is not synced": Bug(
        batch.Batch,
        "_do_at_once",
        "self._barrier.add_file(fd) if keep else self._barrier.add_closed_file()",
        "self._calls.close(fd) if keep else None",
    ),
    "the folder that was left is not synced": Bug(
        batch.Batch, "_moved", "add_folders(entered, *also)", "add_folders(entered)"
    ),
    "the folder that was entered is not synced": Bug(
        batch.Batch, "_moved", "add_folders(entered, *also)", "add_folders(*also)"
    ),
    "one folder is synced of two where names have no order": Bug(
        barrier.Barrier, "add_folders", "if self._syncs.ordered else []", ""
    ),
    "a file is thought to bring its name where names have no order": Bug(
        barrier.Barrier, "add_file", "if self._syncs.ordered:", "if True:"
    ),
    "a file is thought to bring what was changed after it": Bug(
        barrier.Barrier,
        "add_folders",
        "self._folders = {held[0]}",
        "self._folders = {held[0]} - {*held[bool(self._files) - 1 :]}",
    ),
    "a file is thought to bring its lease where names have no order": Bug(
        barrier.Barrier, "brings_move", "self._syncs.ordered and self._files", "self._files"
    ),
    "an old name is unlinked, and that not synced": Bug(batch.Batch, "_finish_links", "durable = True", "pass"),
    "a message is unlinked while an older name can come back": Bug(
        batch.Batch, "_unlink_removed", "if self._folders.loose:", "if False:"
    ),
    "a queue's folder is made, and that not synced": Bug(
        posix.FolderStorage,
        "_put_record",
        "with synced_after(self._calls, folders.layout.queues):",
        "with contextlib.nullcontext():",
    ),
    "a queue's deletion is not synced": Bug(
        posix.FolderStorage,
        "_drop_record",
        "with synced_after(self._calls, layout.remove, layout.queues):",
        "with contextlib.nullcontext():",
    ),
    "recovery keeps torn messages": Bug(recovery, "_drop_torn", "if flaw:", "if False:"),
    "recovery keeps a torn message that was being leased": Bug(
        recovery, "_moved_on", "entry.meta.receives == 1", "False"
    ),
    "recovery prefers older places": Bug(
        recovery,
        "_rank",
        "(State.NEW, State.DELAYED, State.READY, State.REMOVED)",
        "(State.REMOVED, State.READY, State.DELAYED, State.NEW)",
    ),
    "a publish is not durable": Bug(
        jobs.Publish, "operation", "self._meta, transient", "self._meta, durable=False, transient"
    ),
    "a lease is not durable": Bug(leases.Leases, "move", "reads=reads)", "reads=reads, durable=False)"),
    "a lease is counted from before its move": Bug(
        handing_out.HandingOut, "leased", "now + self._leases.seconds", "started + self._leases.seconds"
    ),
    "a lease's name leaves no time for its barrier": Bug(
        leases.Leases, "deadline_ms", "seconds + MARGIN_SECONDS", "seconds"
    ),
    "leases end with the broker": Bug(
        upkeep.Upkeep,
        "_remaining_seconds",
        "return min(max(remaining_ns / 1e9, 0.0), LONGEST_LEASE_SECONDS + MARGIN_SECONDS)",
        "return 0.0",
    ),
    "a removal is not durable": Bug(
        removing.Remover,
        "_batch",
        "Move(entry, State.REMOVED, durable=durable)",
        "Move(entry, State.REMOVED, durable=False)",
    ),
    "ids go back with the clock": Bug(MessageIds, "new", "if ticks <= self._last:", "if ticks == self._last:"),
    "what is in NEW at the start is left there": Bug(
        follow.Follower, "load", "(State.DELAYED, State.NEW, State.REMOVED)", "(State.DELAYED, State.REMOVED)"
    ),
    "a key is not durable before its message": Bug(keys.Keys, "_put", "await self._flush()", "pass"),
    "a key is forgotten when its message is removed": Bug(
        keys.Keys, "settle", "if not self._unsettled.isdisjoint(ids):", "if False:"
    ),
    "of two who publish with one key each is stored": Bug(
        publishing.Publishing, "_earlier", "if (index, draft.key) in self._by_key:", "if False:"
    ),
    "a history is not durable before its message moves": Bug(
        deaths.Deaths, "_put", "await self._ledger.put(", "self._ledger.put_later("
    ),
    "a ledger forgets what was put while it was written": Bug(
        ledger.Ledger, "_write", "self._durable = changes", "self._durable = self._changes + 1"
    ),
    "a receipt is not compared": Bug(consuming, "_checked", "entry.meta.claim != receipt", "entry.meta.claim is None"),
    "what has expired is handed out": Bug(
        upkeep.Upkeep,
        "is_dead",
        "((EXPIRED, self._deaths.is_expired), (RECEIVES, self._deaths.is_worn_out))",
        "((RECEIVES, self._deaths.is_worn_out),)",
    ),
    "what was received too often is handed out": Bug(
        deaths.Deaths,
        "is_worn_out",
        "entry.meta.receives < index.settings.max_receives",
        "entry.meta.receives <= index.settings.max_receives",
    ),
    "a limit does not count what is being published": Bug(
        publishing.Publishing, "_check", "index.counted >= settings", "index.counted - index.reserved >= settings"
    ),
    "a unique queue does not know what is being published": Bug(
        publishing.Publishing, "_earlier", "if (index, digest) in self._by_digest:", "if False:"
    ),
    "a delay is not kept": Bug(upkeep, "_aim", "return Move(", "return to_ready(entry) or Move("),
    "a settings change is not durable": Bug(
        posix.FolderStorage,
        "_put_record",
        "self._root_open.records.put(kind, key, value if made else self._made_before(key, value))",
        "made and self._root_open.records.put(kind, key, value)",
    ),
    "a claim is not durable": Bug(
        claims.Claims,
        "_make",
        "await self._keep(index, consumer, consumer.state._replace(claim=claim))",
        "consumer.state = consumer.state._replace(claim=claim)",
    ),
    "the lease of a claim is not durable": Bug(
        claimed.Claimed,
        "_lease_some",
        "Move(entry, State.DELAYED, meta)",
        "Move(entry, State.DELAYED, meta, durable=False)",
    ),
    "a claim is not renewed": Bug(
        claims.Claims,
        "_hold",
        "if not (is_fresh and all(",
        "if not all(_is_leased(entry) for entry in there) and not (all(",
    ),
    "a claim has what somebody else has by now": Bug(
        consumers.Consumer, "has_leased", "entry.meta.claim.startswith(self.tag)", "True"
    ),
    "an acknowledgement is not durable": Bug(
        claims.Claims,
        "acknowledge",
        "await self._keep(index, consumer, state._replace(acknowledged=batch))",
        "consumer.state = state._replace(acknowledged=batch)",
    ),
    "a consumer that was started again shuts nobody out": Bug(
        claims.Claims, "_check_epoch", "if epoch != consumer.state.epoch:", "if False:"
    ),
    "what is offered and not taken is left in NEW": Bug(
        fetching.FetchWorker, "_next_chosen", "self._upkeep.deliver_offers(index)", "self._offers.leave(index)"
    ),
    "an extended lease ends as before": Bug(
        jobs.Change, "done", "None if self._seconds is None else time + self._seconds", "self._started + 0.01"
    ),
}


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The code with the bug in it."""
    original = getattr(bug.owner, bug.function)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(bug.line) == 1, f"{bug.line!r} is {source.count(bug.line)} times in {bug.function}"
    names: dict[str, Any] = {}
    space = {**original.__globals__, "contextlib": contextlib, "try_again": _try_again}
    changed = "from __future__ import annotations\n" + source.replace(bug.line, bug.instead)
    exec(compile(changed, "planted", "exec"), space, names)
    setattr(bug.owner, bug.function, names[bug.function])
    try:
        yield
    finally:
        setattr(bug.owner, bug.function, original)


def first_report(bug: Bug, seeds: range) -> Report | None:
    """The first run that finds the bug; None when none does."""
    with planted(bug):
        for seed in seeds:
            report = run_seed(seed)
            if report.violations:
                return report
    return None


def _try_again(sync: Callable[[int], None], fd: int) -> None:
    try:
        sync(fd)
    except OSError:
        sync(fd)
