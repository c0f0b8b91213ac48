"""A table of cases is one test, which runs them all and reports each that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.cases import for_each

RAN: list[int] = []


class Made:
    uses = 0


@for_each("number", range(4))
def odd_numbers_fail(number: int) -> None:
    RAN.append(number)
    assert number % 2 == 0


@for_each("number", range(4))
async def odd_numbers_fail_later(number: int) -> None:
    await trio.lowlevel.checkpoint()
    assert number % 2 == 0


def test_every_case_runs_and_each_failure_names_its_case() -> None:
    RAN.clear()
    with pytest.raises(ExceptionGroup, match="2 of 4 cases fail") as caught:
        odd_numbers_fail()
    assert RAN == [0, 1, 2, 3]
    assert [error.__notes__ for error in caught.value.exceptions] == [["case 2: number=1"], ["case 4: number=3"]]


async def test_failures_of_asynchronous_cases_are_reported() -> None:
    with pytest.raises(ExceptionGroup, match="2 of 4 cases fail"):
        await odd_numbers_fail_later()


@for_each("first, second", [(1, 2), (1, 2)], made=Made, folder=lambda path: path / "own")
@for_each("third", "ab")
def test_each_case_has_its_own_folder_and_arguments(
    first: int, second: int, third: str, made: Made, folder: Path, tmp_path: Path
) -> None:
    assert (first, second) == (1, 2)
    assert third in "ab"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert folder.parent == tmp_path.parent, "of the outer table"
    assert made.uses <= 1, "of the outer table"
    made.uses += 1


@for_each("value", ["a", "b"])
def test_what_a_case_patches_ends_with_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hasattr(for_each, "patched")
    monkeypatch.setattr(for_each, "patched", value, raising=False)
