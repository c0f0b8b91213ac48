"""The program ``mq-pipeline``: what Spark does with queues and with the lifecycle journal.

The pipelines are in :mod:`mq.spark.pipelines`, as functions; this is their command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

import click
from tqdm import tqdm

from mq import __version__
from mq.cli.commands import CANNOT_START, FINDINGS, REFUSED, PlainGroup
from mq.cli.terminal import say
from mq.errors import MQError

_SECRETS: Final = ("token", "password")

_master = click.option("--master", metavar="URL", help="Of Spark, as for spark-submit.  [default: this machine]")


@click.group("mq-pipeline", cls=PlainGroup)
@click.version_option(__version__, prog_name="mq-pipeline")
def main() -> None:
    """Pipelines on Spark. They need pip install 'mq[spark]'."""


@main.command(short_help="Reports on a journal: traffic, latency, an audit.")
@click.argument("journals", metavar="FOLDER...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="Where the tables and the page go.")
@click.option("--doctor", metavar="FILE", help="What mq doctor --json has printed: lists damaged messages, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as an object.")
@_master
def insight(journals: tuple[str, ...], out: str, *, doctor: str | None, as_json: bool, master: str | None) -> None:
    """Tell what the journal in FOLDER says: traffic, latency, poison, and whether every message is somewhere.

    Writes tables as Parquet, and report.html. Ends with status 5 when a message is in no place, in two, or damaged.
    """
    with _session(master) as (spark, load), _bar() as progress:
        module = load("mq.spark.pipelines.insight")
        found = module.insight(spark, journals, out, progress, doctor=doctor, version=__version__)
    exceptions = found.report.tables.get("exceptions", [])
    if as_json:
        say(module.summary(found))
    else:
        for row in exceptions:
            say(f"{row['what']}\t{row['id']}\t{row['queue'] or ''}\t{row['detail']}")
        say(f"mq-pipeline: see {found.page}", err=True)
    sys.exit(FINDINGS if exceptions else 0)


def _source(command: Callable[..., None]) -> Callable[..., None]:
    """The flags that name the daemon."""
    url = click.option("--url", envvar="MQ_URL", metavar="URL", help="The daemon's address.  [MQ_URL]")
    more = click.option("--option", "given", metavar="NAME=VALUE", multiple=True, help="Of the data source.")
    return url(more(_master(command)))


@main.command(short_help="Takes queues into Parquet.")
@click.argument("queues", metavar="QUEUE...", nargs=-1)
@click.option("--out", metavar="FOLDER", required=True, help="The archive.")
@click.option("--finish", is_flag=True, help="Only clear what a run that was cut off has left, and join small files.")
@click.option("--browse", is_flag=True, help="Leave the messages where they are.")
@click.option("--consumer", default="archive", show_default=True, help="The name under which messages are claimed.")
@_source
def archive(
    queues: tuple[str, ...],
    out: str,
    *,
    finish: bool,
    browse: bool,
    consumer: str,
    url: str | None,
    given: tuple[str, ...],
    master: str | None,
) -> None:
    """Take what is in each QUEUE now into Parquet, in a folder for each queue and day.

    When it was cut off, the same command goes on: nothing is lost, and nothing is there twice.
    """
    if finish == bool(queues):
        raise click.UsageError("name the queues to archive, or say --finish and name none")
    options = _options(url, given)
    with _session(master) as (spark, load), _bar() as progress:
        module = load("mq.spark.pipelines.archive")
        if finish:
            module.finish(spark, out, progress)
            return
        module.archive(spark, queues, out, options, browse=browse, consumer=consumer, progress=progress)


@main.command(short_help="Publishes messages of an archive again.")
@click.argument("folder", metavar="FOLDER")
@click.option("--queue", "queues", metavar="QUEUE", multiple=True, help="Only what was in this queue.")
@click.option("--since", type=click.DateTime(), help="Only what was published then or later, in UTC.")
@click.option("--until", type=click.DateTime(), help="Only what was published before, in UTC.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only this message.")
@click.option("--where", metavar="SQL", help="Only what this holds for, such as \"CAST(value AS STRING) LIKE 'a%'\".")
@click.option("--to", metavar="QUEUE", help="Into this queue, not into the one that each was in.")
@click.option("--run", default="replay", show_default=True, help="Another name publishes the same messages once more.")
@_source
def replay(
    folder: str,
    *,
    queues: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    ids: tuple[str, ...],
    where: str | None,
    to: str | None,
    run: str,
    url: str | None,
    given: tuple[str, ...],
    master: str | None,
) -> None:
    """Publish messages of the archive FOLDER; prints how many.

    A run that was cut off can be started again: it publishes each message once.
    """
    options = _options(url, given)
    with _session(master) as (spark, load), _bar() as progress:
        module = load("mq.spark.pipelines.replay")
        since, until = (None if each is None else each.replace(tzinfo=UTC) for each in (since, until))
        choice = module.Choice(queues, since, until, ids, where)
        count = module.replay(spark, folder, options, choice, to=to, run=run, progress=progress)
    say(count)


def _options(url: str | None, given: tuple[str, ...]) -> dict[str, str]:
    """The data source's options. Secrets come from the environment: other users can read a program's arguments."""
    options = {} if url is None else {"url": url}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--option")
        if name.lower() in _SECRETS:
            raise click.BadParameter(f"no {name} on the command line: set MQ_TOKEN", param_hint="--option")
        options[name] = value
    if "MQ_TOKEN" in os.environ:
        options["token"] = os.environ["MQ_TOKEN"]
    return options


@contextmanager
def _session(master: str | None) -> Iterator[tuple[Any, Callable[[str], Any]]]:
    """A session for the length of the block, and what loads a module. Expected errors end the program in one line."""
    failures = _load("pyspark.errors")
    try:
        spark = _load("mq.spark.pipelines.session").open_session(master)
        try:
            yield spark, _load
        finally:
            spark.stop()
    except MQError as error:
        say(f"mq-pipeline: {error}", err=True)
        sys.exit(CANNOT_START)
    except failures.PySparkException as error:
        say(f"mq-pipeline: {_telling_line(str(error))}", err=True)
        sys.exit(REFUSED)


def _telling_line(text: str) -> str:
    """Our own line in an error from Spark, if there is one: the last of a traceback in a worker."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("mq.")]
    return ours[-1] if ours else lines[0] if lines else "Spark failed, and does not say why"


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        say(f"mq-pipeline: needs {error.name}: pip install 'mq[spark]'", err=True)
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
