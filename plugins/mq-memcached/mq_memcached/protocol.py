"""Reads a memcached's statistics, which the client library changes: its numbers and words become other values."""

from __future__ import annotations


class Malformed(Exception):
    """The server's answer is not the memcached protocol."""


def parse_statistics(answer: bytes) -> dict[str, str]:
    """Return the statistics in the answer to a ``stats`` command, by name, without the line ``END``.

    Raises:
        Malformed: a line is not a statistic.
    """
    found = {}
    for line in answer.splitlines():
        word, name, *text = line.split(b" ", 2)
        if word != b"STAT":
            raise Malformed(f"invalid line in the server's statistics: {line[:80]!r}")
        found[name.decode()] = text[0].decode() if text else ""
    return found
