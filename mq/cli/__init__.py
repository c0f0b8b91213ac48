"""The program ``mq``: one group of verbs. ``mq`` without a verb serves.

A verb is a line of :data:`VERBS`. Its module is imported when the verb is called and not before, so that a verb pays
only for what it uses: only serving loads an event loop and a web server. The flags that stood before the verb are the
context's ``obj``: text by field name, None for "not given". The files:

* ``serve``: the daemon; it opens ``turns``, ``node`` (of a cluster), ``journal`` and ``guards`` (users, TLS).
* ``programs``: how a program starts and stops, and what it tells a service manager. ``memory``: gives freed memory back
  to the operating system. ``garbage``: collects garbage in cycles, little by little.
* ``commands``: how a verb says no, exit statuses, the flags of the settings. ``synonyms``: other names of commands and
  options, for "did you mean". ``build``: what of this mq is compiled.
* ``streams``: standard output that is full or closed. ``terminal``: what all of them print, with control characters
  escaped on a terminal.
* ``remote``: what the verbs share that speak to a daemon; ``send``, ``receive``, ``messages``, ``queues``,
  ``schedules``, ``archive`` (export, import), ``top``, ``cluster``, ``daemon`` (connections, consumers, logging,
  clock), ``bench``.
* ``processes``: those of a command that ``receive`` runs, and orphans.
* ``user``: the users file. ``certificate``: one for TLS. ``doctor``: checks a root,
  and by ``record_schemas`` what records say. ``backup``: that and ``restore``.
  ``vsqs``: a folder as a queue.
* ``mover``, ``reaper``: programs over a root. ``pipeline``: programs over the journal.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, NamedTuple

import click

from mq import __version__
from mq.cli.commands import PlainGroup, settings_options
from mq.cli.terminal import say
from mq.settings import near_misses


class CliVerb(NamedTuple):
    """Where a verb lives.

    Attributes:
        help: one line for the list of verbs; the command's own first line.
    """

    place: str
    help: str


VERBS: Final = {
    "serve": CliVerb("mq.cli.serve:serve_command", "Run the daemon: serve queues over HTTP and AMQP."),
    "user": CliVerb("mq.cli.user:user_command", "Manage users and their limits, tokens and access keys."),
    "send": CliVerb("mq.cli.send:send_command", "Publish messages and print their IDs."),
    "receive": CliVerb("mq.cli.receive:receive_command", "Fetch messages, print their bodies and acknowledge them."),
    "peek": CliVerb("mq.cli.messages:peek_command", "Show messages without fetching them."),
    "delete": CliVerb("mq.cli.messages:delete_command", "Remove messages by ID."),
    "reschedule": CliVerb("mq.cli.messages:reschedule_command", "Change the delivery time of delayed messages."),
    "purge": CliVerb("mq.cli.messages:purge_command", "Remove all messages from a queue except leased ones."),
    "queues": CliVerb("mq.cli.queues:queues_command", "List all queues with their message counts."),
    "queue": CliVerb("mq.cli.queues:queue_command", "Create, show, configure or delete a queue."),
    "pause": CliVerb("mq.cli.queues:pause_command", "Pause delivery from a queue or publishing to it."),
    "resume": CliVerb("mq.cli.queues:resume_command", "Resume a paused queue: allow delivery and publishing again."),
    "redrive": CliVerb("mq.cli.messages:redrive_command", "Move dead letters back to their original queues."),
    "move": CliVerb("mq.cli.messages:move_command", "Move ready messages to another queue."),
    "schedule": CliVerb("mq.cli.schedules:schedule_command", "Manage schedules, which publish messages at set times."),
    "export": CliVerb("mq.cli.archive:export_command", "Copy all messages in a queue to a file."),
    "import": CliVerb("mq.cli.archive:import_command", "Publish the messages in an export file."),
    "top": CliVerb("mq.cli.top:top_command", "Show a live view of the queues with the most messages."),
    "cluster": CliVerb("mq.cli.cluster:cluster_command", "Show a cluster's state and manage its nodes."),
    "connections": CliVerb("mq.cli.daemon:connections_command", "List client connections, or close one."),
    "consumers": CliVerb("mq.cli.daemon:consumers_command", "List consumers, or delete a Spark consumer."),
    "logging": CliVerb("mq.cli.daemon:logging_command", "Show or change the log level of a running daemon."),
    "clock": CliVerb(
        "mq.cli.daemon:clock_command",
        "Show whether mq trusts the wall clock, or confirm the time.",
    ),
    "certificate": CliVerb(
        "mq.cli.certificate:certificate_command", "Create a self-signed TLS certificate and its key."
    ),
    "doctor": CliVerb("mq.cli.doctor:doctor_command", "Check a root for damaged, duplicate and unrelated files."),
    "backup": CliVerb("mq.cli.backup:backup_command", "Back up a root, even while a daemon is serving it."),
    "restore": CliVerb("mq.cli.backup:restore_command", "Restore a backup to an empty root."),
    "bench": CliVerb("mq.cli.bench:bench_command", "Measure the throughput and latency of a daemon."),
    "vsqs": CliVerb("mq.cli.vsqs:vsqs", "Use a folder as a queue, without a daemon."),
}
"""Every verb, in the order of ``mq --help``."""
NEED_LINUX: Final = frozenset({"serve", "user", "doctor", "backup", "restore", "vsqs"})
"""Verbs that work on files as only Linux can. The others speak to a daemon, from any system."""


class _Verbs(PlainGroup):
    """Lists the table, and imports the one verb that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_verb(cmd_name) if cmd_name in VERBS else None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Verbs first: they are what a reader looks for, and there are fifty lines of settings."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def load_verb(name: str) -> click.Command:
    """The command of a verb of the table.

    Raises:
        click.ClickException: it needs Linux, and this is another system.
    """
    if name in NEED_LINUX and sys.platform != "linux":
        raise click.ClickException(
            f"mq {name} requires Linux (renameat2, syncfs, inotify), but this system is {sys.platform}. Run "
            f"mq {name} on Linux or in a container. The client libraries and the commands that connect to a "
            "daemon also work on this system"
        )
    module, _, attribute = VERBS[name].place.partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    return command


def _tell_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        build = importlib.import_module("mq.cli.build")  # looks for mq-native, which no verb needs
        say(f"mq, version {__version__}{build.installed()}")
        context.exit()


@click.group("mq", cls=_Verbs, invoke_without_command=True)
@settings_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(context: click.Context, /, **flags: str | None) -> None:
    """A durable message queue that speaks HTTP and AMQP. Without a command, mq runs the daemon (mq serve) with the
    options below.

    An option overrides its environment variable, which overrides the settings file.

    The exit status is 0 if the command succeeded, 1 if the daemon refused the request, 2 if the command line is
    invalid or mq cannot start, 3 if there was no message to receive, 4 after a temporary failure (try again later), 5
    if a check found problems, and 6 if the output could not be written.
    """
    for name, near in near_misses(os.environ).items():
        say(f"mq: unknown environment variable {name}: did you mean {near}?", err=True)
    context.obj = flags
    if context.invoked_subcommand is None:
        context.invoke(load_verb("serve"))
