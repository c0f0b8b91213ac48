"""Run seeds of the simulation: ``python -m simulation [SEED | FIRST-LAST] [--verbose] [--strict]``; with
``--log`` on stores that make batches durable by their log."""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

import click
from tqdm import tqdm

from simulation.run import RunReport, run_seed


@click.command()
@click.argument("seeds", default="0-1999")
@click.option("--verbose", is_flag=True, help="Print everything that happens.")
@click.option("--processes", default=2, show_default=True, help="How many run side by side.")
@click.option("--strict", is_flag=True, help="Let the brokers keep to the letter of the seed MQ.")
@click.option("--log", is_flag=True, help="Let the store make batches durable by its log.")
def main(seeds: str, verbose: bool, processes: int, strict: bool, log: bool) -> None:
    """Run seeds; exit 1 when one of them breaks a promise."""
    first, _, last = seeds.partition("-")
    wanted = range(int(first), int(last or first) + 1)
    total: Counter[str] = Counter()
    for report in tqdm(
        _reports(wanted, processes, strict=strict, log=log), total=len(wanted), disable=None, unit=" seeds"
    ):
        total.update(
            seeds=1,
            calls=report.calls,
            deliveries=report.deliveries,
            faults=report.faults,
            bad=int(bool(report.violations)),
        )
        if verbose:
            click.echo("\n".join(report.log))
        if report.violations or verbose:
            click.echo(describe(report))
    click.echo(", ".join(f"{count} {what}" for what, count in total.items()))
    sys.exit(1 if total["bad"] else 0)


def describe(report: RunReport) -> str:
    """A run's outcome, and the one command that repeats it."""
    lines = [f"seed {report.seed}: {len(report.violations)} violations; {report.plan}"]
    lines += [f"  {violation}" for violation in report.violations[:10]]
    flags = "--verbose"
    flags += " --strict" if report.plan.strict else ""
    flags += " --log" if report.plan.has_log else ""
    lines.append(f"  again: python -m simulation {report.seed} {flags}")
    return "\n".join(lines)


def _reports(seeds: range, processes: int, *, strict: bool, log: bool) -> Iterator[RunReport]:
    run = partial(run_seed, strict=strict, log=log)
    if processes == 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(run, seeds, chunksize=20)


if __name__ == "__main__":
    main()
