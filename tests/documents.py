"""Reads Markdown as far as the tests of the pages need it."""

from __future__ import annotations

import re
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_VOLATILE = (
    (re.compile(r'"[0-9a-f]{16}"'), '"RECEIPT"'),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r",d[0-9]{13}"), ",dDEADLINE"),
    (re.compile(r",c[0-9a-f]{16}"), ",cCLAIM"),
    (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z"), "INSTANT"),
    (re.compile(r"^date: .+$", re.MULTILINE), "date: DATE"),
)


def blocks(page: Path, language: str | None = None) -> list[str]:
    return [text for name, text in _FENCE.findall(page.read_text()) if language in (None, name)]


def fences(page: Path) -> list[str]:
    """The languages of the fenced blocks, in their order."""
    return [name for name, _ in _FENCE.findall(page.read_text())]


def prose(page: Path) -> str:
    """The page without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]+`", "", _FENCE.sub("", page.read_text()))


def links(page: Path) -> list[str]:
    """Where the page's links lead, without addresses of other hosts."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]


def headings(page: Path) -> set[str]:
    """The anchors of the page's headings, as Git hosts make them."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(page.read_text())}


def commands(session: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a block that shows a console."""
    parts = re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (part.partition("\n") for part in parts)]


def mask(text: str) -> str:
    """The text without what differs each time (ids, deadlines, dates), and without space at ends of lines."""
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
