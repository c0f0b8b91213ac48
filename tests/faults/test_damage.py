"""Each kind of file is damaged in each way: a start refuses it, or counts and names it, or nothing changes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import trio

from tests.commit import commit_number
from tests.faults.damage import Case, cases, fill, flips, listed, opened, pattern_of, start, unlisted, verdict

SAMPLE = 12
"""Each commit has one case of so many, and `make proof` all."""
ALWAYS = ("state/log/0", "state/format", "state/records/queue/korders")
OK = ("refused", "counted and named", "no effect")


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A root with a bit of everything: "at rest" after a clean stop, and "live" as a kill leaves it."""
    folder = tmp_path_factory.mktemp("damage")

    async def make() -> None:
        root = folder / "root"
        async with opened(root) as (_, broker):
            await fill(broker)
            shutil.copytree(root, folder / "live", symlinks=True)
        root.rename(folder / "at rest")

    trio.run(make)
    return lambda when: folder / when


@pytest.fixture
def judge(roots: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[[Case], str]:
    """Damages a copy of the root, starts a broker on it, and says how that ended."""

    def run(case: Case | None, when: str) -> str:
        root = tmp_path / "root"
        shutil.rmtree(root, ignore_errors=True)
        for left in tmp_path.glob("*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        shutil.copytree(roots(when), root, symlinks=True)
        if case is not None:
            case.damage(root)
        caplog.clear()
        seen = trio.run(start, root)
        if case is None:
            before[when] = seen
            return ""
        return verdict(case, before[when], seen, caplog.text)

    before = {}
    caplog.set_level(logging.INFO)

    def judge_one(case: Case) -> str:
        if case.when not in before:
            run(None, case.when)
        return run(case, case.when)

    return judge_one


def test_every_line_of_the_list_has_a_pattern() -> None:
    assert [line for line in listed() if pattern_of(line) is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at rest", "live"])
def test_every_file_under_a_root_is_in_the_list(roots: Callable[[str], Path], when: str) -> None:
    assert unlisted(roots(when)) == set()


def chosen(root: Path, when: str, *, all_of_them: bool) -> Iterator[Case]:
    for number, case in enumerate(cases(root, when)):
        if all_of_them or case.path.startswith(ALWAYS) or number % SAMPLE == commit_number() % SAMPLE:
            yield case


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at rest", "live"])
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["some", "all"])
def test_no_damage_is_silent(
    roots: Callable[[str], Path], judge: Callable[[Case], str], tmp_path: Path, when: str, all_of_them: bool
) -> None:
    verdicts = {case: judge(case) for case in chosen(roots(when), when, all_of_them=all_of_them)}
    lines = [f"{case.when} | {case.path} | {case.how} | {text}\n" for case, text in verdicts.items()]
    (tmp_path.parent / f"matrix-{when}.txt").write_text("".join(lines))
    assert {case: text for case, text in verdicts.items() if not text.startswith(OK)} == {}


FLIPS = 1000


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("when", ["at rest", "live"])
def test_no_flipped_bit_is_silent(roots: Callable[[str], Path], judge: Callable[[Case], str], when: str) -> None:
    """Whichever bit of whichever file or attribute it is."""
    cases = islice(flips(roots(when), when, Random(commit_number())), FLIPS)
    verdicts = {case: judge(case) for case in cases}
    assert {case: text for case, text in verdicts.items() if not text.startswith(OK)} == {}
