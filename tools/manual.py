"""Man pages and completions, made from the command line's own definitions: they name what there is, and nothing else.

Usage: python tools/manual.py FOLDER
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

import mq
from mq.cli import main as mq_main
from mq.cli import mover, reaper
from mq.settings import LINES

PROGRAMS = {"mq": mq_main, "mq-mover": mover.main, "mq-reaper": reaper.main}
"""mq-pipeline is left out: it needs Spark, which brings its own way of being installed."""

COMPLETIONS = {
    "bash": "bash-completion/completions/mq",
    "zsh": "zsh/vendor-completions/_mq",
    "fish": "fish/vendor_completions.d/mq.fish",
}
"""Shell -> where Debian has such a file, below /usr/share."""

STATUSES = {
    "0": "success",
    "1": "the request was refused, or a part of it failed; do not retry it unchanged",
    "2": "usage error, or the program cannot start",
    "3": "there was no message to receive",
    "4": "temporary failure, such as an unreachable or full daemon; retry later",
    "5": "a check found problems",
    "6": "standard output is full or closed",
    "130": "interrupted by Control-C",
    "141": "standard output was closed by its reader",
}


def main(folder: Path) -> None:
    """Write all below `folder`, as it is to be below /usr/share."""
    for name, text in pages():
        write(folder / "man" / "man1" / f"{name}.1.gz", text.encode())
    for shell, text in completions():
        path = folder / COMPLETIONS[shell]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write(path: Path, text: bytes) -> None:
    """A compressed file that is the same each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0))


def completions() -> Iterator[tuple[str, str]]:
    """(shell, script) of the program mq."""
    for shell in COMPLETIONS:
        kind = get_completion_class(shell)
        assert kind is not None
        yield shell, kind(mq_main, {}, "mq", "_MQ_COMPLETE").source()


def pages() -> Iterator[tuple[str, str]]:
    """(name, page) of each program and each verb."""
    for program, command in PROGRAMS.items():
        for context in contexts(click.Context(command, info_name=program)):
            name = context.command_path.replace(" ", "-")
            yield name, page(name, context)


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Of a command and of all below it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            below = context.command.get_command(context, name)
            assert below is not None
            yield from contexts(click.Context(below, info_name=name, parent=context))


def page(name: str, context: click.Context) -> str:
    """A page in the macros of man(7)."""
    command = context.command
    text = command.help or ""
    lines = [f'.TH "{name.upper()}" "1" "" "mq {mq.__version__}" "mq"', ".SH NAME"]
    lines.append(rf"{escape(name)} \- {escape(command.get_short_help_str(200).rstrip('.'))}")
    lines += [
        ".SH SYNOPSIS",
        rf".B {escape(context.command_path)}",
        escape(" ".join(command.collect_usage_pieces(context))),
    ]
    lines.append(".SH DESCRIPTION")
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines += [".PP", escape(" ".join(paragraph.split()))]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            lines += [".TP", rf"\fB{escape(name)}\-{escape(verb)}\fR(1)", escape(below.get_short_help_str(200))]
    lines.append(".SH OPTIONS")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            lines += [".TP", rf"\fB{escape(record[0])}\fR", escape(record[1])]
    return "\n".join([*lines, *_ends(name)]) + "\n"


def _ends(name: str) -> Iterator[str]:
    if name == "mq":
        yield ".SH ENVIRONMENT"
        for line in LINES:
            yield from (".TP", rf"\fB{escape(line.variable)}\fR", escape(f"same as {line.flag}"))
        yield from (".SH FILES", ".TP", r"\fI/etc/default/mq\fR", "environment variables of the service")
        yield from (".TP", r"\fI/var/lib/mq\fR", "root of the service")
    yield ".SH EXIT STATUS"
    for status, meaning in STATUSES.items():
        yield from (".TP", status, escape(meaning))


def escape(text: str) -> str:
    """Text of which roff takes nothing for a request or a sign of its own."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{text}" if text.startswith(".") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
