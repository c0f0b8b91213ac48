"""The part of docs/dev/proof.md that shows the matrix of power cuts."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

from tests.crash.matrix import PROMISED, Cell, Found

_TEXT: Final = """\
Made by `make powercut` on {date}, Linux {kernel}, Python {python}, in {minutes:.0f} minutes. It takes root,
`/dev/fuse`, loop devices and the tools that `tests/setup-system.sh --yes` installs; `make powercut POINTS=1000` cuts
at more points.

A FUSE file under a loop device logs every write and flush of the disk, and every answer that a client has read. On it
are a real file system and a real daemon with several clients: small, empty and large messages, long attributes,
leases that end, removals, queues that are created again. Then the disk is rebuilt as it was at some point of the log:
flushed writes are there, later ones are lost, kept or torn, in no order. At half of the points everything is lost
that can be. The real kernel mounts it, the real recovery opens it, and everything is fetched. A point is bad if an
acknowledged message is lost, a removed one is back, a lease or a queue is gone, or something torn or invented is
delivered. *Second cut* cuts inside the recovery from a first cut.

{matrix}

"Could not be mounted": the disk here tears blocks at 512 bytes, also while the kernel replays its own journal, and
the file system does not survive that. Such a point is counted, not judged. Points in all: {points}. Flushes of the
disk, *alone* for a message of one client and its move to its queue, *together* for an acknowledged change of many
clients:

| file system | flushes alone | flushes together |
|---|---|---|
{costs}

`ext4-indexed` is ext4 without a journal, with indexed folders: the kernel moves half of a folder's names to another
block in two writes, and a cut between them loses names that were durable for long. Nothing above the kernel can
prevent that. `overlay` is one over ext4 with a journal, with nothing in the layer below.

{failures}

Each of these mutants of the daemon had to be found:

| mutant | on | found after | by |
|---|---|---|---|
{mutants}
"""

_DISKS: Final = """\
On {systems} the disk was made to fail with EIO, at writes or at flushes, once or for good, and was mounted again or
only the daemon restarted. From the first error on the daemon answers 503 to every change, also when the disk works
again, since the kernel then says OK to a second fsync without the bytes. Afterwards nothing acknowledged may be
missing.

Runs: {runs}. Runs in which something was wrong: {wrong}."""

BEGIN: Final = "<!-- made by make powercut -->\n"
END: Final = "<!-- end -->"


def page(
    cells: Sequence[Cell], failures: Sequence[tuple[str, str, list[str]]], found: Sequence[Found], seconds: float
) -> str:
    """Return the part as Markdown."""
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


def put(path: Path, text: str) -> None:
    """Write the part into a page, between its markers."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


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
