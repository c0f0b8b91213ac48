"""The program ``mq``: one group of verbs. ``mq`` without a verb serves.

A verb lives in a module of its own, ``mq/cli/VERB.py``, and is a line of :data:`VERBS`. Its module is imported when the
verb is called and not before, so that a verb pays only for what it uses: only serving loads an event loop and a web
server. The flags that stood before the verb are the context's ``obj``: text by field name, None for "not given".
"""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from mq import __version__
from mq.cli.flags import settings_options


class Verb(NamedTuple):
    """Where a verb lives.

    Attributes:
        place: "module:name" of its click command.
        help: one line for the list of verbs; the command's own first line.
    """

    place: str
    help: str


VERBS: Final = {
    "serve": Verb("mq.cli.serve:serve_command", "Serve queues over HTTP and AMQP."),
    "user": Verb("mq.cli.user:user_command", "Add, list and remove users, and make tokens."),
    "send": Verb("mq.cli.send:send_command", "Publish messages: standard input, or each FILE, or each line."),
    "receive": Verb("mq.cli.receive:receive_command", "Fetch messages, print their bodies, and remove them."),
    "peek": Verb("mq.cli.peek:peek_command", "Show messages and leave them where they are."),
    "delete": Verb("mq.cli.remove:delete_command", "Remove messages by their ids."),
    "purge": Verb("mq.cli.remove:purge_command", "Remove all messages of a queue that nobody holds."),
    "queues": Verb("mq.cli.queues:queues_command", "List all queues and what is in them."),
    "queue": Verb("mq.cli.queues:queue_command", "Make, show, set and delete a queue."),
    "redrive": Verb("mq.cli.moving:redrive_command", "Move dead messages back to the queues they died in."),
    "move": Verb("mq.cli.moving:move_command", "Move messages that are ready from a queue to the queue TARGET."),
    "export": Verb("mq.cli.exporting:export_command", "Write all messages of a queue to FILE; they stay."),
    "import": Verb("mq.cli.importing:import_command", "Publish the messages of FILE to a queue."),
    "top": Verb("mq.cli.top:top_command", "Show what is in the queues, live; the fullest first."),
    "doctor": Verb("mq.cli.doctor:doctor_command", "Check a root: torn and foreign files, and messages in two places."),
    "bench": Verb("mq.cli.bench:bench_command", "Measure a daemon: publish, then fetch and remove."),
    "vsqs": Verb("mq.cli.vsqs:vsqs", "Use a folder as a queue, without a daemon."),
}
"""Every verb, in the order of ``mq --help``."""


class _Verbs(click.Group):
    """Lists the table, and imports the one verb that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_verb(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def load_verb(name: str) -> click.Command:
    """The command of a verb of the table."""
    module, _, attribute = VERBS[name].place.partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    return command


@click.group(cls=_Verbs, invoke_without_command=True)
@settings_options
@click.version_option(__version__, prog_name="mq")
@click.pass_context
def main(context: click.Context, /, **flags: str | None) -> None:
    """A durable message queue over HTTP. Without a command it serves.

    A flag beats its environment variable, which beats the file.
    """
    context.obj = flags
    if context.invoked_subcommand is None:
        context.invoke(load_verb("serve"))
