"""The program ``mq``: one group of verbs. ``mq`` without a verb serves.

A verb lives in a module of its own, ``mq/cli_VERB.py``, and is a line of :data:`VERBS`. Its module is imported when the
verb is called and not before, so that a verb pays only for what it uses: only serving loads an event loop and a web
server. The flags that stood before the verb are the context's ``obj``: text by field name, None for "not given".
"""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from mq import __version__
from mq.cli_flags import settings_options


class Verb(NamedTuple):
    """Where a verb lives.

    Attributes:
        place: "module:name" of its click command.
        help: one line for the list of verbs; the command's own first line.
    """

    place: str
    help: str


VERBS: Final = {
    "serve": Verb("mq.cli_serve:serve_command", "Serve queues over HTTP."),
    "user": Verb("mq.cli_user:user_command", "Add, list and remove users, and make tokens."),
    "vsqs": Verb("mq.cli_vsqs:vsqs", "Use a folder as a queue, without a daemon."),
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
