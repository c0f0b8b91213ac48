"""mq in PySpark."""
