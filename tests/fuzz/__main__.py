"""``make fuzz``: every target for some time. What it learns stays in ``.fuzz/``, for the next time."""

from __future__ import annotations

import sys

import click

from tests.fuzz.fuzzing import TREE, fuzz, missing
from tests.fuzz.targets import TARGETS


@click.command()
@click.option("--seconds", default=60, show_default=True, help="So long for each target.")
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)))
def main(seconds: int, targets: tuple[str, ...]) -> None:
    reason = missing()
    if reason:
        raise click.ClickException(f"nothing can be fuzzed here: {reason}")
    total, is_good = 0, True
    for name in targets or TARGETS:
        result = fuzz(name, TREE / ".fuzz" / name.replace(" ", "-"), seconds=seconds)
        total, is_good = total + result.runs, is_good and not result.found
        click.echo(f"{name:14} {result.runs:10} inputs{': found' if result.found else ''}")
        click.echo(result.found, nl=False)
    click.echo(f"{total} inputs")
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
