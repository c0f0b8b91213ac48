"""The file system below a root: its traits, its syncs, the room that is kept on it, and whether it has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from mq.storage.files.calls import Calls
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount
from mq.storage.files.reserve import Reserve
from mq.storage.files.sync import make_syncs

logger = logging.getLogger("mq.storage")


class Volume:
    """The file system below one root.

    Args:
        root_fd: a folder on it, opened before anything is written, and kept.
        held: folders of the root that are kept open, by their paths.
        syncfs: whether syncfs(2) exists, reports errors, and brings everything here.
        shared: whether other processes use the root, too.

    Attributes:
        reserve: room that is given up for removals when the disk is full.
        failure: why nothing more is changed; empty while the disk is well.
        is_cut_off: whether a change was cut off half-way by something other than an error of the system.
        failing: called once, when the disk has failed.
    """

    def __init__(
        self,
        calls: Calls,
        layout: Layout,
        mount: Mount,
        root_fd: int,
        held: Mapping[str, int] = MappingProxyType({}),
        *,
        syncfs: bool = False,
        shared: bool = False,
    ) -> None:
        self.mount = mount
        self.syncs = make_syncs(calls, root_fd, held, syncfs=syncfs, folders=mount.folder_syncs)
        self.reserve = Reserve(calls, layout, mount.size, shared=shared)
        self.failure = ""
        self.is_cut_off = False
        self.failing: Callable[[], object] = lambda: None

    def fail(self, error: OSError) -> None:
        """Change nothing more until the root is opened anew: the disk failed, and its contents are unknown."""
        if not self.failure:
            self.failure = f"{error.strerror or error} ({error.filename or 'sync'})"
            logger.error("the disk failed: %s. The store is read-only until mq is restarted", self.failure)
            self.failing()
