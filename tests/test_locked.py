"""What dist and CI install is written down file by file, and fits the pins and what mq says that it needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

TREE: Final = Path(__file__).resolve().parent.parent
LOCKED: Final = TREE / "locked"
PAGES: Final = ("build.txt", "dist.txt", "dev.txt", "postgres.txt", "tools.txt")

pytestmark = pytest.mark.skipif(not (TREE / "constraints.txt").exists(), reason="only the project's own tree has pins")


def folded(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(page: str) -> dict[str, tuple[str, list[str]]]:
    """By folded name: the version, and the hashes of its files."""
    found = {}
    for entry in (LOCKED / page).read_text().replace("\\\n", " ").splitlines():
        if not entry.startswith("#"):
            pin, *hashes = entry.split()
            name, version = pin.split("==")
            found[folded(name)] = version, hashes
    return found


def pins() -> dict[str, str]:
    lines = (TREE / "constraints.txt").read_text().splitlines()
    split = [line.partition(";")[0].strip().split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {folded(name): version for name, version in split if folded(name) != "atheris"}  # which has two


@pytest.mark.parametrize("page", PAGES)
def test_each_file_has_a_hash_and_is_the_pinned_one(page: str) -> None:
    pinned = pins()
    for name, (version, hashes) in locked(page).items():
        assert pinned.get(name, version) == version, f"{name}: make locked writes locked/{page} anew"
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), name


def test_all_that_mq_needs_is_written_down() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    groups = tomllib.loads((TREE / "pyproject.toml").read_text())["dependency-groups"].values()
    needed = {folded(re.split(r"[<>=\[; ]", need)[0]) for need in project["dependencies"]}
    grouped = [need for group in groups for need in group if isinstance(need, str)]
    more = {folded(re.split(r"[<>=\[; ]", need)[0]) for need in grouped}
    assert needed <= locked("dist.txt").keys(), "make locked"
    assert {"hatchling", "mypy", "setuptools"} <= locked("build.txt").keys(), "make locked"
    assert needed | more <= locked("dev.txt").keys(), "make locked"


def test_a_developer_of_another_machine_is_told_from_ci() -> None:
    """setup.sh goes by the first line."""
    first = (LOCKED / "dev.txt").read_text().splitlines()[0]
    assert re.search(r" on Python 3\.\d+ Linux \S+\. ", first)
    assert '" on $here. "' in (TREE / "tools" / "setup.sh").read_text()
