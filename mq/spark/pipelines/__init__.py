"""Ready pipelines on Spark: queues into Parquet (:mod:`.archive`) and back (:mod:`.replay`), and what a lifecycle
journal tells (:mod:`.insight`).

Each is a function that takes a session, and a verb of the program ``mq-pipeline``.
"""
