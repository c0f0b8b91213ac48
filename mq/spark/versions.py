"""What differs between the versions of Spark: 4.2 and later have all; 4.0 and 4.1 read no streams.

Spark 4.2 is the first to tell a source in Python where a stream stands when it asks for more. Without that the source
could remove messages on the word of a lost checkpoint, so it refuses streams on earlier versions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    READS_STREAMS: bool
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
        from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

        READS_STREAMS: Final = True
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

        READS_STREAMS: Final = False

        class ReadLimit:
            """Stands in: such a Spark gives none."""

        class ReadMaxRows(ReadLimit):
            """Stands in: such a Spark gives none."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            """Stands in: such a Spark does not ask for it."""


__all__ = [
    "READS_STREAMS",
    "DataSourceStreamArrowWriter",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "as_batches",
    "pushes_filters",
]

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The program in which Spark plans a read with filters."""
_ROWS: Final = 1000
"""Rows of one gathered batch."""


def pushes_filters() -> bool:
    """Whether this process plans a read for Spark and pushes filters down.

    Spark refuses a reader that has ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled`` is false, as it is
    by default, and says nothing of that setting to the source. But it plans such reads in a program of their own. Under
    another name of that program filters would be Spark's work again, and rows the same.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema in Arrow, with times in UTC."""
    with_zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **with_zone)


def as_batches(given: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Record batches of what Spark gives a stream's writer: batches already, or rows, which are gathered here."""
    if READS_STREAMS:
        yield from given
        return
    wanted = arrow_schema(schema)
    while rows := [row.asDict(recursive=True) for row in islice(given, _ROWS)]:
        yield pa.RecordBatch.from_pylist(rows, schema=wanted)
