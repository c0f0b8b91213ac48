"""The verbs ``queues`` and ``queue``: which queues there are, what is in them, how they are set."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

import click

from mq.cli.commands import Commands
from mq.cli.remote import Remote, check_exists, confirm, json_option, queue_argument, remote, yes_option
from mq.cli.terminal import say_json, say_table
from mq.client import Queue, QueueSettings

_STORES: Final = ("disk", "memory", "cluster")  # as mq.broker.api has them, which loads a broker
_HEADER: Final = ("QUEUE", "READY", "LEASED", "DELAYED", "OLDEST", "CONSUMERS", "STORE", "")


@click.command("queues")
@json_option
@remote
def queues_command(remote: Remote, as_json: bool) -> None:
    """List all queues with their message counts."""
    with remote.client() as client:
        queues = client.queues()
    if as_json:
        for queue in queues:
            say_json(_document(queue))
    else:
        say_table(_HEADER, map(_row, queues))


@click.group("queue", cls=Commands)
def queue_command() -> None:
    """Create, show, configure or delete a queue."""


class _SettingsCommand(click.Command):
    """Answers a setting that is written as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name not in QueueSettings.__annotations__:
                raise
            raise click.UsageError(f"settings are written without dashes. Use {name}=VALUE", ctx) from error


@queue_command.command("create", cls=_SettingsCommand)
@queue_argument
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--store",
    type=click.Choice(_STORES),
    help="Where the queue is stored: on disk, in memory (lost when mq stops) or on all nodes of a cluster.",
)
@remote
def create_command(remote: Remote, queue: str, settings: tuple[str, ...], store: str | None) -> None:
    """Create a queue with the given settings.

    If the queue already exists, the given settings are changed; its messages and other settings are kept.
    """
    changes = parse_settings(settings)
    with remote.client() as client:
        client.create_queue(queue, store)
        if changes:
            client.configure(queue, **changes)


@queue_command.command("show")
@queue_argument
@json_option
@remote
def show_command(remote: Remote, queue: str, as_json: bool) -> None:
    """Show a queue's settings and message counts."""
    with remote.client() as client:
        found = _document(client.queue(queue))
    if as_json:
        say_json(found)
    else:
        say_table(("NAME", "VALUE"), ((name, _text(value)) for name, value in found.items()))


@queue_command.command("set", cls=_SettingsCommand)
@queue_argument
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@remote
def set_command(remote: Remote, queue: str, settings: tuple[str, ...]) -> None:
    """Change a queue's settings. Either all changes are applied or none are.

    VALUE is a number, a duration (30s, 10m, 2h, 7d), a size (64KiB), true, false, or text (such as the name of a
    dead-letter queue). To reset a setting, use NAME=default.
    """
    changes = parse_settings(settings)
    with remote.client() as client:
        client.configure(queue, **changes)


@queue_command.command("delete")
@queue_argument
@yes_option
@remote
def delete_command(remote: Remote, queue: str, yes: bool) -> None:
    """Delete a queue and all its messages."""
    confirm(f"Delete {queue} and all its messages?", yes=yes, check=partial(check_exists, remote, queue))
    with remote.client() as client:
        client.delete_queue(queue)


@click.command("pause")
@queue_argument
@click.option("--delivery", is_flag=True, help="Pause delivery (the default).")
@click.option("--publishing", is_flag=True, help="Pause publishing: new messages are refused.")
@remote
def pause_command(remote: Remote, queue: str, delivery: bool, publishing: bool) -> None:
    """Pause delivery from a queue or publishing to it.

    The pause applies to all protocols and lasts until the queue is resumed with mq resume.
    """
    changes = _pauses(delivery or not publishing, publishing, is_on=True)
    with remote.client() as client:
        client.configure(queue, **changes)


@click.command("resume")
@queue_argument
@click.option("--delivery", is_flag=True, help="Resume delivery only.")
@click.option("--publishing", is_flag=True, help="Resume publishing only.")
@remote
def resume_command(remote: Remote, queue: str, delivery: bool, publishing: bool) -> None:
    """Resume a paused queue: allow delivery and publishing again."""
    is_all = not (delivery or publishing)
    changes = _pauses(delivery or is_all, publishing or is_all, is_on=False)
    with remote.client() as client:
        client.configure(queue, **changes)


def _pauses(delivery: bool, publishing: bool, *, is_on: bool) -> QueueSettings:
    changes: QueueSettings = {}
    if delivery:
        changes["paused"] = is_on
    if publishing:
        changes["publish_paused"] = is_on
    return changes


def parse_settings(given: tuple[str, ...]) -> Any:
    """Settings from NAME=VALUE, as JSON values by name.

    Raises:
        click.UsageError: one is written otherwise.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"use the form NAME=VALUE, not {text!a:.60}")
        found[name.replace("-", "_")] = _value(value)
    return found


def _row(queue: Queue) -> tuple[str, ...]:
    oldest = "" if queue.oldest_seconds is None else f"{queue.oldest_seconds:.0f}s"
    paused = shown_pauses(
        delivery=bool(queue.settings.get("paused")), publishing=bool(queue.settings.get("publish_paused"))
    )
    counts = str(queue.ready), str(queue.leased), str(queue.delayed)
    return queue.name, *counts, oldest, str(queue.consumers), queue.store, paused


def shown_pauses(*, delivery: bool, publishing: bool) -> str:
    """What is paused of a queue, in a word or two."""
    return (
        "all paused" if delivery and publishing else "paused" if delivery else "publishing paused" if publishing else ""
    )


def _value(text: str) -> Any:
    if text == "default":
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _document(queue: Queue) -> dict[str, Any]:
    counts = {"ready": queue.ready, "leased": queue.leased, "delayed": queue.delayed}
    return {
        "name": queue.name,
        **counts,
        "oldest_seconds": queue.oldest_seconds,
        "consumers": queue.consumers,
        "store": queue.store,
        **queue.settings,
    }
