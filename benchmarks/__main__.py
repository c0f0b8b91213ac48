"""``python -m benchmarks``: run benchmarks and print their figures. ``compare`` and ``page`` are of :mod:`.suite`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib import import_module
from typing import Final

from benchmarks import suite
from benchmarks.figures import Figure, as_markdown
from benchmarks.machine import facts

BENCHMARKS: Final[dict[str, tuple[str, ...]]] = {
    "embedded": ("rounds", "messages"),
    "reference": ("rounds", "messages"),
    "fair": ("backlog",),
    "spark": ("rounds", "messages", "backlog"),
    "clusters": ("rounds",),
}
"""Modules, imported only when they are asked for, and the options that each wants."""


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in suite.COMMANDS:
        suite.main(sys.argv[1:])
        return
    options = _options()
    folder = tempfile.mkdtemp(prefix="mq-bench-", dir=options.root)
    try:
        figures: list[Figure] = []
        for name in options.names:
            print(f"benchmarks: {name} ...", file=sys.stderr, flush=True)
            module = import_module(f"benchmarks.{name}")
            figures += module.measure(folder, *(getattr(options, each) for each in BENCHMARKS[name]))
        where = facts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(as_markdown(where, figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What mq costs.",
        epilog=f"Also: {', '.join(suite.COMMANDS)}: mq beside its peers; see COMMAND --help.",
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", choices=list(BENCHMARKS), help=f"of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument("--root", metavar="FOLDER", help="on the file system to measure; default the temporary one")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each contender")
    parser.add_argument("--messages", type=int, default=5000, metavar="N", help="messages a turn")
    parser.add_argument("--backlog", type=int, default=100_000, metavar="N", help="messages of a long job")
    return parser.parse_args()


if __name__ == "__main__":
    main()
