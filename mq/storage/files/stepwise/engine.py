"""The engine *stepwise*: each batch writes its files, names them and syncs them. Slow where syncs are, and simple."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.files.engine import Traits
from mq.storage.files.folders import Folders, Opened
from mq.storage.files.hop import EarlyResults
from mq.storage.files.mount import Mount
from mq.storage.files.records import Records
from mq.storage.files.stepwise.batch import Batch, LinkBatch, OrderedBatch, commit
from mq.storage.files.stepwise.peers import Alarm
from mq.storage.files.stepwise.queues import LinkedRecords, SyncedRecords
from mq.storage.files.stepwise.root import Others, SteppedRoot
from mq.storage.files.stepwise.shared import SharedBatch, SharedLinkBatch, SharedOrderedBatch, SharedUnorderedBatch
from mq.storage.files.stepwise.watch import OwnChanges, watch_folders
from mq.storage.interface import AnyOperation, Change, Entry, Outcome

_WATCHED: Final = frozenset({State.READY, State.DELAYED})
"""The states that a broker watches. It delivers its own messages, and unlinks those that it has removed, itself;
messages that a dead one has left in NEW and REMOVED are looked for from time to time."""


class Kit(NamedTuple):
    """The parts of the engine for a kind of file system.

    Attributes:
        shared: the same, where other processes change the root.
        removes: whether a message may be unlinked from any place.
        completes: whether no power cut leaves a partial file under a message's name: it is synced before it is named,
            or nothing is left.
    """

    batch: type[Batch]
    shared: type[SharedBatch]
    records: type[SyncedRecords]
    removes: bool = False
    completes: bool = False


# Names that reach the disk in the order in which they are changed tell no removal from a move and an unlink. Of peers
# that race for the message one wins either way.
_ORDERED: Final = Kit(OrderedBatch, SharedOrderedBatch, SyncedRecords, removes=True)
_UNORDERED: Final = Kit(Batch, SharedUnorderedBatch, SyncedRecords)
_LINKED: Final = Kit(LinkBatch, SharedLinkBatch, LinkedRecords, completes=True)


def kit_for(mount: Mount) -> Kit:
    """Return the parts for a file system with these traits."""
    if not mount.atomic_rename:
        return _LINKED
    kits = {True: _ORDERED, False: _UNORDERED}
    return kits[mount.ordered]._replace(completes=not mount.persistent)


def stepped_root(kit: Kit, folders: Folders, *, stage: str, shared: bool) -> SteppedRoot:
    """Return the root below `folders`.

    Args:
        stage: the folder in which this process's bodies arrive.
        shared: whether other processes change it, too.
    """
    if not shared:
        return SteppedRoot(folders, None, stage)
    # Where names reach the disk in order, a failed sync fails those of all processes.
    alarm = Alarm(folders.calls, folders.layout.alarm) if issubclass(kit.shared, SharedUnorderedBatch) else None
    return SteppedRoot(folders, Others(folders, alarm), stage)


class StepwiseEngine:
    """Changes a root without a log.

    Args:
        ids: name the folders of deleted queues.
        own: changes of this process, which are not reported; None if the kernel reports no changes here.

    Attributes:
        commit: as of :class:`mq.storage.files.engine.Engine`; so are stage, tells_early, keeps_movers_away and
            waits_to_end.
    """

    tells_early = False
    waits_to_end = False

    def __init__(
        self, kit: Kit, root: SteppedRoot, records: Records, ids: MessageIds, own: OwnChanges | None = None
    ) -> None:
        self.root = root
        self.stage = root.stage
        # A mover would take messages to where a lone daemon's index does not look again.
        self.keeps_movers_away = is_alone = root.others is None
        # Recovery looks for partial messages in new/ and delay/ only. A killed process leaves none anywhere.
        self._places = is_alone and kit.completes
        self._kit = kit
        self.commit: Callable[[EarlyResults, Sequence[AnyOperation]], list[Outcome]] = partial(
            commit, kit.batch if is_alone else kit.shared, root, kit.records(root, records, ids)
        )
        self._own = own

    @property
    def traits(self) -> Traits:
        return Traits(places=self._places, removes=self._kit.removes)

    def read_ahead(self, entries: Sequence[Entry]) -> list[Opened] | None:
        """None: nothing is read ahead."""
        return None

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """Changes by other processes, by inotify."""
        return None if self._own is None else watch_folders(self.root.folders, _WATCHED, self._own)

    def end(self) -> bool:
        """Sync what is not synced."""
        volume = self.root.folders.volume
        if volume.failure or volume.is_cut_off:
            return False
        volume.syncs.whole(lambda: None)  # each file was synced with its name
        return True
