"""One Spark session for a module: it takes longer to come up than most tests to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'mq[spark]'")

from pyspark.sql import SparkSession

from mq.spark.pipelines.session import open_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    is_ours = SparkSession.getActiveSession() is None
    session = open_session()
    yield session
    if is_ours:
        session.stop()
