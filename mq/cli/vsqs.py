"""The verbs ``mq vsqs ...``: a folder as a FIFO queue, with no daemon. Only :mod:`mq.vsqs` does the work."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from mq.cli.commands import CANNOT_START, EMPTY, Commands, Duration, Number
from mq.cli.terminal import say, write_body
from mq.errors import MQError
from mq.quantities import show_duration
from mq.vsqs import VISIBILITY_SECONDS, Queue


@click.group("vsqs", cls=Commands)
@click.pass_obj
def vsqs(flags: dict[str, str | None]) -> None:
    """Use a folder as a queue, without a daemon."""
    logging.getLogger("mq.vsqs.mount").addHandler(logging.NullHandler())  # the verbs say it themselves
    given = [name for name, value in flags.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        raise click.UsageError(f"--{option} is an option of mq serve, not of mq vsqs")


@vsqs.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--capacity",
    type=Number(1),
    metavar="NUMBER",
    help="Refuse the message if the queue already contains this many messages.",
)
@click.option("--create", is_flag=True, help="Create the folder if it does not exist.")
def send(folder: str, capacity: int | None, create: bool) -> None:
    """Publish standard input as one message and print its ID."""
    with _open(folder, capacity, create) as queue:
        _warn(queue)
        say(queue.publish(sys.stdin.buffer.read()))


@vsqs.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--visibility",
    default=show_duration(VISIBILITY_SECONDS),
    show_default=True,
    type=Duration(0.000001, math.inf),
    metavar="DURATION",
    help="Visibility timeout: a message that is not deleted within this time can be received again.",
)
@click.option(
    "--timeout",
    default="0",
    show_default=True,
    type=Duration(0, math.inf),
    metavar="DURATION",
    help="How long to wait for a message; inf waits forever.",
)
@click.option("--delete", is_flag=True, help="Delete the message after printing it.")
def receive(folder: str, visibility: float, timeout: float, delete: bool) -> None:
    """Receive the next message: print its body to standard output and its ID to standard error.

    The exit status is 3 if the queue is empty.
    """
    with _open(folder) as queue:
        message = queue.receive(visibility, timeout)
        if message is None:
            sys.exit(EMPTY)
        write_body(message.body)
        say(message.id, err=True)
        if delete:
            message.delete()


@vsqs.command()
@click.argument("folder", metavar="DIR")
@click.argument("id")
def delete(folder: str, id: str) -> None:
    """Delete a message, even if another program has received it.

    The exit status is 3 if the message does not exist.
    """
    with _open(folder) as queue:
        if not queue.delete(id):
            _end(f"message {id} does not exist: it was deleted or never published", EMPTY)


@vsqs.command()
@click.argument("folder", metavar="DIR")
def size(folder: str) -> None:
    """Print the number of messages in the queue, including received messages that have not been deleted yet."""
    with _open(folder) as queue:
        _warn(queue)
        say(queue.size())


@contextmanager
def _open(folder: str, capacity: int | None = None, create: bool = False) -> Iterator[Queue]:
    try:
        with Queue(folder, capacity=capacity, create=create) as queue:
            yield queue
    except MQError as error:
        _end(str(error), CANNOT_START)


def _warn(queue: Queue) -> None:
    """Print the folder's caution. Not for `receive`: scripts read an id from its standard error."""
    if queue.caution:
        say(f"mq: {queue.caution}", err=True)


def _end(text: str, status: int) -> NoReturn:
    say(f"mq: {text}", err=True)
    sys.exit(status)
