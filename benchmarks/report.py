"""Figures as JSON for programs and as Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from benchmarks.figures import Figure


def as_json(facts: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """All there is to know of a run."""
    return json.dumps({"machine": facts, "figures": [figure._asdict() for figure in figures]}, indent=2) + "\n"


def as_markdown(facts: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """Two tables: the machine, and the figures."""
    lines = ["| where | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["", "| what | figure | wanted | | how |", "|---|---|---|---|---|"]
    lines += [_row(figure) for figure in figures]
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> str:
    value = f"{figure.value:,.0f}" if figure.value == int(figure.value) else f"{figure.value:,.2f}"
    verdict = "" if figure.reached is None else "reached" if figure.reached else "**missed**"
    return f"| {figure.name} | {value} {figure.unit} | {figure.wanted} | {verdict} | {figure.note} |"
