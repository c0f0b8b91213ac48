"""The page of the documentation that shows the matrix."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from typing import Final

from tests.crash.matrix import PROMISED, Cell, Found

_TEXT: Final = """\
# Power cuts: the matrix

Made by `make powercut` on {date}, Linux {kernel}, Python {python}, in {minutes:.0f} minutes. Run it yourself: it takes
root, `/dev/fuse`, loop devices and the tools that `tests/setup-system.sh --yes` installs. `make powercut POINTS=1000`
cuts at more points.

## How it is done

A FUSE file under a loop device logs every write and every flush that the disk is asked for, in order, and every answer
that a client has read. On it lies a real file system, on that a real daemon serves several clients at once over HTTP:
small, empty and large messages (1 MiB, streamed), some with attributes that outgrow an extended attribute, leases that
end and come back, removals, queues made, deleted and made anew.

Then the power goes: the disk is rebuilt as it was at some point of the log. What was flushed is there. What was written
since the last flush is lost, kept, or torn: some writes, in no order, of some only a part. Half of the points are last
moments: everything is lost that can be, just before the next flush. The real kernel mounts what is left, the real
recovery opens it, and everything is looked at and fetched. Bad is a point at which a promise is broken: an acknowledged
message is lost, a removed one is back, a lease or a queue is gone, or something is handed out that is torn or was
never published. *Second cut* cuts the power again inside the recovery from a first cut.

## Points at which a promise was broken

{matrix}

"Could not be mounted" is a second cut that the file system itself does not survive: the disk here tears a block at 512
bytes, also while the kernel replays its own journal, and ext4 then finds its superblock torn, xfs a block of a folder.
Disks whose sectors have 4 KiB do not tear those. Such a point is counted, and not judged.

Points in all: {points}. "Worst" says what was broken, where something was. Flushes of the disk: *alone* a message that
one client publishes, and its move to its queue; *together* an acknowledged change with all clients at work, who share
barriers (workload: everything).

| file system | flushes alone | flushes together |
|---|---|---|
{costs}

## What mq does differently where

| file system | a message is moved by | what an answer waits for |
|---|---|---|
| ext4, xfs | rename | files written out, and one sync, of what was changed last; names reach the disk in order |
| btrfs | rename | one syncfs for several files, else a sync of each file and folder: names have no order |
| ext4-nojournal | link, sync, unlink, sync | the sync of the file before it has a name, then of each folder by itself |

[Storage formats](storage-formats.md#file-systems) has the whole table, and what is assumed of other file systems.

## Where mq does not promise it

`ext4-indexed` is ext4 without a journal, with the index of folders that it makes by default. When such a folder
outgrows a block, the kernel moves half of its names to another one. Without a journal these two writes are not one: a
power cut between them takes away names that were durable for long, and no program above can help it. (`e2fsck` puts
the files into `lost+found`.) Who has to do without a journal should make the file system by
`mkfs.ext4 -O ^has_journal,^dir_index` and give it to mq alone: where other programs delete files, a queue's folder may
get the inode of a file whose name outlives it, and a repair may keep the wrong one of the two. Better use a journal.

Where there is none, mq trusts less: it syncs a file before it gives it a name, keeps attributes in files of their own,
moves by link, barrier, unlink, and does without syncfs(2), in which the kernel flushes the disk first and writes the
last of the folders after that.

## Disks that fail

{failures}

## Planted bugs

A clean table says nothing if the rig is blind. Each of these bugs was planted in the daemon, and had to be found:

| bug | on | found after | by |
|---|---|---|---|
{mutants}
"""

_DISKS: Final = """\
On {systems} the disk was made to fail with EIO under several publishers: at writes or at flushes, once or for good,
with the file system mounted anew afterwards or only the daemon started again. From the first error on the daemon has to
answer 503 to all that would change the store, also when the disk works again: the kernel says OK to a second fsync, and
the bytes are not there. `GET` of a queue still works, `/-/ready` says 503. Afterwards nothing acknowledged may be
missing, and nothing half there.

Runs: {runs}. Runs in which something was wrong: {wrong}."""


def page(
    cells: Sequence[Cell], failures: Sequence[tuple[str, str, list[str]]], found: Sequence[Found], seconds: float
) -> str:
    """The page as Markdown."""
    return _TEXT.format(
        date=date.today().isoformat(),  # noqa: DTZ011 - the day where it was run
        kernel=platform.release(),
        python=platform.python_version(),
        minutes=seconds / 60,
        matrix=matrix(cells),
        points=sum(cell.points for cell in cells),
        costs="\n".join(_costs(cells)),
        failures=_failures(failures),
        mutants="\n".join(_found(one) for one in found),
    )


def matrix(cells: Sequence[Cell]) -> str:
    """The table: a row for each workload, a column for each file system."""
    systems = list(dict.fromkeys(cell.system for cell in cells))
    workloads = list(dict.fromkeys(cell.workload for cell in cells))
    by_place = {(cell.system, cell.workload): cell for cell in cells}
    lines = ["| workload | " + " | ".join(systems) + " |", "|---" * (len(systems) + 1) + "|"]
    for workload in workloads:
        shown = [_shown(by_place.get((system, workload))) for system in systems]
        lines.append(f"| {workload} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = f"{cell.bad} of {cell.points}"
    if cell.worst:
        text += f", worst: {cell.worst}"
    if cell.unmountable:
        text += f", {cell.unmountable} could not be mounted"
    return text


def _costs(cells: Sequence[Cell]) -> list[str]:
    return [
        f"| {cell.system} | {cell.cost.alone:.1f} | {cell.cost.crowd:.1f} |"
        for cell in cells
        if cell.workload == "everything" and cell.system in PROMISED
    ]


def _failures(failures: Sequence[tuple[str, str, list[str]]]) -> str:
    systems = list(dict.fromkeys(system for system, _, _ in failures))
    wrong = sum(bool(wrong) for _, _, wrong in failures)
    return _DISKS.format(systems=", ".join(systems), runs=len(failures), wrong=wrong)


def _found(found: Found) -> str:
    after = "a failing disk" if found.points == 1 and ":" in found.how else f"{found.points} points"
    how = found.how.partition("Flaw(")[2].partition("'")[2].partition("'")[0] or found.how
    return f"| {found.mutant} | {found.system} | {after} | {how or '**not found**'} |"
