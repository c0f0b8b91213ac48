"""The data source ``mq`` of PySpark: queues as tables and as streams. Needs the extra ``mq[spark]``.

* ``source``: the data source, and reading once; ``stream``: reading on and on; ``writing``: publishing rows.
* ``options``: what can be said to it; ``errors``: what it raises; ``rows``: between messages and Arrow.
* ``calls``: requests of its own, and columns as answers; ``connection``: sends them by :mod:`http.client`, with the
  requests and retries of :mod:`mq.client`. No event loop: this runs in Spark's Python workers.
* ``versions``: what differs between those of Spark.
* ``pipelines``: programs over the journal.

Where mq is installed, Spark finds the source by itself (the module ``pyspark_mq``)::

    spark.read.format("mq").option("queue", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.spark.source import MqDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MqDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``mq`` known to a session, where Spark has not found it by itself."""
    spark.dataSource.register(MqDataSource)
