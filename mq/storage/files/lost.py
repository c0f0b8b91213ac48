"""What a root has lost: its folders, or all of state/."""

from __future__ import annotations

from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.calls import Calls, FileKind
from mq.storage.files.layout import Layout
from mq.storage.interface import Damage

LOST_STATE: Final = (
    "the folder is new or missing, although the root contains messages. If the folder was deleted, the "
    "following are lost: the settings of all queues, idempotency keys, schedules, exchanges and bindings, "
    "batch consumers, write jobs, and confirmed messages that were only in the write-ahead log"
)
"""Of the folder state/: what a root has lost with it."""


def cure(root: str) -> str:
    """What an operator can do about files that are gone."""
    return (
        "Restore the root from a backup (mq restore), or accept the losses and serve the rest: mq doctor "
        f"--accept-loss {shorten(root, 200)}"
    )


def lost_folders(calls: Calls, layout: Layout, root: str, *, accept_loss: bool) -> list[Damage]:
    """The folders that a root in use has lost, before they are made again.

    Raises:
        StorageUnusable: there are some, and that was not accepted.
    """
    if calls.kind(root) is not FileKind.FOLDER or calls.kind(layout.state) is not FileKind.FOLDER:
        return []
    if calls.kind(layout.format) is None:
        return []  # it is written once all folders are there
    # What was in remove/ or state/stage/ is not a message.
    needed = [path for path in layout.all() if path not in (layout.state, layout.remove, layout.stage)]
    lost = [path for path in needed if calls.kind(path) is None]
    if lost and not accept_loss:
        advice = cure(root)
        raise StorageUnusable(
            f"cannot serve root {shorten(root, 200)}: these folders and everything in them are missing: "
            f"{', '.join(lost)}. {advice}"
        )
    return [Damage("", None, path, "the folder and everything in it were missing") for path in lost]
