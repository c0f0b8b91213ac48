"""``python -m mq`` is the program ``mq``."""

from mq.cli import main

main(prog_name="mq")
