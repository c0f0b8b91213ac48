"""The page of the matrix, from made-up results."""

from __future__ import annotations

from pathlib import Path

from tests.crash.__main__ import PAGE
from tests.crash.judge import Flaw
from tests.crash.matrix import Cell, Found
from tests.crash.page import BEGIN, END, matrix, page, put
from tests.crash.trial import Cost, Verdict

COST = Cost(2.0, 1.63)
CLEAN = Cell("ext4", "everything", 300, 0, "", 0, COST, [])
BAD = Cell("xfs", "everything", 200, 3, "lost", 1, COST, [Verdict("5:lost:0", [Flaw("lost", "id")])])


def test_the_table_has_a_place_for_every_cell() -> None:
    other = CLEAN._replace(workload="publish")
    assert matrix([CLEAN, BAD, other]).splitlines() == [
        "| workload | ext4 | xfs |",
        "|---|---|---|",
        "| everything | 0 of 300 | 3 of 200, worst: lost, 1 could not be mounted |",
        "| publish | 0 of 300 | – |",
    ]


def test_a_cell_is_clean_when_something_was_tried_and_nothing_broken() -> None:
    assert CLEAN.is_clean
    assert not BAD.is_clean
    assert not CLEAN._replace(points=2, unmountable=2).is_clean


def test_the_page_says_what_was_run() -> None:
    found = [
        Found("settle nothing", "ext4", 1, "lost"),
        Found("sync again", "ext4", 1, "cut 7:lost:0: Flaw(kind='lost', detail='id')"),
        Found("hidden", "ext4", 400, ""),
    ]
    text = page([CLEAN, BAD], [("ext4", "write once", []), ("xfs", "flush once", ["wrong"])], found, 600)
    assert "in 10 minutes" in text
    assert "Points in all: 500." in text
    assert "| ext4 | 2.0 | 1.6 |" in text
    assert "Runs: 2. Runs in which something was wrong: 1." in text
    assert "| settle nothing | ext4 | 1 points | lost |" in text
    assert "| sync again | ext4 | a failing disk | lost |" in text
    assert "| hidden | ext4 | 400 points | **not found** |" in text
    assert "{" not in text


def test_put_replaces_only_the_part_between_the_markers(tmp_path: Path) -> None:
    target = tmp_path / "proof.md"
    target.write_text(f"before\n{BEGIN}old\n{END}\nafter\n")
    put(target, "new\n")
    assert target.read_text() == f"before\n{BEGIN}new\n{END}\nafter\n"


def test_page_of_the_documentation_has_the_markers() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.partition(BEGIN)[2].count(END) == 1
