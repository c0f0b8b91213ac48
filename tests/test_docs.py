"""The pages are true: links lead somewhere, examples run, tables name what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import mq
from mq.lifecycle import diagram
from mq.settings import LINES
from tests.documents import blocks, headings, links

TREE = Path(__file__).resolve().parent.parent
README = TREE / "README.md"
SEEDS = TREE / "docs" / "seeds.md"
PAGES = sorted([*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md"), *(TREE / "plugins").glob("*/README.md")])
SEED_ROW = re.compile(r"^\| (?P<number>[A-Z]+\d+) \| (?P<sentence>.+?) \| (?P<kept>.+?) \|$", re.MULTILINE)
TEST_NAME = re.compile(r"`((?:plugins/[\w-]+/)?tests/[\w/]+\.py)::(\w+)`")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in headings(found), target


@each_page
def test_no_page_needs_a_network(page: Path) -> None:
    hosts = set(re.findall(r"https?://([^/\s:`\"')]+)", page.read_text()))
    assert hosts <= {"127.0.0.1", "localhost"}


def test_python_examples_compile() -> None:
    for page in PAGES:
        for number, source in enumerate(blocks(page, "python")):
            compile(source, f"{page.name}, example {number}", "exec")


def test_lifecycle_page_holds_the_table_as_it_is() -> None:
    assert diagram() in blocks(TREE / "docs" / "lifecycle.md", "mermaid")


def test_readme_lists_every_setting() -> None:
    table = README.read_text()
    for line in LINES:
        row = f"| `{line.flag}` | `{line.variable}` | `{line.name}` | {line.shown or 'off'} | {line.help} |"
        assert row in table


def test_changelog_knows_this_version() -> None:
    titles = re.findall(r"^## \[(.+?)\]", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert "Unreleased" in titles or mq.__version__ in titles


def test_every_dependency_has_its_reason() -> None:
    names = dependencies()
    reasons = set(re.findall(r"^\| `([\w-]+)` \|", (TREE / "docs" / "decisions.md").read_text(), re.MULTILINE))
    assert names <= reasons, names - reasons


def test_constraints_pin_what_the_project_asks_for() -> None:
    pinned = re.findall(r"^([\w.-]+)==", (TREE / "constraints.txt").read_text(), re.MULTILINE)
    missing = set(map(normal, dependencies())) - set(map(normal, pinned))
    assert not missing


def dependencies() -> set[str]:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {re.split(r"[\[<>=~ ]", wanted)[0] for group in groups for wanted in group} - {"mq"}


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def test_seed_table_numbers_its_sentences() -> None:
    numbers = [row["number"] for row in SEED_ROW.finditer(SEEDS.read_text())]
    assert len(numbers) > 40
    assert len(numbers) == len(set(numbers))


def test_every_seed_sentence_is_kept_by_a_test_that_exists() -> None:
    for row in SEED_ROW.finditer(SEEDS.read_text()):
        kept = row["kept"]
        tests = TEST_NAME.findall(kept)
        assert tests or kept.startswith(("planned", "definition")), row["number"]
        for path, name in tests:
            file = TREE / path
            assert file.is_file(), f"{row['number']}: {path}"
            assert re.search(rf"\bdef {name}\(", file.read_text()), f"{row['number']}: {path}::{name}"
