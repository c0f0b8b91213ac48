"""``make powercut``: the whole matrix. Prints it, and writes a part of docs/dev/proof.md when all of it was run."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

import click

from tests.crash.bench import TREE
from tests.crash.matrix import PROMISED, WORKLOADS, Cell, Found, break_disks, hunt, try_cell
from tests.crash.mutants import MUTANTS
from tests.crash.page import matrix, page, put
from tests.crash.rig import FILE_SYSTEMS, missing

PAGE: Final = TREE / "docs" / "dev" / "proof.md"


@click.command()
@click.option("--points", default=300, show_default=True, help="Cut the power at so many points in each cell.")
@click.option("--seed", default=1, show_default=True, help="Chooses the points, and what clients do.")
@click.option("--systems", default=",".join(FILE_SYSTEMS), show_default=True, help="File systems.")
@click.option("--workloads", default=",".join(WORKLOADS), show_default=True, help="What clients do.")
@click.option("--only-matrix", is_flag=True, help="No failing disks, no planted bugs, no page.")
def main(points: int, seed: int, systems: str, workloads: str, only_matrix: bool) -> None:
    """Cut the power under mq, and see whether it keeps its promises."""
    logging.disable(logging.CRITICAL)  # recovery has much to tell, thousands of times
    chosen = systems.split(",")
    reason = missing(*chosen)
    if reason:
        raise click.ClickException(f"no power can be cut here: {reason}")
    begin = time.monotonic()
    cells = [_say_cell(try_cell(system, each, points, seed)) for system in chosen for each in workloads.split(",")]
    is_good = all(cell.is_clean for cell in cells if cell.system in PROMISED)
    if not only_matrix:
        failures = []
        for system, how, wrong in break_disks(system for system in chosen if system in PROMISED):
            failures.append((system, how, wrong))
            click.echo(f"{system:16} disk fails: {how:28} {'; '.join(wrong[:3]) or 'right'}")
        found = [_say_found(hunt(mutant, seed)) for mutant in MUTANTS]
        is_good &= not any(wrong for _, _, wrong in failures) and all(one.how for one in found)
        if chosen == list(FILE_SYSTEMS) and workloads.split(",") == list(WORKLOADS):
            put(PAGE, page(cells, failures, found, time.monotonic() - begin))
            click.echo(f"wrote {PAGE.relative_to(TREE)}")
    click.echo(f"\n{matrix(cells)}")
    sys.exit(not is_good)


def _say_cell(cell: Cell) -> Cell:
    click.echo(
        f"{cell.system:16} {cell.workload:12} {cell.points:5} points {cell.bad:4} bad {cell.worst:12} "
        f"{cell.unmountable} unmountable, flushes {cell.cost.alone:.1f} alone, {cell.cost.crowd:.1f} together"
    )
    for verdict in cell.examples:
        click.echo(f"    cut {verdict.cut}: {'; '.join(map(str, verdict.flaws[:3]))}")
    return cell


def _say_found(found: Found) -> Found:
    click.echo(f"{found.system:16} planted: {found.mutant:28} {found.how or 'NOT FOUND'} ({found.points} points)")
    return found


if __name__ == "__main__":
    main()
