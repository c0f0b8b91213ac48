"""Fuzzes one target until something is found or its time is over: ``python -m tests.fuzz.one NAME [FLAGS]``, where the
flags are libFuzzer's.

A process of its own, because libFuzzer ends the process that it runs in.
"""

from __future__ import annotations

import sys

import atheris

PARSERS = ["mq", "h11", "json", "tomllib", "pamqp", "python_multipart", "tests.fuzz.targets"]

with atheris.instrument_imports(include=PARSERS):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    name, *flags = sys.argv[1:]
    atheris.Setup([sys.argv[0], *flags], TARGETS[name].try_one)
    atheris.Fuzz()
