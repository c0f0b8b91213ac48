"""Names of commands and options in other programs, with the names that mq has for the same purpose.

They only serve the answers to unknown commands and options: "did you mean send?".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mq.settings import nearest

_ENOUGH: Final = 0.6
"""Similarity of two names from which one may be a misspelling of the other; see :mod:`difflib`."""


def _table(entries: Mapping[str, str]) -> dict[str, str]:
    """Command by synonym, from synonyms in one text by command."""
    return {synonym: command for command, synonyms in entries.items() for synonym in synonyms.split()}


COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "mq": _table(
        {
            "send": "publish pub put push enqueue produce post add write",
            "receive": "get fetch consume pop dequeue pull recv sub subscribe read listen tail",
            "queues": "list ls stats status info count depth list-queues",
            "peek": "browse look view cat",
            "delete": "remove rm del ack acknowledge",
            "purge": "clear empty flush purge-queue",
            "queue create": "create declare new make create-queue",
            "queue delete": "drop delete-queue",
            "queue show": "show describe inspect",
            "queue set": "set config configure update",
            "redrive": "retry requeue replay dlq dead-letters",
            "serve": "start run daemon server broker up",
            "reschedule": "delay postpone",
            "schedule": "schedules cron timer timers",
            "user": "users login passwd password token tokens auth",
            "connections": "clients",
            "cluster status": "nodes node",
            "cluster drain": "drain",
            "doctor": "check fsck verify repair",
            "bench": "benchmark perf",
            "certificate": "cert tls",
            "logging": "log loglevel log-level",
            "--help": "help",
            "--version": "version",
        }
    ),
    "queue": _table(
        {
            "mq queues": "list ls stats status",
            "create": "new add make declare",
            "delete": "remove rm del drop",
            "set": "configure config update change edit",
            "show": "get info describe inspect",
            "mq purge": "purge clear empty flush",
            "mq pause": "pause stop",
            "mq resume": "resume start",
        }
    ),
    "schedule": _table(
        {
            "put": "add create new set update make",
            "delete": "remove rm del cancel drop",
            "list": "ls",
            "show": "get info describe inspect",
        }
    ),
    "user": _table(
        {
            "add": "create new",
            "remove": "delete rm del drop",
            "list": "ls show get",
            "limit": "limits quota",
            "retire": "revoke",
            "token": "passwd password login",
            "aws-key": "key keys access-key",
        }
    ),
    "cluster": _table({"status": "list ls show nodes info members", "check": "health", "drain": "stop"}),
    "vsqs": _table(
        {
            "send": "publish pub put push enqueue",
            "receive": "get fetch consume pop dequeue pull recv",
            "delete": "remove rm del ack",
            "size": "count len depth length",
        }
    ),
    "mq-pipeline": _table({"archive": "export", "insight": "analyze report stats", "replay": "restore import"}),
}
"""By the name of a group."""
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("host", "bind", "listen", "ip", "interface", "addr"), ("address", "url")),
    **dict.fromkeys(("server", "endpoint", "uri", "u", "connect", "address", "broker"), ("url",)),
    **dict.fromkeys(("http-port", "listen-port", "p", "port"), ("port", "url")),
    **dict.fromkeys(("data", "dir", "folder", "data-dir", "path", "d"), ("root", "message")),
    **dict.fromkeys(("body", "text", "payload", "msg", "content", "b"), ("message",)),
    **dict.fromkeys(("delay", "lease", "lock", "visibility-timeout", "invisible"), ("visibility",)),
    **dict.fromkeys(("take-turns", "failover", "ha"), ("standby",)),
    **dict.fromkeys(("verbose", "v", "debug", "loglevel", "level"), ("log-level",)),
    **dict.fromkeys(("count", "number", "limit", "num", "batch", "c"), ("max",)),
    **dict.fromkeys(("f", "forever", "loop", "watch", "tail"), ("follow", "yes")),
    **dict.fromkeys(("force", "y"), ("yes",)),
    **dict.fromkeys(("expires", "expire", "expiration", "expiry"), ("ttl",)),
    **dict.fromkeys(("token", "password", "user", "auth"), ("credentials", "users")),
    **dict.fromkeys(("cacert", "cafile", "ca-cert"), ("ca", "tls-client-ca")),
    **dict.fromkeys(("cert", "tls"), ("certificate", "tls-cert")),
    **dict.fromkeys(("header", "headers", "attr", "property"), ("attribute",)),
    **dict.fromkeys(("type", "mime"), ("content-type",)),
    **dict.fromkeys(("when", "time"), ("at",)),
    **dict.fromkeys(("interval",), ("every",)),
    **dict.fromkeys(("tz", "timezone", "time-zone"), ("zone",)),
    **dict.fromkeys(("output", "o"), ("out",)),
    **dict.fromkeys(("noack", "no-ack"), ("keep",)),
    **dict.fromkeys(("command", "cmd", "run", "handler"), ("exec",)),
    **dict.fromkeys(("webhook", "forward"), ("to",)),
}
"""Without dashes: the options that may be meant, the likeliest first."""
AFTER_COMMAND: Final = frozenset({"--url", "--credentials", "--ca", "--certificate", "--patience", "--json"})
"""Options that most commands have, and ``mq`` itself does not."""


def command_meant(group: str, name: str, known: Iterable[str]) -> str:
    """Return the command that was probably meant, or "".

    Args:
        group: the group's own name, such as "mq" or "queue".
        name: the unknown command.
        known: the commands of the group.
    """
    name = name.lower()
    return COMMANDS.get(group, {}).get(name) or nearest(name, [*known], _ENOUGH)


def option_meant(name: str, known: Iterable[str]) -> str:
    """Return the option that was probably meant, with its dashes, or "".

    Args:
        name: the unknown option.
        known: the options of the command.
    """
    plain = {option.lstrip("-"): option for option in known if option.startswith("--")}
    name = name.lstrip("-").replace("_", "-").lower()
    likely = [meant for meant in OPTIONS.get(name, ()) if meant in plain]
    found = likely[0] if likely else nearest(name, [*plain], _ENOUGH) if len(name) > 1 else ""
    return plain.get(found, "")
