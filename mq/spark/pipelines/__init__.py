"""Ready pipelines on Spark: what a lifecycle journal tells (:mod:`.insight`).

Each is a function that takes a session, and a verb of the program ``mq-pipeline``.
"""
