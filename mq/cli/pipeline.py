"""The program ``mq-pipeline``: what Spark does with queues and with the lifecycle journal.

The pipelines are in :mod:`mq.spark.pipelines`, as functions; this is their command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import click
from tqdm import tqdm

from mq import __version__
from mq.errors import MQError
from mq.programs import CANNOT_START

FOUND_SOMETHING: Final = 5
"""The exit status when the audit found exceptions; as ``mq doctor``'s."""

_master = click.option("--master", metavar="URL", help="Of Spark, as for spark-submit.  [default: this machine]")


@click.group()
@click.version_option(__version__, prog_name="mq-pipeline")
def main() -> None:
    """Pipelines on Spark. They need pip install 'mq[spark]'."""


@main.command()
@click.argument("journals", metavar="FOLDER...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="Where the tables and the page go.")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as an object.")
@_master
def insight(journals: tuple[str, ...], out: str, *, as_json: bool, master: str | None) -> None:
    """Tell what the journal in FOLDER says: traffic, latency, poison, and whether every message is somewhere.

    Writes tables as Parquet, and report.html. Ends with status 5 when a message is in no place or in two.
    """
    with _session(master) as (spark, load), _bar() as progress:
        module = load("mq.spark.pipelines.insight")
        found = module.insight(spark, journals, out, progress)
    exceptions = found.report.tables.get("exceptions", [])
    if as_json:
        click.echo(module.summary(found))
    else:
        for row in exceptions:
            click.echo(f"{row['what']}\t{row['id']}\t{row['queue']}\t{row['detail']}")
        click.echo(f"mq-pipeline: see {found.page}", err=True)
    sys.exit(FOUND_SOMETHING if exceptions else 0)


@contextmanager
def _session(master: str | None) -> Iterator[tuple[Any, Callable[[str], Any]]]:
    """A session for the length of the block, and what loads a module. Our own errors end the program in one line."""
    try:
        spark = _load("mq.spark.pipelines.session").open_session(master)
        try:
            yield spark, _load
        finally:
            spark.stop()
    except MQError as error:
        click.echo(f"mq-pipeline: {error}", err=True)
        sys.exit(CANNOT_START)


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        click.echo(f"mq-pipeline: needs {error.name}: pip install 'mq[spark]'", err=True)
        sys.exit(CANNOT_START)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal; elsewhere nothing."""
    with tqdm(disable=None, unit="step", leave=False) as bar:

        def progress(what: str, done: int, of: int) -> None:
            bar.total = of
            bar.set_description(what, refresh=False)
            bar.update(done - bar.n)

        yield progress
