"""Ready pipelines on Spark, each a function that takes a session, and a verb of the program ``mq-pipeline``.

* ``archive``: queues into Parquet; ``replay``: back into queues.
* ``insight``: what a lifecycle journal tells: the ``journal`` as a table, its ``audit``, the ``depth`` of queues, the
  ``report``, its ``plots``.
* ``session``: a session of Spark with the data source.
"""
