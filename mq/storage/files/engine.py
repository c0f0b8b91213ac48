"""The two engines that change a root, and which of them serves it.

* *logged* (:mod:`mq.storage.files.logged.engine`): one flush of a write-ahead log makes a batch durable before its
  file calls are made. For one process, on ext4 with a journal and on xfs.
* *stepwise* (:mod:`mq.storage.files.stepwise.engine`): each file is written, named and synced. Everywhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.folders import Opened
from mq.storage.files.hop import EarlyResults
from mq.storage.files.mount import Mount
from mq.storage.interface import AnyOperation, Change, Entry, Outcome, Sharing
from mq.storage.options import StorageOptions

LOGGED: Final = "logged"
STEPWISE: Final = "stepwise"


class EngineChoice(NamedTuple):
    """The engine that serves a root.

    Attributes:
        engine: its name: :data:`LOGGED` or :data:`STEPWISE`.
        faster: what would make it faster; empty if nothing would, or it is fast.
    """

    engine: str
    why: str
    faster: str = ""

    def __str__(self) -> str:
        return f"engine {self.engine}: {self.why}" + (
            f". For higher throughput, use {self.faster}" if self.faster else ""
        )


class Traits(NamedTuple):
    """What an engine can do, as in :class:`mq.storage.interface.Description`.

    Attributes:
        places: it writes a message where it rests.
        removes: it unlinks a message from any place.
        groups: operations that a group may have; 0 if it takes none.
        group_bytes: bytes of a group; None for no limit.
    """

    places: bool = False
    removes: bool = False
    groups: int = 0
    group_bytes: int | None = None


class Engine(Protocol):
    """Changes one root, durably. Synchronous, but for what it says.

    Attributes:
        tells_early: whether the first outcomes of a batch come before its last file calls.
        keeps_movers_away: whether mq-mover and mq-reaper have to be locked out.
        waits_to_end: whether its end takes so long that it belongs in a thread.
    """

    stage: str
    tells_early: bool
    keeps_movers_away: bool
    waits_to_end: bool

    @property
    def traits(self) -> Traits:
        """What it can do. Groups may be larger once a log has grown."""

    def commit(self, early: EarlyResults, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Do a batch. One outcome for each operation, in order; `early` may be told of the first ones on the way."""

    def read_ahead(self, entries: Sequence[Entry]) -> list[Opened] | None:
        """Return messages that were read when they were moved; None if one was not."""

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """Changes by other processes, as they happen; None if none are seen."""

    def end(self) -> bool:
        """Bring all changes to disk. Returns whether that is known to be done."""


def choose_engine(
    mount: Mount, options: StorageOptions, root: str, *, syncfs: bool, xattrs: bool = True
) -> EngineChoice:
    """Choose the engine that serves a root.

    Args:
        xattrs: whether files have extended attributes.

    Raises:
        StorageUnusable: no engine can serve it; the text says why and what to do.
    """
    if mount.flaw:
        raise StorageUnusable(f"root {shorten(root)} {mount.flaw}")
    if mount.assumed and not options.untested:
        raise StorageUnusable(
            f"root {shorten(root)} is on {mount.kind}. mq has not been tested on this file system, so "
            "confirmed messages may be lost in a power or server failure. Choose a --root on ext4, xfs or "
            "btrfs, or allow this file system with --untested-fs"
        )
    for is_so, why, faster in (
        (not mount.persistent, f"{mount.kind} loses all files in a power failure, so no log is needed", ""),
        (options.sharing is Sharing.PEERS, "--peers lets several daemons change the root", "--standby"),
        (options.sharing is Sharing.WATCHED, "mq-mover or mq-reaper may change the root", ""),
        (not options.log, "the log is disabled", ""),
        (not mount.logged, *_without_log(mount)),
        (not syncfs, "this kernel does not report failed syncs of a file system (syncfs)", "Linux 5.8 or newer"),
        (
            not xattrs,
            "the file system does not support extended attributes",
            "a file system that is mounted with user_xattr",
        ),
    ):
        if is_so:
            return EngineChoice(STEPWISE, why, faster)
    why = f"a single daemon uses the root on {mount.kind}, so one disk flush makes a whole batch durable"
    return EngineChoice(LOGGED, why)


def _without_log(mount: Mount) -> tuple[str, str]:
    """Why no log is used on a file system, and what would be faster."""
    if mount.kind == "ext4":  # with one it would have a log
        why = "this ext4 file system has no journal, so each message requires several disk flushes"
        return why, "ext4 with a journal (tune2fs -O has_journal), or xfs"
    return f"a log has not been tested on {mount.kind}", "a --root on ext4 or xfs"
