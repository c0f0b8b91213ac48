"""Commands for operators of a daemon: ``connections`` (to see and to close), ``consumers`` (to see and to forget),
``logging`` (to see and to change), ``clock`` (to see, and to end a doubt)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from mq.cli.remote import Remote, all_pages, json_option, remote
from mq.cli.terminal import say, say_json, say_table
from mq.client import Client, NotFound
from mq.log_lines import LEVELS
from mq.quantities import show_count

_HEADER: Final = ("ID", "PROTOCOL", "USER", "CLIENT", "STATE", "OPEN", "IDLE", "IN", "OUT", "CHANNELS", "UNACKED")
_CONSUMERS: Final = (
    *("KIND", "NAME", "QUEUE", "USER", "CONNECTION", "PREFETCH", "UNACKED", "DELIVERED"),
    *("OUT/S", "OPEN", "IDLE"),
)
_SPARK: Final = "spark"
"""The kind of consumers that take batches: queries of Spark, and other programs that make claims."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@click.command("connections")
@click.option("--close", metavar="ID", help="Close the connection with this ID.")
@json_option
@remote
def connections_command(remote: Remote, close: str | None, as_json: bool) -> None:
    """List client connections, or close one.

    In a cluster, only the connections of the node at --url are listed. To list consumers, run mq consumers.
    """
    with remote.client() as client:
        if close is not None:
            client.close_connection(close)
            return
        found = list(all_pages(client.connections, "connections"))
    if as_json:
        for each in found:
            say_json(each)
    else:
        say_table(_HEADER, map(_row, found))


@click.command("consumers")
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option(
    "--forget",
    metavar="NAME",
    help="Delete this Spark consumer and requeue the messages that it has received but not acknowledged.",
)
@json_option
@remote
def consumers_command(remote: Remote, queues: tuple[str, ...], forget: str | None, as_json: bool) -> None:
    """List consumers, or delete a Spark consumer.

    There are three types of consumers: amqp (consumers on a channel), http (requests that are waiting for a message)
    and spark (queries that read batches of messages). Spark consumers persist after their programs exit; use
    --forget to delete the consumers that are no longer needed.
    """
    with remote.client() as client:
        batches = [each for each in client.batch_consumers() if not queues or each["queue"] in queues]
        if forget is not None:
            _forget(client, [each for each in batches if each["consumer"] == forget], forget)
            return
        connected = list(all_pages(client.consumers, "consumers"))
    found = [{"kind": each["protocol"], **each} for each in connected if not queues or each["queue"] in queues]
    found += [{"kind": _SPARK, **each} for each in batches]
    if as_json:
        for each in found:
            say_json(each)
    else:
        say_table(_CONSUMERS, map(_consumer_row, found))


def _forget(client: Client, found: Sequence[Mapping[str, Any]], name: str) -> None:
    """Forget a consumer of batches in each of its queues.

    Raises:
        NotFound: it has none.
    """
    if not found:
        raise NotFound(404, f"Spark consumer {name!a:.60} does not exist. To list consumers, use mq consumers")
    for each in found:
        client.forget_consumer(each["queue"], name)
        say(
            f"deleted the consumer from queue {each['queue']}. The consumer had acknowledged "
            f"{show_count(each['acknowledged'], 'batch', 'batches')}",
            err=True,
        )


def _row(found: Mapping[str, Any]) -> tuple[str, ...]:
    channels = found["channels"]
    return (
        *(_said(found[name]) for name in ("id", "protocol", "user")),
        f"{found['address']} {found['port']}" if found["port"] else found["address"],
        found["state"],
        *(_seconds(found[name]) for name in ("open_seconds", "idle_seconds")),
        *(_size(found[name]) for name in ("received_bytes", "sent_bytes")),
        str(len(channels)),
        str(sum(channel["unacknowledged"] for channel in channels)),
    )


def _consumer_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    if found["kind"] == _SPARK:  # it has no connection between its requests
        return (_SPARK, found["consumer"], found["queue"], *("-",) * 3, str(found["messages"]), *("-",) * 4)
    names = ("kind", "tag", "queue", "user", "connection", "prefetch", "unacknowledged", "delivered")
    seconds = (_seconds(found[name]) for name in ("open_seconds", "idle_seconds"))
    return (*(_said(found[name]) for name in names), f"{found['delivered_per_second']:.2f}", *seconds)


def _said(value: Any) -> str:
    """A value as a terminal may show it: a client chooses its tags, and control characters could command a terminal."""
    text = "-" if value is None else str(value)
    return text if text.isprintable() else ascii(text)


def _seconds(value: float) -> str:
    return f"{value:.0f}s"


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    power = max(0, (value.bit_length() - 1) // 10)
    power = min(power, len(_UNITS) - 1)
    return f"{value / 1024**power:.0f} {_UNITS[power]}"


@click.command("logging")
@click.option("--level", type=click.Choice(LEVELS), help="Minimum level of the log entries to write.")
@click.option("--requests/--no-requests", default=None, help="Turn HTTP request logging on or off.")
@json_option
@remote
def logging_command(remote: Remote, level: str | None, requests: bool | None, as_json: bool) -> None:
    """Show or change the log level of a running daemon."""
    with remote.client() as client:
        if level is None and requests is None:
            found = client.logging()
        else:
            found = client.change_logging(level=level, every_request=requests)
    if as_json:
        say_json(found)
    else:
        say(f"{found['level']}{'; HTTP requests are logged' if found['requests'] else ''}")


@click.command("clock")
@click.option("--trust", is_flag=True, help="Confirm that the wall clock is correct, so that the daemon trusts it.")
@json_option
@remote
def clock_command(remote: Remote, trust: bool, as_json: bool) -> None:
    """Show whether mq trusts the wall clock, or confirm the time.

    If the wall clock appears to be wrong when the daemon starts, no messages expire and no schedules run until the
    clock is trusted again.
    """
    with remote.client() as client:
        found = client.trust_clock() if trust else client.clock()
    if as_json:
        say_json(found)
        return
    say(f"wall clock: {found['wall_time']}{', synchronized' if found['synchronised'] else ''}")
    if found["problem"]:
        say(f"the wall clock is not trusted: {found['problem']}. If the clock is correct, run mq clock --trust")
