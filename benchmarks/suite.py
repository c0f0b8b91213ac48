"""``python -m benchmarks compare`` and ``page``: mq beside its peers, and the page of their figures.

``compare`` measures, and writes ``results.json``, the plots and the page; ``page`` writes the last two again from the
first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import compare, disks, page, plots, reference
from benchmarks.compare import Plan, medians
from benchmarks.machine import facts
from benchmarks.systems import SYSTEMS
from benchmarks.turns import Turn
from mq.storage.files.mount import mount_of

TREE: Final = Path(__file__).resolve().parent.parent
OUT: Final = TREE / "build" / "bench"
COMMANDS: Final = ("compare", "page")
QUICK: Final = Plan(clients=(1, 32, 256), sizes=(1024,), rounds=3, seconds=0.5)
FULL: Final = Plan(clients=(1, 32, 256), sizes=(1024,), rounds=5, seconds=1.0)
TINY: Final = Plan(clients=(1, 32), sizes=(1024,), rounds=1, seconds=0.05, warm_up=0.05, operations=20)


def main(words: Sequence[str]) -> None:
    """Run one of the commands."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks: terminated"))  # ends servers and unmounts the disk
    options = _options(words)
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.json"
    if options.command == "compare":
        document = _measure(options)
        results.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    else:
        document = json.loads(results.read_text("utf-8"))
    found = medians(Turn(**turn) for turn in document["turns"] if turn["system"] in SYSTEMS)
    drawn = plots.draw(found, options.out)
    target = options.page or options.out / "page.md"
    folder = os.path.relpath(options.out, target.parent)
    text = page.render(document, found, [(f"{folder}/{name}", title) for name, title in drawn])
    target.write_text(text, "utf-8")
    print(text)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    plan = FULL if options.full else TINY if options.tiny else QUICK
    systems, absent = compare.present(options.systems)
    for name, why in absent.items():
        print(f"benchmarks: without {SYSTEMS[name].title}: {why}", file=sys.stderr)
    with _disk(options) as (folder, disk):
        where = {**facts(str(folder)), "commit": _commit(), "disk": disk, page.LOAD: f"{os.getloadavg()[0]:.1f}"}
        taken, calls = compare.compare(systems, plan, folder)
        beside = reference.measure(str(folder), plan.rounds, plan.operations) if SYSTEMS["mq"] in systems else []
    return {
        "facts": where,
        "systems": {
            each.name: page.Promise(each.version(), each.durability, each.durable)._asdict() for each in systems
        },
        "absent": absent,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "turns": [turn._asdict() for turn in taken],
        "calls": calls,
        "reference": [figure._asdict() for figure in beside],
    }


@contextmanager
def _disk(options: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """Where to measure, and its description."""
    why = "as asked" if options.plain else disks.why_not_own()
    if why:
        with disks.plain(options.root) as folder:
            yield folder, f"a folder on a file system that other programs use ({why})"
    else:
        with disks.own(options.root) as folder:
            yield folder, f"ext4 of its own on a loop device over a file on {mount_of(str(folder.parent)).kind}"


def _commit() -> str:
    git = ["git", "-C", str(TREE), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="mq beside its peers.")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--full", action="store_true", help="longer, and in more rounds; default is a few minutes")
    parser.add_argument("--tiny", action="store_true", help="seconds, to see that it works; no figure to quote")
    systems = f"of {', '.join(SYSTEMS)}; default all"
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=(), metavar="NAME", help=systems)
    parser.add_argument("--root", metavar="FOLDER", help="where data is kept; default the temporary folder")
    parser.add_argument("--plain", action="store_true", help="no file system of its own, even if one can be made")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="for results.json and the plots")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the page to write; default OUT/page.md")
    return parser.parse_args(words)
