"""A store for mq in one SQLite file, and an example of a backend in a package of its own.

:mod:`mq_template.storage` has the async verbs, :mod:`mq_template.database` the promises behind them.
"""
