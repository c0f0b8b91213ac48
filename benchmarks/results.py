"""What a comparison has measured so far, in a file: it can be broken off and goes on where it was."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.turns import Turn


class Results:
    """A file of lines of JSON: what was measured where, then a line for each turn of a server.

    Args:
        path: the file. It is begun anew when it tells of something else than `header`.
        header: machine, versions and plan.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self.header = json.loads(json.dumps(header))  # as it reads in the file: tuples are lists there
        self.turns: list[Turn] = []
        self._done: set[tuple[Any, ...]] = set()
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) == {"header": self.header}:
            for line in lines[1:]:
                self._take(json.loads(line))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"header": self.header}) + "\n", "utf-8")

    def __contains__(self, key: object) -> bool:
        return key in self._done

    def add(self, key: tuple[Any, ...], turns: Sequence[Turn]) -> None:
        """Keep what one turn came to."""
        entry = {"key": key, "turns": [turn._asdict() for turn in turns]}
        self._append(entry)
        self._take(json.loads(json.dumps(entry)))

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _take(self, entry: Mapping[str, Any]) -> None:
        self._done.add(tuple(entry["key"]))
        self.turns += [Turn(**turn) for turn in entry["turns"]]


def medians(turns: Iterable[Turn]) -> dict[tuple[str, str, int, int], Turn]:
    """Medians over the rounds, by (system, workload, clients, size)."""
    groups: dict[tuple[str, str, int, int], list[Turn]] = {}
    for turn in turns:
        groups.setdefault(turn[:4], []).append(turn)
    return {key: _median(group) for key, group in groups.items()}


def _median(turns: Sequence[Turn]) -> Turn:
    numbers = [
        None if None in column else statistics.median(column)
        for column in zip(*(turn[5:] for turn in turns), strict=True)
    ]
    return Turn(*turns[0][:4], len(turns), *numbers)
