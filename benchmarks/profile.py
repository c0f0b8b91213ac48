"""``python -m benchmarks profile``: where a daemon under load spends its time, as a flame graph and as a table.

py-spy looks at the daemon from outside a few hundred times a second and counts which functions it finds at work. A
thread that has been woken and has no processor yet counts as working, so on a busy machine waits appear in the graph.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from benchmarks import disks
from benchmarks.load.codec import Codec
from benchmarks.load.driver import Operation, Session, delete_queue, open_session
from benchmarks.systems.mq import Mq, MqAmqp, MqPeers
from benchmarks.turns import consume, publish

SPY: Final = Path(sysconfig.get_path("scripts")) / "py-spy"
RATE: Final = 400
CLIENTS: Final = 32
SIZE: Final = 1024
_ROWS: Final = 25
_BACKLOG_SECONDS: Final = 8.0
_EVERYWHERE: Final = ("click/", "<frozen", "mq/__main__", "mq/cli/", "trio/_core/_run.py")
"""Files that are below nearly everything."""
_FRAME: Final = re.compile(r"^(?P<function>.+) \((?P<file>.+):\d+\)$")
_KINDS: Final[Mapping[str, type[Mq]]] = {kind.name: kind for kind in (Mq, MqAmqp, MqPeers)}
_WAITS: Final = (
    "WorkerThread._work",
    "OwnThread._work",
    "Condition.wait",
    "EpollIOManager.get_events",
    "LinuxCalls.fsync",
    "LinuxCalls.syncfs",
)
"""For work, for the network, for the disk."""
_WORKLOADS: Final[Mapping[str, Operation]] = {"publish": publish, "consume": consume}


def main(words: Sequence[str]) -> None:
    """Profile one system."""
    options = _options(words)
    options.out.mkdir(parents=True, exist_ok=True)
    system = _KINDS[options.system]()
    system.flags = shlex.split(options.flags)
    graph = options.out / f"{options.name or f'{options.system}-{options.workload}'}.svg"
    disk = disks.plain if disks.why_not_own() else disks.own
    with disk(options.root) as folder, system.start(folder) as server:
        stacks = trio.run(_watch, system.codec, server.ports, server.pids[0], options, graph)
    text = f"{graph.name}: {system.title}, {options.workload}, {CLIENTS} connections, 1 KiB\n\n{_tables(stacks)}"
    graph.with_suffix(".md").write_text(text, "utf-8")
    print(text)


async def _watch(
    codec: type[Codec], ports: Sequence[int], pid: int, options: argparse.Namespace, graph: Path
) -> Counter[str]:
    """Load for as long as py-spy looks, twice: it writes one format at a time. Stacks and how often each was seen."""
    body, raw = os.urandom(SIZE), graph.with_suffix(".raw")

    def make() -> Codec:
        return codec("profiled", body)

    async with open_session(make, ports, CLIENTS) as session:
        if options.workload == "consume":
            await session.run(publish, _BACKLOG_SECONDS * options.seconds)
        await session.each(lambda codec: codec.subscribe())
        await _record(session, options, pid, "flamegraph", graph)
        await _record(session, options, pid, "raw", raw)
    await delete_queue(make, ports[0])
    lines = raw.read_text("utf-8").splitlines()
    raw.unlink()
    return Counter({stack: int(count) for stack, _, count in (line.rpartition(" ") for line in lines)})


async def _record(session: Session, options: argparse.Namespace, pid: int, kind: str, path: Path) -> None:
    seconds = str(options.seconds)
    command = [str(SPY), "record", "-p", str(pid), "-d", seconds, "-r", str(RATE), "-f", kind, "-o", path.name]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run, _WORKLOADS[options.workload], options.seconds + 1.0)
        await trio.run_process(command, cwd=path.parent, capture_stdout=True, capture_stderr=True)
    _forget_places(path)


def _forget_places(graph: Path) -> None:
    """A graph shows the command, and where its program is."""
    graph.write_text(graph.read_text("utf-8").replace(str(SPY), SPY.name), "utf-8")


def _tables(stacks: Counter[str]) -> str:
    """Shares of all samples that were no wait: by the code that was on top, and by what was anywhere below."""
    waited = sum(count for stack, count in stacks.items() if _short(stack.rpartition(";")[2])[0] in _WAITS)
    total = stacks.total() - waited
    on_top: Counter[str] = Counter()
    by_file: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for stack, count in stacks.items():
        frames = [_short(frame) for frame in stack.split(";")]
        if frames[-1][0] in _WAITS:
            continue
        on_top[" ".join(frames[-1])] += count
        by_file[frames[-1][1]] += count
        for function, file in set(frames):
            if not file.startswith(_EVERYWHERE):
                below[f"{function} {file}"] += count
    sections = (("files, by what was on top", by_file), ("functions, on top", on_top), ("functions, anywhere", below))
    tables = [_table(title, counts.most_common(_ROWS), total) for title, counts in sections]
    return "\n".join([f"Of {total + waited:,} samples {waited:,} were waits, and are not counted below.\n", *tables])


def _table(title: str, rows: Iterable[tuple[str, int]], total: int) -> str:
    lines = [f"| {title} | share |", "|---|---|", *(f"| `{name}` | {count / total:.1%} |" for name, count in rows)]
    return "\n".join(lines) + "\n"


def _short(frame: str) -> tuple[str, str]:
    """A function and its file, from the package on."""
    found = _FRAME.match(frame)
    if found is None:
        return frame, ""
    file = found["file"].rpartition("site-packages/")[2].rpartition("/lib/python")[2]
    return found["function"], file


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks profile", description="A flame graph of a daemon.")
    parser.add_argument("workload", choices=tuple(_WORKLOADS))
    parser.add_argument("--system", choices=tuple(_KINDS), default="mq")
    parser.add_argument("--flags", default="", metavar="WORDS", help="for the daemon, as --flags=--no-fast-lane")
    parser.add_argument("--seconds", type=int, default=5, metavar="N", help="how long py-spy looks")
    parser.add_argument("--root", metavar="FOLDER", help="where data is kept; default the temporary folder")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), metavar="FOLDER", help="for what comes out")
    parser.add_argument("--name", metavar="NAME", help="of the files; default SYSTEM-WORKLOAD")
    options = parser.parse_args(words)
    if not SPY.exists():
        sys.exit("profile: no py-spy beside this Python: pip install py-spy")
    return options
