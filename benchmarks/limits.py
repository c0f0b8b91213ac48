"""The limit: the bare loop at several group sizes, in Python and, where there is a compiler, in C."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.bare import BareLoop
from benchmarks.machine import write_back
from benchmarks.recorded import Group
from mq.lifecycle import State

GROUP_SIZES: Final = (32, 128, 512)
MESSAGES: Final = 2048
_PATIENCE_SECONDS: Final = 120.0


class Rate(NamedTuple):
    """Messages a second."""

    publish: float
    consume: float


class Limits:
    """Rates of the bare loops, a turn of each whenever it is their turn.

    Args:
        folder: on the file system to measure.
        size: of a body, in bytes.
        messages: in a turn of each group size.
    """

    def __init__(self, folder: Path, size: int, messages: int = MESSAGES) -> None:
        self._folder = folder
        self._body = os.urandom(size)
        self._messages = messages
        self._rates: dict[tuple[str, int], list[Rate]] = {}
        self._program = self._compiled()

    def take_turn(self) -> None:
        """Each loop and each group size once."""
        for size in GROUP_SIZES:
            self._rates.setdefault(("Python", size), []).append(self._python(size))
            if self._program is not None:
                self._rates.setdefault(("C", size), []).append(self._c(self._program, size))

    def best(self, language: str = "Python") -> tuple[Rate, str] | None:
        """The best median of publishing and that of consuming, and what group sizes they are of."""
        medians = {
            size: Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
            for (of, size), rates in self._rates.items()
            if of == language
        }
        if not medians:
            return None
        publish = max(medians, key=lambda size: medians[size].publish)
        consume = max(medians, key=lambda size: medians[size].consume)
        best = Rate(medians[publish].publish, medians[consume].consume)
        return best, f"in {language}, groups of {publish} and {consume}"

    def _python(self, size: int) -> Rate:
        root = self._folder / "bare"
        groups = self._messages // size
        loop = BareLoop(str(root), self._body, renames=True)
        try:
            write_back(str(root))
            published = loop.run([_publishing(size)] * groups)
            write_back(str(root))
            consumed = loop.run([group for _ in range(groups) for group in _consuming(size)])
        finally:
            loop.close()
            shutil.rmtree(root)
        return Rate(groups * size / published, groups * size / consumed)

    def _c(self, program: Path, size: int) -> Rate:
        root = self._folder / "bare-c"
        root.mkdir()
        groups = self._messages // size
        write_back(str(root))
        try:
            command = [str(program), str(root), str(size), str(groups), str(len(self._body))]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PATIENCE_SECONDS)
        finally:
            shutil.rmtree(root)
        published, consumed = map(float, done.stdout.split())
        return Rate(groups * size / published, groups * size / consumed)

    def _compiled(self) -> Path | None:
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        program, source = self._folder / "bare-program", Path(__file__).with_name("bare.c")
        subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True, timeout=_PATIENCE_SECONDS)
        return program


def _publishing(size: int) -> Group:
    return Group(writes=size, moves=(((State.NEW.value, State.READY.value), size),), durable=True)


def _consuming(size: int) -> list[Group]:
    return [
        Group(moves=(((State.READY.value, State.DELAYED.value), size),), durable=True),
        Group(reads=size),
        Group(moves=(((State.DELAYED.value, State.REMOVED.value), size),), durable=True),
        Group(unlinks=size),
    ]
