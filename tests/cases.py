"""Cases of tests: tables that one test goes through, and cases that only ``make proof`` runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest


def proof(*values: Any) -> Any:
    """Return the values of a case of ``pytest.mark.parametrize`` for ``make proof`` alone: others sample its kind."""
    return pytest.param(*values, marks=pytest.mark.proof)


_Factories = Mapping[str, Callable[..., Any]]


def for_each(
    names: str | tuple[str, ...], values: Iterable[Any], **fresh: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Any]:
    """Run a test for each of the values, and report every case that fails.

    Each case has a folder of its own in ``tmp_path``, and what it sets by ``monkeypatch`` ends with it. Other fixtures
    are shared by all cases: use it for cases that leave them as they were.

    Args:
        names: of the test's arguments, as ``pytest.mark.parametrize`` takes them.
        fresh: arguments of the test that are made anew for each case, with the function that makes them; one that takes
            an argument gets the case's folder.
    """
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [dict(zip(listed, row if len(listed) > 1 else (row,), strict=True)) for row in values]
    assert rows, "no cases"

    def decorate(test: Callable[..., Any]) -> Any:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_all(**fixtures: Any) -> None:
                failures = _Failures()
                for row in rows:
                    with failures.collected(test, fixtures, row, fresh) as arguments:
                        await test(**arguments)
                failures.report(len(rows))
        else:

            @functools.wraps(test)
            def run_all(**fixtures: Any) -> None:
                failures = _Failures()
                for row in rows:
                    with failures.collected(test, fixtures, row, fresh) as arguments:
                        test(**arguments)
                failures.report(len(rows))

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in {*listed, *fresh}]
        if "tmp_path" not in signature.parameters and any(map(_takes_a_folder, fresh.values())):
            left.append(inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY))
        run_all.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run_all

    return decorate


def _takes_a_folder(make: Callable[..., Any]) -> bool:
    return bool(inspect.signature(make).parameters)


class _Failures:
    """Errors of the cases of one test."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []
        self._cases = 0

    @contextmanager
    def collected(
        self, test: Callable[..., Any], given: Mapping[str, Any], row: Mapping[str, Any], fresh: _Factories
    ) -> Iterator[dict[str, Any]]:
        """Yield the arguments of a case, and keep its error."""
        self._cases += 1
        with pytest.MonkeyPatch.context() as monkeypatch:
            fixtures = dict(given)
            if "monkeypatch" in fixtures:
                fixtures["monkeypatch"] = monkeypatch
            if "tmp_path" in fixtures:
                fixtures["tmp_path"] = folder = given["tmp_path"] / str(self._cases)
                folder.mkdir()
            for name, make in fresh.items():
                fixtures[name] = make(fixtures["tmp_path"]) if _takes_a_folder(make) else make()
            arguments = {**fixtures, **row}
            try:
                yield {name: arguments[name] for name in inspect.signature(test).parameters}
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised again by report
                named = ", ".join(f"{name}={value!r}" for name, value in row.items())
                error.add_note(f"case {self._cases}: {named[:500]}")
                self._errors.append(error if isinstance(error, Exception) else AssertionError(str(error)))

    def report(self, cases: int) -> None:
        if self._errors:
            raise ExceptionGroup(f"{len(self._errors)} of {cases} cases fail", self._errors)
