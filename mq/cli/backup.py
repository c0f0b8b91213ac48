"""The verbs ``backup`` and ``restore``: of a root of files, while a daemon serves it or not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import click
from tqdm import tqdm

from mq.cli.commands import CANNOT_START, NOT_NOW, REFUSED, Number, trust_options
from mq.cli.remote import fail, json_option, warn
from mq.cli.terminal import say, say_json
from mq.errors import StorageFull, StorageUnusable
from mq.quantities import show_count
from mq.storage.files.backup import back_up
from mq.storage.files.backup_folder import BackupHeader
from mq.storage.files.restore import list_backups, restore
from mq.storage.options import StorageOptions

_NAMED: Final = 10
"""Damaged messages whose ids are told."""


class _Bar:
    """A progress bar of which the end moves, on a terminal."""

    def __init__(self) -> None:
        self._bar = tqdm(disable=None, unit=" messages", leave=False)

    def told(self, done: int, total: int) -> None:
        """So many are done, of so many."""
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take it from the screen."""
        self._bar.close()


@click.command("backup")
@click.argument("root", envvar="MQ_ROOT", type=click.Path())
@click.argument("folder", type=click.Path())
@click.option(
    "--keep",
    type=Number(1),
    default=7,
    show_default=True,
    metavar="NUMBER",
    help="Number of backups to keep in FOLDER; older ones are deleted.",
)
@json_option
def backup_command(root: str, folder: str, keep: int, as_json: bool) -> None:
    """Back up a root, even while a daemon is serving it.

    A root is the folder in which mq stores its queues. The backup is a consistent snapshot of the root, and it has been
    synced to disk when the command exits with status 0. Later backups to the same FOLDER are incremental.
    """
    bar = _Bar()
    try:
        header, copied, dropped = back_up(root, folder, keep=keep, told=bar.told)
    except StorageUnusable as error:
        fail(str(error), CANNOT_START)
    except StorageFull as error:
        fail(str(error), NOT_NOW)
    finally:
        bar.close()
    if as_json:
        say_json({**header._asdict(), "copied": copied, "dropped": dropped})
    else:
        say(f"{_description(header)}; {copied} copied")


@click.command("restore")
@click.argument("folder", type=click.Path())
@click.argument("root", required=False, envvar="MQ_ROOT", type=click.Path())
@click.option(
    "--number",
    type=Number(1),
    metavar="NUMBER",
    help="Number of the backup to restore, as shown by --list. [default: the newest backup]",
)
@click.option("--list", "lists", is_flag=True, help="List the backups in FOLDER without restoring one.")
@json_option
@trust_options
def restore_command(
    folder: str, root: str | None, number: int | None, lists: bool, as_json: bool, trust: Mapping[str, Any]
) -> None:
    """Restore a backup to an empty root.

    ROOT is created if it does not exist. Changes made after the backup are lost: messages removed since then are in
    their queues again, and messages published since then are missing.
    """
    bar = _Bar()
    try:
        if lists:
            _show(list_backups(folder), as_json=as_json)
            return
        if root is None:
            raise click.UsageError("the argument ROOT (the folder to restore to) is missing")
        header, restored, damaged = restore(folder, root, StorageOptions(**trust), number=number, told=bar.told)
    except StorageUnusable as error:
        fail(str(error), CANNOT_START)
    except StorageFull as error:
        fail(str(error), NOT_NOW)
    finally:
        bar.close()
    if as_json:
        say_json({**header._asdict(), "restored": restored, "damaged": damaged})
    else:
        say(_description(header))
    if damaged:
        ids = ", ".join(damaged[:_NAMED]) + (", ..." if len(damaged) > _NAMED else "")
        warn(f"messages not restored because they are damaged in or missing from the backup: {len(damaged)} ({ids})")
        sys.exit(REFUSED)


def _show(headers: list[BackupHeader], *, as_json: bool) -> None:
    for header in headers:
        if as_json:
            say_json(header._asdict())
        else:
            say(_description(header))


def _description(header: BackupHeader) -> str:
    return (
        f"backup {header.number} of {header.instant}: {show_count(header.messages, 'message')} in "
        f"{show_count(header.queues, 'queue')}, {show_count(header.bytes, 'byte')}"
    )
