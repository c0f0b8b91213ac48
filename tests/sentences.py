"""The pieces of a seed's text, numbered and digested, so that a table can name each without repeating it.

A piece is a sentence, a heading, or a line of a table or of code. ``python -m tests.sentences FILE`` lists a text's.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DIGITS = 12
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*`_\"'(\[])")
_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")


def pieces(text: str) -> Iterator[str]:
    """In order. Lines of a paragraph, or of an item of a list, are joined before they are cut into sentences."""
    is_code = False
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_fence = line.strip().startswith("```")
        stands_alone = not is_fence and (is_code or line.lstrip().startswith(("#", "|")) or line.startswith("    "))
        item = None if stands_alone else _ITEM.match(line)
        if is_fence or stands_alone or item or not line.strip():
            yield from filter(str.strip, _END.split(" ".join(paragraph)))
            paragraph = []
        is_code ^= is_fence
        if stands_alone and line.strip():
            yield line.strip()
        elif not is_fence and not stands_alone and line.strip():
            paragraph.append(line[item.end() if item else 0 :].strip())


def digest(piece: str) -> str:
    """The first digits of the SHA-256 of a piece; upper case, white space and Markdown's marks do not count."""
    folded = re.sub(r"\s+", " ", re.sub(r"[*_`#]", "", piece)).strip().lower()
    return hashlib.sha256(folded.encode()).hexdigest()[:DIGITS]


if __name__ == "__main__":
    for number, piece in enumerate(pieces(Path(sys.argv[1]).read_text(encoding="utf-8")), 1):
        sys.stdout.write(f"{number} {digest(piece)} {piece}\n")
