"""The state in which a root was left, and the folders and files that it has lost since."""

from __future__ import annotations

from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.calls import Calls, FileKind
from mq.storage.files.format import FormatDamaged, RootUse, note_use, read_use
from mq.storage.files.layout import Layout
from mq.storage.files.records import Records
from mq.storage.interface import Damage

LOST_STATE: Final = (
    "the folder is new or missing, although the root contains messages. If the folder was deleted, the "
    "following are lost: the settings of all queues, idempotency keys, schedules, exchanges and bindings, "
    "batch consumers, write jobs, and confirmed messages that were only in the log"
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
        raise StorageUnusable(
            f"cannot serve root {shorten(root, 200)}: {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} "
            f"missing, including all contents. {cure(root)}"
        )
    return [Damage("", None, path, "the folder was missing, including all its contents") for path in lost]


def use_of_root(calls: Calls, layout: Layout) -> RootUse | None:
    """How a root was left by its last daemon; None if it is new, or has lost all of state/.

    Raises:
        FormatDamaged: nothing tells, though the root has been in use.
        StorageUnusable: another version of mq wrote it.
    """
    use = read_use(calls, layout)
    if use is None and (calls.kind(layout.log_folder) is not None or _has_records(calls, layout)):
        raise FormatDamaged(f"{layout.format} is missing")
    return use


def _has_records(calls: Calls, layout: Layout) -> bool:
    records = Records(calls, layout.records)
    return calls.kind(layout.records) is not None and any(map(records.files, records.kinds()))


def use_before(
    calls: Calls, layout: Layout, root: str, accepted: list[Damage] | None, *, alone: bool
) -> RootUse | None:
    """How the root was left by its last daemon; None if it is new, or has lost all of state/.

    Args:
        calls: the system.
        layout: the root's folders.
        root: its path.
        accepted: gets what is lost, where that is accepted; else None.
        alone: whether no other daemon serves the root.

    Raises:
        StorageUnusable: this version cannot serve it, or it is damaged.
    """
    try:
        use = use_of_root(calls, layout)
    except FormatDamaged as error:
        kind = calls.kind(layout.format)
        if accepted is None or kind not in (FileKind.FILE, None):
            raise StorageUnusable(
                f"cannot serve root {shorten(root, 200)}: {error}. The log may contain messages that are "
                f"missing from the files, but mq cannot check this. {cure(root)}"
            ) from error
        accepted.append(Damage("", None, layout.format, str(error)))
        if kind is FileKind.FILE:
            calls.unlink(layout.format)
        return RootUse.FILES if calls.kind(layout.log_folder) is None else RootUse.LOG
    if use is RootUse.RESTORING:
        raise StorageUnusable(
            f"root {shorten(root)} is only partially restored: run mq restore again with the same backup and the same "
            "root"
        )
    if use is None and alone:
        note_use(calls, layout, RootUse.FILES)  # before the first record and the log
    return use
