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

_master = click.option(
    "--master",
    metavar="URL",
    help="Spark master URL, as in spark-submit --master.  [default: run Spark on this machine]",
)


@click.group("mq-pipeline", cls=PlainGroup)
@click.version_option(__version__, prog_name="mq-pipeline")
def main() -> None:
    """Archive, replay and analyze messages with Spark.

    To install the required packages: pip install 'mq[spark]'.
    """


@main.command(short_help="Report traffic, latency and lost messages from a daemon's journal.")
@click.argument("journals", metavar="FOLDER...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="Folder for the tables and the report.")
@click.option(
    "--doctor",
    metavar="FILE",
    help="File that contains the output of mq doctor --json. Damaged messages listed there are added to the report.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
@_master
def insight(journals: tuple[str, ...], out: str, *, doctor: str | None, as_json: bool, master: str | None) -> None:
    """Analyze the journal in FOLDER (written by mq serve --journal) for traffic, latency, poison messages, and lost or
    duplicate messages.

    The results are Parquet tables and report.html. The exit status is 5 if a message is lost, duplicated or damaged.
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
        say(f"mq-pipeline: report written to {found.page}", err=True)
    sys.exit(FINDINGS if exceptions else 0)


def _source(command: Callable[..., None]) -> Callable[..., None]:
    """The flags that name the daemon."""
    url = click.option("--url", envvar="MQ_URL", metavar="URL", help="URL of the daemon.  [MQ_URL]")
    more = click.option(
        "--option",
        "given",
        metavar="NAME=VALUE",
        multiple=True,
        help="Set an option of the Spark data source. Can be repeated.",
    )
    return url(more(_master(command)))


@main.command(short_help="Move messages from queues to Parquet files.")
@click.argument("queues", metavar="QUEUE...", nargs=-1)
@click.option("--out", metavar="FOLDER", required=True, help="Folder for the archive.")
@click.option(
    "--finish",
    is_flag=True,
    help="Do not archive messages; only clean up after interrupted runs and merge small files.",
)
@click.option("--browse", is_flag=True, help="Copy messages instead of moving them, so that they stay in their queues.")
@click.option(
    "--consumer",
    metavar="NAME",
    default="archive",
    show_default=True,
    help="Consumer name under which the messages are fetched.",
)
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
    """Move messages from each QUEUE to Parquet files in one folder per queue and one subfolder per day.

    After an interruption, run the same command again: no message is lost or archived twice.
    """
    if finish == bool(queues):
        raise click.UsageError("specify the queues to archive, or use --finish without queues")
    options = _options(url, given)
    with _session(master) as (spark, load), _bar() as progress:
        module = load("mq.spark.pipelines.archive")
        if finish:
            module.finish(spark, out, progress)
            return
        module.archive(spark, queues, out, options, browse=browse, consumer=consumer, progress=progress)


@main.command(short_help="Publish messages from an archive.")
@click.argument("folder", metavar="FOLDER")
@click.option(
    "--queue",
    "queues",
    metavar="QUEUE",
    multiple=True,
    help="Replay only messages that came from this queue. Can be repeated.",
)
@click.option(
    "--since",
    metavar="TIME",
    type=click.DateTime(),
    help="Replay only messages that were originally published at or after this time (UTC).",
)
@click.option(
    "--until",
    metavar="TIME",
    type=click.DateTime(),
    help="Replay only messages that were originally published before this time (UTC).",
)
@click.option("--id", "ids", metavar="ID", multiple=True, help="Replay only the message with this ID. Can be repeated.")
@click.option(
    "--where",
    metavar="SQL",
    help="Replay only messages that match this SQL condition, such as \"CAST(value AS STRING) LIKE 'a%'\".",
)
@click.option("--to", metavar="QUEUE", help="Publish all messages to this queue instead of their original queues.")
@click.option(
    "--run",
    metavar="NAME",
    default="replay",
    show_default=True,
    help=(
        "Name of this replay run. A run publishes each message only once; to publish the messages again, choose "
        "a new name."
    ),
)
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
    """Publish messages from the archive in FOLDER.

    The command prints the number of messages published. An interrupted run can be repeated: each message is published
    only once.
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
            raise click.BadParameter(f"use the form NAME=VALUE, not {text!r}", param_hint="--option")
        if name.lower() in _SECRETS:
            raise click.BadParameter(
                f"{name} is not allowed on the command line, where other users could read it. Set MQ_TOKEN instead",
                param_hint="--option",
            )
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
    return ours[-1] if ours else lines[0] if lines else "Spark failed without an error message"


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        say(f"mq-pipeline: the package {error.name} is missing. Run pip install 'mq[spark]'", err=True)
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
