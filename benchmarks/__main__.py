"""``python -m benchmarks``: run some or all of the benchmarks and print what came out.

``compare``, ``wanted``, ``all``, ``page`` and ``profile`` are commands of their own (:mod:`.suite`).
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import trio

from benchmarks import (
    backlog,
    brokers,
    claims,
    counted,
    embedded,
    etcd,
    fair,
    http,
    idle,
    journal,
    many,
    postgres,
    sqs,
    suite,
    vsqs,
)
from benchmarks.figures import Figure, as_json, as_markdown
from benchmarks.machine import facts

Benchmark = Callable[[str, argparse.Namespace], list[Figure]]


def _embedded(folder: str, options: argparse.Namespace) -> list[Figure]:
    return trio.run(embedded.measure, folder, options.rounds, options.messages)


def _backlog(folder: str, options: argparse.Namespace) -> list[Figure]:
    return trio.run(functools.partial(backlog.measure, folder, options.rounds * 4, long=options.backlog))


def _counted(folder: str, options: argparse.Namespace) -> list[Figure]:
    alone = trio.run(counted.measure, folder, min(options.messages, 500), 1)
    return alone + trio.run(counted.measure, folder, options.messages, embedded.CLIENTS)


def _idle(folder: str, options: argparse.Namespace) -> list[Figure]:
    return idle.measure(folder)


def _http(folder: str, options: argparse.Namespace) -> list[Figure]:
    return http.measure(folder, options.rounds, options.messages)


def _vsqs(folder: str, options: argparse.Namespace) -> list[Figure]:
    return vsqs.measure(folder, options.rounds, min(options.messages, 1000), min(options.backlog, vsqs.LONG))


def _etcd(folder: str, options: argparse.Namespace) -> list[Figure]:
    return etcd.measure(folder, options.rounds, options.messages)


def _postgres(folder: str, options: argparse.Namespace) -> list[Figure]:
    return postgres.measure(folder, options.many)


def _journal(folder: str, options: argparse.Namespace) -> list[Figure]:
    return trio.run(journal.measure, folder, options.rounds, options.messages)


def _spark(folder: str, options: argparse.Namespace) -> list[Figure]:
    spark = import_module("benchmarks.spark")
    figures: list[Figure] = spark.measure(folder, options.rounds, options.messages, options.backlog)
    return figures


def _claims(folder: str, options: argparse.Namespace) -> list[Figure]:
    return claims.measure(folder, options.rounds)


def _sqs(folder: str, options: argparse.Namespace) -> list[Figure]:
    return sqs.measure(folder, options.rounds, min(options.messages, 2000))


def _fair(folder: str, options: argparse.Namespace) -> list[Figure]:
    return fair.measure(folder, options.backlog)


def _many(folder: str, options: argparse.Namespace) -> list[Figure]:
    return many.measure(folder, options.many)


def _brokers(folder: str, options: argparse.Namespace) -> list[Figure]:
    return brokers.measure(folder, options.rounds, min(options.messages, 1000), options.plot)


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "embedded": _embedded,
    "backlog": _backlog,
    "counted": _counted,
    "idle": _idle,
    "brokers": _brokers,
    "journal": _journal,
    "many": _many,
    "http": _http,
    "vsqs": _vsqs,
    "etcd": _etcd,
    "postgres": _postgres,
    "spark": _spark,
    "claims": _claims,
    "sqs": _sqs,
    "fair": _fair,
}


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in suite.COMMANDS:
        suite.main(sys.argv[1:])
        return
    options = _options()
    folder = tempfile.mkdtemp(prefix="mq-bench-", dir=options.root)
    try:
        figures: list[Figure] = []
        for name in options.names or BENCHMARKS:
            print(f"benchmarks: {name} ...", file=sys.stderr, flush=True)
            figures += BENCHMARKS[name](folder, options)
        where = facts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(as_markdown(where, figures))
    if options.json:
        Path(options.json).write_text(as_json(where, figures), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What mq costs beside a bare loop.",
        epilog=f"Also: {', '.join(suite.COMMANDS)}: mq beside its peers; see COMMAND --help.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default all")
    parser.add_argument("--root", metavar="FOLDER", help="on the file system to measure; default the temporary one")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of mq and of the bare loop")
    parser.add_argument("--messages", type=int, default=5000, metavar="N", help="messages a turn")
    parser.add_argument("--backlog", type=int, default=backlog.LONG, metavar="N", help="length of the long backlog")
    parser.add_argument("--many", type=int, default=many.MANY, metavar="N", help="messages that a start takes up")
    parser.add_argument("--plot", metavar="FILE", help="where 'brokers' draws its plot, as SVG")
    parser.add_argument("--json", metavar="FILE", help="also write all figures there")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    main()
