"""Figures as JSON for programs and as Markdown for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from benchmarks.figures import Figure


def as_json(facts: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """All there is to know of a run."""
    return json.dumps({"machine": facts, "figures": [figure._asdict() for figure in figures]}, indent=2) + "\n"


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
