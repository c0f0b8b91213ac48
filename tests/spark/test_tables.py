"""Streams into Delta and Iceberg tables, by the code of docs/spark-tables.md: each message once, over replays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mq.client import Client, Outgoing
from tests.e2e.daemon import TREE, Daemon
from tests.spark.conftest import patiently, to_the_end, url

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

PAGE = (TREE / "docs/spark-tables.md").read_text()
BODIES = [b"%d" % number for number in range(60)]


def recipe(name: str, **given: Any) -> Callable[[Any, int], None]:
    """The function of that name, from the page."""
    [code] = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"def {name}(" in each]
    names = dict(given)
    exec(code, names)
    return names[name]  # type: ignore[no-any-return]


def stream_into(write: Callable[[Any, int], None], spark: Any, daemon: Daemon, checkpoint: Path) -> None:
    """Run a query with the recipe to the end of what is there."""

    def start() -> Any:
        reader = spark.readStream.format("mq").options(
            url=url(daemon), queue="q", consumer="tables", maxMessagesPerTrigger=20
        )
        writer = reader.load().writeStream.foreachBatch(write).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(checkpoint)).start()

    patiently(start, to_the_end)


def failing_after(write: Callable[[Any, int], None], number: int) -> Callable[[Any, int], None]:
    """Fails once that micro-batch is in the table, before Spark notes it: Spark runs it again at the next start."""

    def writing(rows: Any, batch: int) -> None:
        write(rows, batch)
        if batch == number:
            raise RuntimeError("killed here")

    return writing


def check(write: Callable[[Any, int], None], values: Callable[[], list[bytes]], given: tuple[Any, Any, Path]) -> None:
    """Each message is in the table once, after a run that fails between the table's commit and Spark's."""
    from pyspark.errors import StreamingQueryException

    spark, daemon, checkpoint = given
    with Client(url(daemon)) as client:
        client.publish_many("q", map(Outgoing, BODIES))
        for number in (0, 1):
            with pytest.raises(StreamingQueryException, match="killed here"):
                stream_into(failing_after(write, number), spark, daemon, checkpoint)
            assert sorted(values()) == sorted(BODIES[: 20 * (number + 1)])
        client.publish("q", b"later")
        stream_into(write, spark, daemon, checkpoint)
        assert sorted(values()) == sorted([*BODIES, b"later"])
        left = client.queue("q")
        assert left.ready + left.leased == 0


@pytest.mark.in_turn(2)
def test_a_delta_table_has_each_message_once(spark: Any, daemon: Daemon, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs pip install deltalake")
    table = str(tmp_path / "table")

    def values() -> list[bytes]:
        return [bytes(value) for value in deltalake.DeltaTable(table).to_pyarrow_table()["value"].to_pylist()]

    check(recipe("write_delta", table=table), values, (spark, daemon, tmp_path / "checkpoint"))


@pytest.mark.in_turn(2)
def test_an_iceberg_table_has_each_message_once(spark: Any, daemon: Daemon, tmp_path: Path) -> None:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="needs pip install pyiceberg[sql-sqlite]")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("n")

    def values() -> list[bytes]:
        return [bytes(value) for value in catalog.load_table("n.t").scan().to_arrow()["value"].to_pylist()]

    check(recipe("write_iceberg", catalog=catalog, table="n.t"), values, (spark, daemon, tmp_path / "checkpoint"))
