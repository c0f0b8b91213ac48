"""``python -m benchmarks``: run benchmarks and print their figures. ``compare`` and ``page`` are of :mod:`.suite`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import Final

import trio

from benchmarks import counted, embedded, suite
from benchmarks.figures import Figure, as_markdown
from benchmarks.machine import facts

Benchmark = Callable[[str, argparse.Namespace], list[Figure]]


def _embedded(folder: str, options: argparse.Namespace) -> list[Figure]:
    return trio.run(embedded.measure, folder, options.rounds, options.messages)


def _counted(folder: str, options: argparse.Namespace) -> list[Figure]:
    alone = trio.run(counted.measure, folder, min(options.messages, 500), 1)
    return alone + trio.run(counted.measure, folder, options.messages, embedded.CLIENTS)


def _elsewhere(name: str, *wanted: str) -> Benchmark:
    """A benchmark whose module needs what not everybody has installed."""

    def measure(folder: str, options: argparse.Namespace) -> list[Figure]:
        module = import_module(f"benchmarks.{name}")
        figures: list[Figure] = module.measure(folder, *(getattr(options, each) for each in wanted))
        return figures

    return measure


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "embedded": _embedded,
    "counted": _counted,
    "fair": _elsewhere("fair", "backlog"),
    "spark": _elsewhere("spark", "rounds", "messages", "backlog"),
    "clusters": _elsewhere("clusters", "rounds"),
}


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
            figures += BENCHMARKS[name](folder, options)
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
