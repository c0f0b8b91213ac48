"""The pictures of the docs are those of the console as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.page.pictures import DIGESTS, FOLDER, PICTURES, digests, kept_digests

DOCS = FOLDER.parent
MOST_BYTES = 100 * 1024


def test_every_picture_was_made_of_the_markup_and_style_that_its_view_has_now() -> None:
    kept, now = kept_digests(), digests()
    stale = sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))
    assert stale == [], (
        f"the console has changed since its pictures were made: make pictures ({DIGESTS.name} says of what)"
    )


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_small(name: str) -> None:
    assert 5_000 < len((FOLDER / f"{name}.png").read_bytes()) <= MOST_BYTES


def test_every_picture_is_shown_and_every_shown_one_is_made() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    shown = {Path(name).stem for page in pages for name in re.findall(r"\bpage/([\w-]+\.png)", page.read_text("utf-8"))}
    assert shown == PICTURES.keys() == {file.stem for file in FOLDER.glob("*.png")}
