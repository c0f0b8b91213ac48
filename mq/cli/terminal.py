"""Output of programs. On a terminal, control characters are escaped: text that a client of the daemon chose must not
move the cursor, hide what stands before it, or turn the direction of a line. Elsewhere every byte is as it is."""

from __future__ import annotations

import codecs
import io
import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

_COMMANDS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that command a terminal, or that it does not show: C0 and C1, directions, tags, surrogates,
separators of lines and paragraphs."""
_JOINERS: Final = "\u200c\u200d"
"""Parts of emoji and of scripts such as Persian, which change no other text."""


def escape(text: str) -> str:
    r"""The text with each character that commands a terminal, but the ends of lines and tabs, written as ``\u009b``: in
    JSON that is the same text."""
    if text.isprintable():
        return text
    return "".join(
        json.dumps(each)[1:-1] if each not in "\n\t" and _commands(each) else each  # as JSON, in ASCII
        for each in text
    )


def _commands(character: str) -> bool:
    return unicodedata.category(character) in _COMMANDS and character not in _JOINERS


def say(text: object, *, err: bool = False) -> None:
    """Print a line.

    Args:
        err: to standard error.
    """
    is_terminal = (sys.stderr if err else sys.stdout).isatty()
    click.echo(escape(str(text)) if is_terminal else text, err=err)


def say_json(value: Mapping[str, Any]) -> None:
    """Print an object on a line of its own."""
    say(json.dumps(value, ensure_ascii=False))


def say_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows for eyes on a terminal; elsewhere without a header, with tabs between."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    for line in aligned(header, rows):
        click.echo(line)


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A header and rows with their columns under one another, each on one line."""
    lines = [tuple(header), *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _cell(text: str) -> str:
    return escape(text).replace("\n", "\\n").replace("\t", "\\t")


class BodyWriter:
    """Writes the body of a message to standard output: to a terminal as text, elsewhere byte for byte.

    Args:
        ends: write a newline after a body that does not end with one.
    """

    def __init__(self, *, ends: bool = False) -> None:
        self._ends = ends
        self._last = b""
        self._decoder: io.IncrementalNewlineDecoder | None = None
        if sys.stdout.isatty():
            text = codecs.getincrementaldecoder("utf-8")("backslashreplace")
            self._decoder = io.IncrementalNewlineDecoder(text, translate=True)

    def write(self, chunk: bytes) -> None:
        """Write the next bytes."""
        self._last = chunk or self._last
        self._put(chunk if self._decoder is None else escape(self._decoder.decode(chunk)).encode())

    def end(self) -> None:
        """Write what is left, and flush."""
        if self._decoder is not None:
            self._put(escape(self._decoder.decode(b"", final=True)).encode())
        if self._ends and not self._last.endswith(b"\n"):
            self._put(b"\n")
        sys.stdout.buffer.flush()

    def _put(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)


def write_body(body: bytes) -> None:
    """Write the whole body of a message, as :class:`BodyWriter` does."""
    writer = BodyWriter()
    writer.write(body)
    writer.end()
