"""The data source ``mq`` of PySpark: queues as tables and as streams. Needs the extra ``mq[spark]``.

* ``source``: the data source, and batch reads; ``stream``: streaming reads; ``writers``: writes of both kinds.
* ``options``: the table of options; ``errors``: what the source raises; ``rows``: messages to Arrow and back;
  ``filters``: those of a query that save work.
* ``calls``: requests of its own, and columns as answers; ``connection``: sends them by :mod:`http.client`, with the
  requests and retries of :mod:`mq.client`. No event loop: this runs in Spark's Python workers.
* ``progress``: the numbers in a stream's progress.
* ``versions``: what differs between the versions of Spark.
* ``pipelines``: programs over queues and the journal.

Spark finds the source by the module ``pyspark_mq``, where mq is installed::

    spark.read.format("mq").option("queue", "orders").load()
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from mq.spark.errors import SparkSourceError
from mq.spark.progress import SourceProgress, progress_of
from mq.spark.source import MqDataSource, named_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MqDataSource", "SourceProgress", "progress_of", "register"]


def register(spark: SparkSession, **options: str) -> str:
    """Register the format ``mq`` with a session that has not found it, or one for certain queues.

    Spark shows nothing of a source in Python but its format's name. So with options the format is named after its
    queues and daemon, and a plan tells what it reads::

        spark.read.format(register(spark, queue="orders", url="http://127.0.0.1:8080")).load().explain()

    Args:
        options: those that every use of the format has; an option that is given there goes first.

    Returns:
        The format's name: ``mq``, or one such as ``mq: orders at http://127.0.0.1:8080``.

    Raises:
        InvalidOption: an option is unknown, or has no valid value.
        SparkSourceError: the Python that Spark starts has no mq; the text says what to set.
    """
    python = getattr(getattr(spark, "_sc", None), "pythonExec", None)  # a session of Spark Connect has neither
    if python is not None:
        _check(python)
    source = named_source(options) if options else MqDataSource
    spark.dataSource.register(source)
    return source.name()


def _check(python: str) -> None:
    found = shutil.which(python)
    if found == sys.executable:
        return
    why = "does not exist"
    if found is not None:
        done = subprocess.run([found, "-c", "import mq.spark"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return
        why = f"cannot import mq ({done.stderr.strip().rpartition(chr(10))[2]})"
    raise SparkSourceError(
        f"Spark uses the Python interpreter {found or python}, which {why}: set PYSPARK_PYTHON to {sys.executable} "
        'before creating the session, or install "mq[spark]" for the interpreter that Spark uses'
    )
