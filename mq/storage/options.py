"""How a store will be used, as its opener says."""

from __future__ import annotations

from dataclasses import dataclass

from mq.storage.confirmed import LastConfirmed
from mq.storage.interface import Sharing


@dataclass(frozen=True)
class StorageOptions:
    """How a store will be used. A backend that cannot serve it so says no in its factory.

    Attributes:
        native: whether mq-native may be used, where it is installed.
        group_writable: whether a group may write in folders, and its members may make queues.
        root_owner: the number of a user whose folders are used, besides this process's and root's.
        log: whether batches are made durable by a log instead of file by file. Only where one process has the store, on
            a file system on which a log was proven (:attr:`mq.storage.files.mount.Mount.logged`).
        log_bytes: of each of its two segments; where not given, they grow from 1 MiB to 32 MiB.
        untested: whether a root is served on a file system of which nothing was measured
            (:attr:`mq.storage.files.mount.Mount.assumed`).
        max_memory: bytes of messages that may be kept in memory, where the store keeps some there.
        confirmed: where a store that others keep alive notes how far it has come; None where it is not to.
    """

    sharing: Sharing = Sharing.ALONE
    native: bool = True
    group_writable: bool = False
    root_owner: int | None = None
    max_memory: int = 192 << 20
    log: bool = True
    log_bytes: int | None = None
    untested: bool = False
    confirmed: LastConfirmed | None = None
