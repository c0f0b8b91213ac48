"""Filters that Spark pushes down: the daemon is asked for less, and the rows are those that Spark would have kept."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import datasource as spark

from mq.client import Client, Outgoing
from mq.spark.filters import MOST_IDS, push
from mq.spark.options import Options
from mq.spark.rows import ALL_COLUMNS, COLUMNS
from mq.spark.source import FilteringReader, MqDataSource, MqReader
from mq.spark.versions import _PUSHING
from tests.spark.by_hand import with_options
from tests.spark.test_connection import Wire
from tests.spark.test_readers import client

__all__ = ["client"]

Row = dict[str, Any]
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda cell, value: cell == value,
    "EqualNullSafe": lambda cell, value: cell == value,
    "GreaterThan": lambda cell, value: cell > value,
    "GreaterThanOrEqual": lambda cell, value: cell >= value,
    "LessThan": lambda cell, value: cell < value,
    "LessThanOrEqual": lambda cell, value: cell <= value,
    "In": lambda cell, value: cell in value,
    "StringStartsWith": lambda cell, value: cell.startswith(value),
    "StringEndsWith": lambda cell, value: cell.endswith(value),
    "StringContains": lambda cell, value: value in cell,
}


def passes(row: Row, filter: Any) -> bool:
    """What Spark makes of a filter."""
    if isinstance(filter, spark.Not):
        return not passes(row, filter.child)
    cell = row[filter.attribute[0]]
    return cell is not None and HOLDS[type(filter).__name__](cell, filter.value)


def read(options: Options, filters: list[Any]) -> tuple[list[Row], list[Any]]:
    """The rows of a read with filters, and the filters that it leaves to Spark."""
    reader = FilteringReader(with_options(options, include_headers=True), ALL_COLUMNS)
    left = list(reader.pushFilters(filters))
    reader, parts = pickle.loads(pickle.dumps((reader, list(reader.partitions()))))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()], left


@pytest.fixture
def table(client: Client, options: Options) -> Iterator[tuple[Options, list[Row]]]:
    """Three queues with sixty messages in four groups and none, and their rows."""
    queues = [f"{options.queue}.{name}" for name in ("a", "b", "ab")]
    for number, queue in enumerate(queues):
        client.create_queue(queue)
        client.configure(queue, groups=True)
        groups = [None, "g", "h", "a&b", "z"]
        client.publish_many(queue, [Outgoing(b"%d" % each, group=groups[(each + number) % 5]) for each in range(20)])
    options = with_options(options, queue="", queue_pattern=f"{re.escape(options.queue)}[.].*", fetch_size=3)
    rows, _ = read(options, [])
    assert len(rows) == 60
    yield options, rows
    for queue in queues:
        client.delete_queue(queue)


def random_filter(random: Random, rows: list[Row]) -> Any:
    column = random.choice(["queue", "id", "group", "timestamp", "sequence", "deliveryCount"])
    value, other = (random.choice(rows)[column] for _ in range(2))
    if column == "timestamp":
        value += timedelta(microseconds=random.choice([-1, 0, 0, 1]))
    names = ["EqualTo", "EqualNullSafe", "In"]
    names += ["GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"] if column in COUNTED else []
    names += ["StringStartsWith", "StringEndsWith", "StringContains"] if column == "queue" else []
    name = random.choice(names)
    if name == "In":
        value = (value, other)
    elif name.startswith("String"):
        value = value[-2:]
    elif value is None:
        value = "g"
    found = getattr(spark, name)((column,), value)
    return spark.Not(found) if random.random() < 0.2 else found


COUNTED = ("timestamp", "sequence", "deliveryCount")


@pytest.mark.slow
def test_rows_with_filters_are_those_that_spark_would_keep(table: tuple[Options, list[Row]]) -> None:
    options, rows = table
    random = Random(47)
    taken = 0
    for _ in range(60):
        filters = [random_filter(random, rows) for _ in range(random.randint(1, 3))]
        found, left = read(options, filters)
        wanted = [row for row in rows if all(passes(row, filter) for filter in filters)]
        assert [row for row in found if all(passes(row, filter) for filter in left)] == wanted, filters
        pushed = [filter for filter in filters if filter not in left]
        assert found == [row for row in rows if all(passes(row, filter) for filter in pushed)], filters
        taken += len(pushed)
    assert taken > 40


def test_filters_save_requests(table: tuple[Options, list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    options, rows = table
    row = next(row for row in rows if row["group"] == "a&b")
    wire = Wire(monkeypatch)

    def asked(*filters: Any) -> list[str]:
        wire.requests.clear()
        found, left = read(options, list(filters))
        assert not left
        assert row in found
        return [request for request in wire.requests if "browse?" in request]

    all_pages = asked()
    assert len(all_pages) > 20
    queue = spark.EqualTo(("queue",), row["queue"])
    assert 0 < len(asked(queue)) < len(all_pages)
    assert not any(
        f"/{each}/" in request for request in asked(queue) for each in {r["queue"] for r in rows} - {row["queue"]}
    )
    assert len(asked(queue, spark.EqualTo(("id",), row["id"]))) == 1
    [request, *_] = asked(queue, spark.EqualTo(("group",), "a&b"))
    assert "group=a%26b" in request
    later = spark.GreaterThanOrEqual(
        ("timestamp",), max(row["timestamp"] for row in rows if row["queue"] == row["queue"])
    )
    wire.requests.clear()
    read(options, [queue, later])
    assert len([request for request in wire.requests if "browse?" in request]) <= 1
    wire.requests.clear()
    for nothing in (
        [spark.EqualTo(("id",), "no id")],
        [spark.LessThan(("timestamp",), row["timestamp"]), spark.GreaterThan(("timestamp",), row["timestamp"])],
        [spark.StringStartsWith(("queue",), "nothing")],
    ):
        assert read(options, nothing) == ([], [])
    assert not any("browse?" in request for request in wire.requests)


def test_filters_that_could_be_wrong_are_left_to_spark() -> None:
    now = datetime.now(UTC)
    left = [
        spark.EqualTo(("headers", "key"), "x"),
        spark.EqualTo(("value",), b"x"),
        spark.In(("queue",), ("q", None)),
        spark.EqualTo(("id",), None),
        spark.Not(spark.EqualTo(("timestamp",), now)),
        spark.GreaterThan(("timestamp",), now.replace(tzinfo=None)),
        spark.EqualTo(("group",), "with a space"),
        spark.IsNotNull(("group",)),
        spark.IsNull(("queue",)),
        spark.In(("id",), tuple(f"{n:08x}-0000-1000-8000-000000000000" for n in range(MOST_IDS + 1))),
    ]
    selection, found = push([*left, spark.IsNotNull(("queue",))])
    assert found == left
    assert (selection.queues, selection.ids, selection.group, selection.starting_time) == ((), None, None, None)


def test_only_a_spark_that_pushes_filters_gets_a_reader_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = MqDataSource({"queue": "q"})
    assert type(source.reader(COLUMNS)) is MqReader
    monkeypatch.setitem(sys.modules, _PUSHING, ModuleType(_PUSHING))
    assert type(source.reader(COLUMNS)) is FilteringReader


@pytest.mark.slow
def test_the_program_in_which_spark_plans_filtered_reads_has_its_name() -> None:
    """Under another name filters would silently be Spark's work again."""
    from importlib.util import find_spec

    if not hasattr(spark, "EqualTo"):
        pytest.skip("this PySpark pushes no filters down")
    assert find_spec(_PUSHING) is not None
