"""System calls in batches, for mq's folder stores. mq finds this package by itself, and works without it."""

from mq_native._calls import do_steps, do_steps_telling, read_columns, read_files

__all__ = ["do_steps", "do_steps_telling", "read_columns", "read_files"]
