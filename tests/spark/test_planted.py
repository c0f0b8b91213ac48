"""Bugs that are planted in the data source and in its daemon are found, each by the test of what it breaks. A third of
them is asked with each commit, and all by ``make proof``."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("pyspark")

from tests.simulation.planting import planted
from tests.spark.planted import FAULTS
from tests.spark.test_columns import client, shared_daemon

__all__ = ["client", "shared_daemon"]


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_bug_is_found(name: str, request: pytest.FixtureRequest) -> None:
    fault = FAULTS[name]
    parameters = inspect.signature(fault.found_by).parameters.values()
    given = {each.name: request.getfixturevalue(each.name) for each in parameters if each.default is each.empty}
    with planted(fault.bug), pytest.raises((Exception, pytest.fail.Exception)):
        fault.found_by(**given)
