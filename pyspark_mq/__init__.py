"""Where Spark looks for the data source ``mq``: in every top-level module whose name begins with ``pyspark_``.

Spark imports this whenever it looks up any data source, so it must not fail where pyarrow is not there.
"""

from importlib.util import find_spec

if find_spec("pyarrow") is not None:
    from mq.spark.source import MqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
