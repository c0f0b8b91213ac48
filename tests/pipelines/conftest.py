"""Pipelines share the session of the data source's tests: one takes longer to come up than most tests to run."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'mq[spark]'")

from tests.spark.conftest import spark

__all__ = ["spark"]
