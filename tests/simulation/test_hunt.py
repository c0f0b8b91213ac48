"""Hunting finds seeds, keeps those that still find their bug, and says which bugs none finds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from mq.message import shorten
from tests.simulation import hunt
from tests.simulation.planting import Bug

FINDING = (13, 17, 20, 40)
"""The seeds that see whether :func:`mq.message.shorten` works."""


def look(seed: int) -> Sequence[str]:
    return [f"P0: seed {seed} sees it"] if seed in FINDING and shorten("word") != '"word"' else []


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """One ground with two bugs, one of which no seed finds."""
    bugs = {
        "nothing is said": Bug("shorten", """'"' + shown[1:-1] + '"'""", "''"),
        "all is well": Bug("shorten", "len(text) <= limit", "len(text) < limit + 1"),
    }
    monkeypatch.setattr(hunt, "GROUNDS", {"field": hunt.Ground(bugs, look)})
    monkeypatch.setattr(hunt, "PAGE", tmp_path / "found_by.json")
    return tmp_path / "found_by.json"


def known(page: Path, seed: int) -> None:
    page.write_text(json.dumps({"field": {"nothing is said": seed, "a bug of last year": 3}, "elsewhere": {}}))


def ask(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(hunt.main, [*arguments, "--processes", "1", "--most", "50"], catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("before", "after", "flags"), [(40, 40, []), (27, 17, []), (30, 20, []), (1, 13, []), (40, 13, ["--anew"])]
)
def test_the_known_seed_is_kept_or_another_is_found(page: Path, before: int, after: int, flags: list[str]) -> None:
    """Those with the same last digit are looked at first."""
    known(page, before)
    assert ask("nothing is said", *flags)[1].endswith("1 of 1 bugs found, written to found_by.json\n")
    assert json.loads(page.read_text()) == {"field": {"nothing is said": after}}
    assert hunt.found_by("field") == {"nothing is said": after}


def test_what_no_seed_finds_is_told(page: Path) -> None:
    status, told = ask()
    assert status == 1
    assert "1 of 2 bugs found" in told
    assert told.endswith("\n  all is well\n")
    assert json.loads(page.read_text()) == {"field": {"nothing is said": 13}}


def test_a_seed_that_breaks_a_promise_by_itself_finds_nothing(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = hunt.GROUNDS["field"].bugs
    ill = hunt.Ground(bugs, lambda seed: ["P1: lost"] if seed == 13 else look(seed))
    monkeypatch.setattr(hunt, "GROUNDS", {"field": ill})
    with pytest.raises(AssertionError, match="seed 13 breaks a promise without any bug planted: P1: lost"):
        hunt.finds("field", "nothing is said", 13)
    status, told = ask("nothing is said")
    assert status == 1
    assert told.endswith("\n  field: seed 13 breaks a promise without any bug planted: P1: lost\n")
    assert json.loads(page.read_text()) == {"field": {"nothing is said": 17}}
