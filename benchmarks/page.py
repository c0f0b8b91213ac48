"""The page of a comparison: ``docs/benchmarks.md`` is one, whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.compare import Medians
from benchmarks.figures import Figure, table_of_facts, table_of_figures
from benchmarks.systems import SYSTEMS
from benchmarks.turns import CONSUME, PUBLISH, WORKLOADS

LOAD: Final = "load before"
_BUSY: Final = 1.5
_COUNTED: Final = (32, 1024)
_TEMPLATE: Final = Path(__file__).with_name("page.md")


class Promise(NamedTuple):
    """A system when it was measured.

    Attributes:
        durable: whether each confirmed publish survives a power failure.
    """

    version: str
    durability: str
    durable: bool


def render(document: Mapping[str, Any], medians: Medians, plots: Sequence[tuple[str, str]]) -> str:
    """The whole page, as ``page.md`` next to this file lays it out."""
    promises = {name: Promise(**promise) for name, promise in document["systems"].items() if name in SYSTEMS}
    facts = document["facts"]
    sizes = sorted({size for _, _, _, size in medians})
    busy = "\n**Other programs ran meanwhile: trust what is counted, but no rate and no latency.**\n"
    return _TEMPLATE.read_text("utf-8").format(
        rounds=document["rounds"],
        seconds=document["seconds"],
        plots="\n\n".join(f"![{title}]({address})" for address, title in plots),
        facts=table_of_facts(facts) + (busy if float(facts[LOAD]) > _BUSY else ""),
        systems=_systems(promises, document["absent"]),
        tables="\n".join(_table(medians, promises, workload, size) for workload in WORKLOADS for size in sizes),
        costs=_costs(medians, document["calls"]),
        reference=table_of_figures([Figure(**figure) for figure in document["reference"]]),
    )


def _systems(promises: Mapping[str, Promise], absent: Mapping[str, str]) -> str:
    lines = ["| system | version | on the disk when it answers |", "|---|---|---|"]
    lines += [f"| {SYSTEMS[name].title} | {each.version} | {each.durability} |" for name, each in promises.items()]
    lines += [f"| {SYSTEMS[name].title} | not measured | {why} |" for name, why in absent.items()]
    return "\n".join(lines) + "\n"


def _costs(medians: Medians, calls: Mapping[str, Mapping[str, Any]]) -> str:
    """What a message costs, as counted."""
    lines = [
        "| 32 connections, 1 KiB | server, µs | load generator, µs | flushes | device writes | KiB | system calls |",
        "|---|---|---|---|---|---|---|",
    ]
    for workload in (PUBLISH, CONSUME):
        for (system, of, clients, size), turn in medians.items():
            if of != workload or (clients, size) != _COUNTED:
                continue
            told = calls.get(system, {}).get(workload)
            numbers = [f"{turn.cpu:,.0f}", f"{turn.driver:,.0f}", _number(turn.flushes, 3), _number(turn.writes, 2)]
            numbers += [_number(None if turn.written is None else turn.written / 1024, 1), _number(told, 1)]
            lines.append(f"| {workload}: {SYSTEMS[system].title} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def _table(medians: Medians, promises: Mapping[str, Promise], workload: str, size: int) -> str:
    clients = sorted({key[2] for key in medians})
    title = f"**{workload}, {_bytes(size)}**: messages a second, and milliseconds at p50 / p99"
    columns = [f"{number} connection{'s' if number > 1 else ''}" for number in clients]
    lines = [title, "", f"| | {' | '.join(columns)} | mq against it |", "|---" * (len(clients) + 2) + "|"]
    lines += _rows(medians, promises, workload, size, clients)
    return "\n".join(lines) + "\n"


def _rows(
    medians: Medians, promises: Mapping[str, Promise], workload: str, size: int, clients: Sequence[int]
) -> Iterator[str]:
    systems = dict.fromkeys(key[0] for key in medians)
    for system in systems:
        turns = [medians[system, workload, number, size] for number in clients]
        cells = [f"{turn.rate:,.0f} · {turn.p50:,.2f} / {turn.p99:,.2f}" for turn in turns]
        mark = "" if promises[system].durable else " (not durable)"
        ratios = "–"
        if system != "mq" and "mq" in systems:
            ratios = ", ".join(f"{medians['mq', workload, turn.clients, size].rate / turn.rate:.2f}" for turn in turns)
        yield f"| {SYSTEMS[system].title}{mark} | {' | '.join(cells)} | {ratios} |"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _bytes(size: int) -> str:
    return f"{size} bytes" if size < 1024 else f"{size // 1024} KiB"
