"""The pages are true: links lead somewhere, examples run, tables name what exists."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import mq
from mq.lifecycle import diagram
from mq.settings import LINES
from tests.documents import blocks, headings, links
from tests.sentences import digest, pieces
from tools import pages

TREE = Path(__file__).resolve().parent.parent
SEEDS = TREE / "docs" / "dev" / "specifications.md"
PAGES = sorted([*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md"), *(TREE / "plugins").glob("*/README.md")])
SEED_ROW = re.compile(
    r"^\| (?P<seed>[\w-]+) (?P<number>\d+) \| `(?P<digest>\w{12})` \| (?P<words>.+) \| (?P<kept>.+?) \|$", re.MULTILINE
)
DEFINITIONS = re.compile(
    r"^Pieces of (?P<seed>[\w-]+) that ask for nothing, .+?: (?P<pieces>[\d\w`,\s]+)\.$", re.MULTILINE
)
SEED_PIECES = {"MQ": 135, "MQ-Core": 89, "VSQS": 48, "SimpleMessageQueue": 35, "CHMQ": 98}
"""The seeds, and how many pieces each has."""
USERS_WORDS, ALL_WORDS = 42_000, 73_500
"""The most words of the users' pages, which had 40,000 in November 2026, and of all pages in docs/ and at the root."""
TEST_NAME = re.compile(r"`((?:plugins/[\w-]+/)?tests/[\w/]+\.py)::(\w+)`")


def test_links_lead_to_pages_and_headings_that_exist() -> None:
    broken = []
    for page in PAGES:
        for target in links(page):
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            if not found.exists() or (anchor and anchor not in headings(found)):
                broken.append(f"{page.relative_to(TREE)}: {target}")
    assert broken == []


def test_no_page_needs_a_network() -> None:
    hosts = {page: set(re.findall(r"https?://([^/\s:`\"')]+)", page.read_text())) for page in PAGES}
    assert {page: names for page, names in hosts.items() if names - {"127.0.0.1", "localhost"}} == {}


def test_python_examples_compile() -> None:
    for page in PAGES:
        for number, source in enumerate(blocks(page, "python")):
            compile(source, f"{page.name}, example {number}", "exec")


def test_lifecycle_page_holds_the_table_as_it_is() -> None:
    assert diagram() in blocks(TREE / "docs" / "dev" / "architecture.md", "mermaid")


def test_a_page_lists_every_setting() -> None:
    table = (TREE / "docs" / "settings.md").read_text()
    for line in LINES:
        row = f"| `{line.flag}` | `{line.variable}` | `{line.name}` | {line.shown or 'off'} | {line.help} |"
        assert row in table


def test_changelog_knows_this_version() -> None:
    titles = re.findall(r"^## \[(.+?)\]", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert "Unreleased" in titles or mq.__version__ in titles


def test_changelog_of_what_was_never_released_is_one_page() -> None:
    """What the first release has, by area. Nobody upgrades to it, so there is no list of what was mended on the way."""
    text = (TREE / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ", text, re.MULTILINE) == ["## "], "once a version is released, drop this test"
    assert len(text) <= 6_000
    assert "Fixed:" not in text


def test_contributors_are_sent_to_files_that_exist() -> None:
    named = set(
        re.findall(r"[`(]((?:mq|tests|docs|plugins|tools)/[\w/.-]+)[`)]", (TREE / "CONTRIBUTING.md").read_text())
    )
    assert len(named) > 40
    assert {path for path in named if not (TREE / path).exists()} == set()


def test_every_dependency_has_its_reason() -> None:
    names = dependencies()
    reasons = set(re.findall(r"^\| `([\w-]+)` \|", (TREE / "docs" / "dev" / "decisions.md").read_text(), re.MULTILINE))
    assert names <= reasons, names - reasons


def test_constraints_pin_what_the_project_asks_for() -> None:
    pinned = re.findall(r"^([\w.-]+)==", (TREE / "constraints.txt").read_text(), re.MULTILINE)
    missing = set(map(normal, dependencies())) - set(map(normal, pinned))
    assert not missing


def dependencies() -> set[str]:
    table = tomllib.loads((TREE / "pyproject.toml").read_text())
    project, groups = table["project"], table["dependency-groups"].values()
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *groups]
    wanted = [each for one in lists for each in one if isinstance(each, str)]  # others include a group
    return {re.split(r"[\[<>=~; ]", each)[0] for each in wanted} - {"mq"}


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def digests_of(seed: str) -> dict[int, str]:
    """Number -> digest, of rows and of pieces that ask for nothing."""
    page = SEEDS.read_text()
    [nothing] = [listed["pieces"] for listed in DEFINITIONS.finditer(page) if listed["seed"] == seed]
    found = re.findall(r"(\d+)\s`(\w{12})`", nothing)
    found += [(row["number"], row["digest"]) for row in SEED_ROW.finditer(page) if row["seed"] == seed]
    assert len({number for number, _ in found}) == len(found), "a piece is there twice"
    return {int(number): digest for number, digest in sorted(found, key=lambda each: int(each[0]))}


def test_every_piece_of_the_seeds_is_there() -> None:
    for seed, count in SEED_PIECES.items():
        assert list(digests_of(seed)) == list(range(1, count + 1))
    assert {row["seed"] for row in SEED_ROW.finditer(SEEDS.read_text())} == set(SEED_PIECES)


def test_each_row_says_what_is_done_and_names_tests_that_exist() -> None:
    for row in SEED_ROW.finditer(SEEDS.read_text()):
        where = f"{row['seed']} {row['number']}"
        tests = TEST_NAME.findall(row["kept"])
        assert tests or row["kept"].startswith("definition") or (row["kept"], row["words"][:3]) == ("there", "as "), (
            where
        )
        assert "planned" not in row["kept"], where
        for path, name in tests:
            file = TREE / path
            assert file.is_file(), f"{where}: {path}"
            assert re.search(rf"\bdef {name}\(", file.read_text()), f"{where}: {path}::{name}"


@pytest.mark.skipif("MQ_SEEDS" not in os.environ, reason="MQ_SEEDS names no folder with the texts of the seeds")
@pytest.mark.parametrize("seed", SEED_PIECES)
def test_digests_are_those_of_the_texts(seed: str) -> None:
    text = Path(os.environ["MQ_SEEDS"], f"{seed.lower()}.txt").read_text(encoding="utf-8")
    found = list(pieces(text))
    assert list(digests_of(seed).values()) == [digest(piece) for piece in found]
    rows = [row for row in SEED_ROW.finditer(SEEDS.read_text()) if row["seed"] == seed]
    repeated = [
        row["number"]
        for row in rows
        for piece in [found[int(row["number"]) - 1]]
        if len(piece) > 25 and piece in row["words"]
    ]
    assert not repeated, "say it in our words"


def test_pieces_of_a_text() -> None:
    text = "# A *head*\n\nOne sentence. Another\none: Here.\n* an item\n2. Two. Three\n"
    text += "```\ncode. Code\n```\n    GET /\n| a |\n"
    assert list(pieces(text)) == [
        "# A *head*",
        "One sentence.",
        "Another one:",
        "Here.",
        "an item",
        "Two.",
        "Three",
        "code. Code",
        "GET /",
        "| a |",
    ]
    assert digest("# A *head*") == digest("a   HEAD") != digest("a heads")


def test_parts_made_from_the_code_are_current() -> None:
    texts = {path: (TREE / path).read_text(encoding="utf-8") for path in pages.PARTS}
    stale = [path for path, text in texts.items() if text != pages.made(path, text)]
    assert stale == [], "python tools/pages.py writes them"


def test_page_without_its_parts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docs/http\.md has to have these parts"):
        pages.made("docs/http.md", "nothing")


def test_figures_of_packages_stay_until_they_differ_by_a_fifth() -> None:
    shown = "\n".join(pages.packages(""))
    [row] = [line for line in shown.splitlines() if line.startswith("| `mq.broker` |")]
    lines = int(row.split("|")[4].replace(",", ""))
    near, far = (row.replace(f"{lines:,}", f"{int(lines * factor):,}") for factor in (1.15, 1.4))
    assert near in "\n".join(pages.packages(shown.replace(row, near)))
    assert row in "\n".join(pages.packages(shown.replace(row, far)))


USERS_PAGES = sorted(page for page in (TREE / "docs").glob("*.md") if page.name != "benchmarks.md")
"""Benchmarks show figures that were wanted."""
WORKSHOP = re.compile(r"tests/[\w/]+|`test_\w+|-m proof|pytest [-\w]+|\| (?:wanted|missed|reached) \|")


def test_users_pages_name_no_test_and_no_wanted_figure() -> None:
    found = {page.name: WORKSHOP.findall(page.read_text(encoding="utf-8")) for page in USERS_PAGES}
    assert {name: words for name, words in found.items() if words} == {}


def test_trees_stay_within_their_words() -> None:
    """Without the changelog, which grows with each release until it is cut."""
    users, maintainers = (TREE / "docs").glob("*.md"), (TREE / "docs" / "dev").glob("*.md")
    root = (page for page in TREE.glob("*.md") if page.name != "CHANGELOG.md")
    of_users, of_others = words_of(users), words_of([*maintainers, *root])
    assert of_users <= USERS_WORDS
    assert of_users + of_others <= ALL_WORDS


def words_of(pages: Iterable[Path]) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
