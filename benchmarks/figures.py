"""What a benchmark hands back: single figures, each with what is wanted of it; and how they are printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One number.

    Attributes:
        value: the number; not a number where it could not be measured.
        unit: what it counts; empty for a ratio.
        wanted: the bound, as people write it; empty where none is set.
        reached: whether the value keeps the bound; None where none is set.
    """

    name: str
    value: float
    unit: str = ""
    wanted: str = ""
    reached: bool | None = None
    note: str = ""


def at_least(name: str, value: float, bound: float, note: str = "") -> Figure:
    """A ratio that has to be `bound` or more."""
    return Figure(name, value, "", f"≥ {bound:g}", value >= bound, note)


def at_most(name: str, value: float, bound: float, unit: str = "", note: str = "") -> Figure:
    """A number that has to be `bound` or less."""
    return Figure(name, value, unit, f"≤ {bound:g}", value <= bound, note)


def spread(values: Iterable[float], unit: str) -> str:
    """The median of some numbers and how far they lie apart, for a note."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):,.0f} ({ordered[0]:,.0f} to {ordered[-1]:,.0f}) {unit}"


def median_ratio(numbers: Sequence[float], others: Sequence[float]) -> float:
    """The ratio of the medians."""
    return statistics.median(numbers) / statistics.median(others)


# As Markdown


def as_markdown(facts: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """Two tables: the machine, and the figures."""
    return f"{table_of_facts(facts)}\n{table_of_figures(figures)}"


def table_of_facts(facts: Mapping[str, str]) -> str:
    """Names and values."""
    lines = ["| where | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    return "\n".join(lines) + "\n"


def table_of_figures(figures: Sequence[Figure]) -> str:
    """A row for each figure, with what is wanted of it and whether it is reached."""
    lines = ["| what | figure | wanted | | how |", "|---|---|---|---|---|", *map(_row, figures)]
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> str:
    value = "–" if math.isnan(figure.value) else f"{figure.value:,.2f}".removesuffix(".00")
    verdict = "" if figure.reached is None else "reached" if figure.reached else "**missed**"
    return f"| {figure.name} | {value} {figure.unit} | {figure.wanted} | {verdict} | {figure.note} |"
