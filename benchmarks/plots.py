"""The plots of a comparison, as SVG whose bytes depend on the figures alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot

from benchmarks.compare import Medians
from benchmarks.systems import SYSTEMS
from benchmarks.turns import WORKLOADS

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "mq",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLOURS: Final = dict(
    zip(SYSTEMS, ("#d62728", "#ff7f0e", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#7f7f7f"), strict=True)
)
_SIZE: Final = 1024
_CLIENTS: Final = 32


def draw(medians: Medians, folder: Path) -> list[tuple[str, str]]:
    """Write the plots into `folder`: the name of each file, and what it shows."""
    at = "at 32 connections, 1 KiB"
    plots: list[tuple[str, str, Callable[[Medians, Any, str], None]]] = [
        ("rates.svg", "Messages a second by connections, 1 KiB", _rates),
        ("latencies.svg", f"Milliseconds {at}: from the median to the 99th percentile", _latencies),
        ("processor.svg", f"Processor time of the server, µs a message, {at}", partial(_bars, "cpu")),
        ("flushes.svg", f"Flushes of the disk, a message, {at}", partial(_bars, "flushes")),
    ]
    with mpl.rc_context(_SETTINGS):
        for name, title, panel in plots:
            figure, panels = pyplot.subplots(1, len(WORKLOADS), figsize=(11, 3.6), layout="constrained")
            for axes, workload in zip(panels, WORKLOADS, strict=True):
                axes.set_title(workload)
                panel(medians, axes, workload)
            figure.suptitle(title)
            figure.savefig(folder / name, metadata={"Date": None})
            pyplot.close(figure)
    return [(name, title) for name, title, _ in plots]


def _rates(medians: Medians, axes: Any, workload: str) -> None:
    clients = sorted({key[2] for key in medians})
    for system in _systems(medians):
        rates = [medians[system, workload, number, _SIZE].rate for number in clients]
        axes.plot(
            range(len(clients)), rates, "o-", color=_COLOURS[system], label=SYSTEMS[system].title, **_weight(system)
        )
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xticks(range(len(clients)), clients)
    axes.set_xlabel("connections")
    if workload == WORKLOADS[0]:
        axes.figure.legend(loc="outside lower center", ncols=len(SYSTEMS), frameon=False, fontsize=8)


def _latencies(medians: Medians, axes: Any, workload: str) -> None:
    systems = _systems(medians)
    for row, system in enumerate(systems):
        turn = medians[system, workload, _CLIENTS, _SIZE]
        axes.plot([turn.p50, turn.p99], [row, row], "-", color=_COLOURS[system], lw=3)
        axes.plot([turn.p50], [row], "o", color=_COLOURS[system])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    _name_rows(axes, systems)


def _bars(what: str, medians: Medians, axes: Any, workload: str) -> None:
    systems = _systems(medians)
    for row, system in enumerate(systems):
        turn = medians[system, workload, _CLIENTS, _SIZE]
        axes.barh(row, getattr(turn, what) or 0, color=_COLOURS[system])
    _name_rows(axes, systems)


def _name_rows(axes: Any, systems: Sequence[str]) -> None:
    axes.set_yticks(range(len(systems)), [SYSTEMS[system].title for system in systems])
    axes.invert_yaxis()


def _systems(medians: Iterable[tuple[str, str, int, int]]) -> list[str]:
    there = {key[0] for key in medians}
    return [name for name in SYSTEMS if name in there]


def _weight(system: str) -> dict[str, float]:
    return {"lw": 2.5 if system.startswith("mq") else 1.2, "ms": 4}
