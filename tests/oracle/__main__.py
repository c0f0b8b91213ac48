"""Compare what seeds do with what is written down: ``make oracle``, or ``python -m tests.oracle``."""

from __future__ import annotations

import os
import sys

import click
from tqdm import tqdm

from tests.oracle.oracle import PAGE, Digests, Run, calls, describe, differing, digests, every_run, stored, write


@click.command()
@click.option("--renew", is_flag=True, help="Write the digests down instead.")
@click.option("--calls", "shown", metavar="KIND:SEED", help="Print the calls of one run instead, as simulation:17.")
@click.option("--processes", default=os.cpu_count() or 1, show_default=True, help="How many run side by side.")
def main(renew: bool, shown: str | None, processes: int) -> None:
    """Exit 1 when a run does something else than was written down."""
    if shown:
        kind, _, seed = shown.partition(":")
        click.echo("\n".join(calls(Run(kind, int(seed)))))
        return
    runs, known = every_run(), stored()
    found: Digests = dict(tqdm(digests(runs, processes), total=len(runs), disable=None, unit=" seeds"))
    differ = differing(found, known)
    if renew:
        write(found)
        click.echo(f"{len(found)} digests written to {PAGE.name}, {len(differ)} of them new or changed")
    elif differ:
        click.echo(describe(differ, len(found), known))
        sys.exit(1)
    else:
        click.echo(f"{len(found)} runs do what was written down")


if __name__ == "__main__":
    main()
