"""Plots as SVG text: lines over time, and percentiles on a logarithmic scale. The page has the colours."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

_WIDTH: Final = 760
_HEIGHT: Final = 220
_LEFT: Final = 64
_TOP: Final = 12
_BOTTOM: Final = 28
_RIGHT: Final = 12
_ROW: Final = 26
_LONGEST_NAME: Final = 30
COLOURS: Final = 6
"""How many colours the page has: --c0 and so on."""

_TICK_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_MOST_TICKS: Final = 6
_DAY: Final = 86_400

Point = tuple[datetime, float | None]
"""An instant, and a value; None where it is unknown from then on."""


def lines(title: str, series: Mapping[str, Sequence[Point]], unit: str, step: float = math.inf) -> str:
    """A plot of lines over time.

    Args:
        series: the points of each line by its name, in the order of time.
        step: seconds between two points. The line is interrupted where two are further apart, and where a value is
            unknown.
    """
    points = [point for each in series.values() for point in each]
    known = [value for _, value in points if value is not None]
    if not known:
        return ""
    begin, end = min(at for at, _ in points), max(at for at, _ in points)
    top = _nice(max(known))
    span = max((end - begin).total_seconds(), 1e-9)

    def across(at: datetime) -> float:
        return _LEFT + (at - begin).total_seconds() / span * (_WIDTH - _LEFT - _RIGHT)

    def place(point: tuple[datetime, float]) -> str:
        return f"{across(point[0]):.1f},{_height(point[1] / top):.1f}"

    drawn = [_grid_line(top * part / 4, top) for part in range(5)]
    for number, (name, each) in enumerate(series.items()):
        colour = f"var(--c{number % COLOURS})"
        for run in _runs(each, step):
            if len(run) > 1:
                path = " ".join(map(place, run))
                drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
                continue
            x, y = place(run[0]).split(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>{html.escape(name)}</title></circle>')
    for at, label in _ticks(begin, end):
        drawn.append(f'<text class="time" x="{across(at):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{label}</text>')
    days = f"{begin:%Y-%m-%d}" + ("" if begin.date() == end.date() else f" to {end:%Y-%m-%d}")
    return _figure(title, f"{unit}, {days} UTC", drawn, _HEIGHT) + _legend(list(series))


def _ticks(begin: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Instants of the axis, at round times, and their labels, no two alike."""
    span = (end - begin).total_seconds()
    step = next((step for step in _TICK_SECONDS if span / step <= _MOST_TICKS), 0)
    step = step or math.ceil(span / _MOST_TICKS / _DAY) * _DAY
    format = "%m-%d" if step >= _DAY else "%H:%M:%S" if step < 60 else "%H:%M"
    if step < _DAY and begin.date() != end.date():
        format = f"%m-%d {format}"
    first = math.ceil(begin.timestamp() / step)
    instants = [datetime.fromtimestamp(each * step, UTC) for each in range(first, int(end.timestamp() // step) + 1)]
    return [(at, f"{at:{format}}") for at in instants]


def _runs(points: Sequence[Point], step: float) -> list[list[tuple[datetime, float]]]:
    """The points, cut where two are more than a step apart, and where a value is unknown."""
    runs: list[list[tuple[datetime, float]]] = []
    is_cut = True
    for at, value in points:
        if value is None:
            is_cut = True
            continue
        if is_cut or (at - runs[-1][-1][0]).total_seconds() > step:
            runs.append([])
        runs[-1].append((at, value))
        is_cut = False
    return runs


def as_steps(points: Sequence[Point], end: datetime) -> list[Point]:
    """The points of a line that keeps each value until the next one, and the last one until `end`."""
    found: list[Point] = []
    for at, value in points:
        if found:
            found.append((at, found[-1][1]))
        found.append((at, value))
    return [*found, (end, found[-1][1])] if found and found[-1][0] < end else found


def spans(title: str, rows: Mapping[str, Sequence[float]], marks: Sequence[str]) -> str:
    """A plot with a row for each name, and a dot for each of its values, in seconds, on one logarithmic scale."""
    values = [max(value, 1e-6) for each in rows.values() for value in each]
    if not values:
        return ""
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)
    left, height = 200, _TOP + _ROW * len(rows) + _BOTTOM

    def across(value: float) -> float:
        return left + (math.log10(max(value, 1e-6)) - low) / (high - low) * (_WIDTH - left - 24)

    drawn = []
    for power in range(low, high + 1):
        x = across(10.0**power)
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{seconds(10.0**power)}</text>')
    for number, (name, each) in enumerate(rows.items()):
        y = _TOP + _ROW * (number + 0.5)
        shown = _short(name)
        drawn.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(shown)}</text>')
        drawn.append(
            f'<line class="span" x1="{across(min(each)):.1f}" x2="{across(max(each)):.1f}" y1="{y}" y2="{y}"/>'
        )
        for place, (mark, value) in enumerate(zip(marks, each, strict=True)):
            told = html.escape(f"{name}: {mark} {seconds(value)}")
            drawn.append(
                f'<circle cx="{across(value):.1f}" cy="{y}" r="4.5" fill="var(--c{place % COLOURS})">'
                f"<title>{told}</title></circle>"
            )
    return _figure(title, "", drawn, height) + _legend(list(marks))


def seconds(value: float) -> str:
    """A time as people read it."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 3600:,.3g} h"


def _figure(title: str, unit: str, drawn: Sequence[str], height: int) -> str:
    label = html.escape(title)
    caption = f"{label} <small>{html.escape(unit)}</small>" if unit else label
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg></figure>'
    )


def _legend(names: Sequence[str]) -> str:
    keys = "".join(
        f'<span><i style="background:var(--c{number % COLOURS})"></i>{html.escape(_short(name))}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{keys}</p>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _grid_line(value: float, top: float) -> str:
    y = _height(value / top)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.6g}</text>'
    )


def _height(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _nice(value: float) -> float:
    """The next greater number among 1, 2, 4, 5 and 8 times a power of ten."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 4, 5, 8, 10) if step * unit >= value)
