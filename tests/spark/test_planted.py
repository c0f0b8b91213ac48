"""Bugs that are planted in the data source and in its daemon are found, each by the test of what it breaks."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("pyspark")

from tests.simulation.planting import planted
from tests.spark.planted import FAULTS
from tests.spark.test_columns import client, shared_daemon

__all__ = ["client", "shared_daemon"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_bug_is_found(name: str, request: pytest.FixtureRequest) -> None:
    fault = FAULTS[name]
    given = {each: request.getfixturevalue(each) for each in inspect.signature(fault.found_by).parameters}
    with planted(fault.bug), pytest.raises((Exception, pytest.fail.Exception)):
        fault.found_by(**given)
