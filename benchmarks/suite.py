"""The commands that measure mq beside its peers: ``compare``, ``wanted``, ``all`` of both, ``page`` and ``profile``.

What was measured goes to ``results.json`` in the output folder, the plots beside it, and a page of it all. A run that
was broken off goes on where it was, as long as it is the same tree on the same machine with the same plan.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from benchmarks import compare, disks, page, plots, profile, wanted
from benchmarks.figures import Figure
from benchmarks.machine import facts, is_compiled
from benchmarks.results import medians
from benchmarks.systems import SYSTEMS
from benchmarks.systems.system import System
from benchmarks.turns import Turn
from mq.storage.files.mount import mount_of

TREE: Final = Path(__file__).resolve().parent.parent
OUT: Final = TREE / "build" / "bench"
COMMANDS: Final = ("compare", "wanted", "all", "page", "profile")
_TURNS: Final = "turns.jsonl"
_PARTS: Final = "wanted.json"
_LOAD: Final = "load before"
_BUSY: Final = 1.0
_OTHERS: Final = "**The machine had other work meanwhile**: trust what is counted, but no rate and no latency."


Document = dict[str, Any]


def main(words: Sequence[str]) -> None:
    """Run one of the commands."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks: told to stop"))  # so that servers and disks go, too
    if words[:1] == ["profile"]:
        profile.main(words[1:])
        return
    options = _options(words)
    options.out.mkdir(parents=True, exist_ok=True)
    document = _read(options.out)
    if options.command != "page":
        with _disk(options) as (folder, disk):
            document["facts"] = {**facts(str(folder)), "disk": disk, _LOAD: f"{os.getloadavg()[0]:.1f}"}
            if options.command in ("compare", "all"):
                document["comparison"] = _compare(options, folder, disk)
            if options.command in ("wanted", "all"):
                document["wanted"] = _wanted(options, folder, document.get("wanted", {}))
            _write(options.out, document)
        for state in (_TURNS, _PARTS):  # all is measured: the next run begins anew
            (options.state / state).unlink(missing_ok=True)
    _write_page(document, options)


def _compare(options: argparse.Namespace, folder: Path, disk: str) -> Document:
    plan = compare.FULL if options.full else compare.TINY if options.tiny else compare.QUICK
    systems, absent = compare.present(options.systems)
    for name, why in absent.items():
        print(f"benchmarks: without {SYSTEMS[name].title}: {why}", file=sys.stderr)
    header = {**_identity(), "disk": disk}
    done = compare.compare(systems, plan, folder, options.state / _TURNS, header)
    return {
        "systems": {system.name: _promise(system)._asdict() for system in systems},
        "absent": absent,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "turns": [turn._asdict() for turn in done.results.turns],
        "calls": done.calls,
    }


def _wanted(options: argparse.Namespace, folder: Path, known: Document) -> Document:
    """Each part that is asked for. Kept one by one in the state folder, so that a broken-off run goes on."""
    effort = wanted.FULL if options.full else wanted.TINY if options.tiny else wanted.QUICK
    path = options.state / _PARTS
    header = {**_identity(), "effort": list(effort)}
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    parts: Document = kept["parts"] if kept.get("header") == json.loads(json.dumps(header)) else {}
    left = [name for name in options.parts or wanted.PARTS if name not in parts]
    with tqdm(left, unit="part", disable=None) as bar:
        for name in bar:
            bar.set_postfix_str(name)
            parts[name] = [_as_json(figure) for figure in wanted.PARTS[name](folder, effort)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"header": header, "parts": parts}), "utf-8")
    both = {**known, **parts}
    return {name: both[name] for name in wanted.PARTS if name in both}


def _write_page(document: Document, options: argparse.Namespace) -> None:
    sections = ["### Where", page.facts_section(document["facts"])]
    if float(document["facts"][_LOAD]) > _BUSY:
        sections.append(f"{_OTHERS}\n")
    if "wanted" in document:
        parts = {name: list(map(_from_json, figures)) for name, figures in document["wanted"].items()}
        sections += ["### Figures to reach", page.wanted_section(parts)]
    if "comparison" in document:
        sections += _comparison_sections(document["comparison"], options)
    text = "\n".join(sections)
    if options.page is None:
        (options.out / "page.md").write_text(text, "utf-8")
    else:
        page.put(options.page, text)
    print(text)


def _comparison_sections(comparison: Document, options: argparse.Namespace) -> list[str]:
    found = medians(Turn(**turn) for turn in comparison["turns"])
    promises = {name: page.Promise(**promise) for name, promise in comparison["systems"].items()}
    drawn = plots.draw(found, options.out)
    folder = "" if options.page is None else f"{options.out.resolve().relative_to(options.page.resolve().parent)}/"
    length = f"{comparison['rounds']} rounds of {comparison['seconds']:g} s"
    how = f"Medians of {length} each; in each round all servers take their turns."
    return [
        "### mq and its peers",
        page.systems_section(promises, comparison["absent"]),
        f"{how}\n",
        page.plots_section(drawn, folder),
        page.comparison_section(found, promises),
        "### What a message costs",
        page.costs_section(found, comparison["calls"]),
    ]


def _promise(system: System) -> page.Promise:
    return page.Promise(system.version(), system.durability, system.durable)


@contextmanager
def _disk(options: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """Where to measure, and what it is in words."""
    why = "as asked" if options.plain else disks.why_not_own()
    if why:
        with disks.plain(options.root) as folder:
            yield folder, f"a folder on a file system that others use, too ({why})"
    else:
        with disks.own(options.root) as folder:
            yield folder, f"ext4 of its own on a loop device over a file on {mount_of(str(folder.parent)).kind}"


def _identity() -> dict[str, str]:
    """What must be the same for a run to go on."""
    git = ["git", "-C", str(TREE), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {"kernel": os.uname().release, "commit": commit, "compiled": str(is_compiled())}


def _as_json(figure: Figure) -> Document:
    return {**figure._asdict(), "value": None if figure.value != figure.value else figure.value}


def _from_json(values: Mapping[str, Any]) -> Figure:
    return Figure(**{**values, "value": float("nan") if values["value"] is None else values["value"]})


def _read(out: Path) -> Document:
    path = out / "results.json"
    document: Document = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return document


def _write(out: Path, document: Document) -> None:
    (out / "results.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="mq beside its peers.")
    parser.add_argument("command", choices=COMMANDS[:-1])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of wanted: {', '.join(wanted.PARTS)}; default all")
    parser.add_argument("--full", action="store_true", help="all sizes, and longer; default is a few minutes")
    parser.add_argument("--tiny", action="store_true", help="seconds, to see that it works; no figure to quote")
    parser.add_argument(
        "--systems", type=_systems, default=(), metavar="NAMES", help=f"of {','.join(SYSTEMS)}; default all"
    )
    parser.add_argument("--root", metavar="FOLDER", help="where data is kept; default the temporary folder")
    parser.add_argument("--plain", action="store_true", help="no file system of its own, even where that could be made")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="for results.json and the plots")
    parser.add_argument(
        "--state", type=Path, default=OUT, metavar="FOLDER", help="for what a broken-off run had measured"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the tables between its markers; default OUT/page.md"
    )
    options = parser.parse_args(words)
    unknown = set(options.parts) - set(wanted.PARTS)
    if unknown:
        parser.error(f"no part named {', '.join(sorted(unknown))}")
    return options


def _systems(names: str) -> tuple[str, ...]:
    chosen = tuple(names.split(","))
    unknown = set(chosen) - set(SYSTEMS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no system named {', '.join(sorted(unknown))}")
    return chosen
