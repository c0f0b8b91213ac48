"""Real input: every file of the running Python's standard library goes through the real daemon, which dies on the way.

Several producers and consumers work over HTTP; ``kill -9`` comes at random. In the end every body is compared by its
digest: none missing, none damaged, none invented. How many files is an option: ``--e2e-files=all``.
"""

from __future__ import annotations

import os
import queue
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.history import Published
from tests.e2e.scene import Scene, is_done, scene

PRODUCERS: Final = 4
CONSUMERS: Final = 4
KILLS: Final = 6
_ALL_SECONDS: Final = 900.0


def library_files() -> list[Path]:
    """Every plain file of the standard library, compiled ones too, by size. Packages installed later are not of it."""
    found = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages")]
        found += [Path(folder, name) for name in names]
    return sorted((path for path in found if path.is_file()), key=lambda path: (path.stat().st_size, str(path)))


def spread(files: list[Path], wanted: int | None) -> list[Path]:
    """So many of the files, evenly from the smallest to the largest, both included."""
    if wanted is None or wanted >= len(files):
        return files
    last = len(files) - 1
    return [files[number * last // max(wanted - 1, 1)] for number in range(wanted)]


def produce(stage: Scene, waiting: queue.SimpleQueue[Path], turn: int) -> None:
    """Publish files until there are no more."""
    with stage.clients.caller(turn) as caller:
        while not stage.clients.stop.is_set():
            try:
                path = waiting.get_nowait()
            except queue.Empty:
                return
            stage.clients.publish(caller, path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_file_survives_kills(temp_root: Path, files_wanted: int | None, seed: int) -> None:
    files = spread(library_files(), files_wanted)
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with scene(temp_root, seed) as stage:
        stage.random.shuffle(files)
        for path in files:
            waiting.put(path)
        producers = [lambda n=n: produce(stage, waiting, n) for n in range(PRODUCERS)]
        with stage.at_work(*producers, *stage.consumers(CONSUMERS)) as tasks:
            stage.kill_on_the_way(KILLS, 5 * len(files) // 2, _ALL_SECONDS)  # of three events a file, or more
            stage.wait_until(lambda: is_done(tasks[:PRODUCERS]), _ALL_SECONDS, "all files published")
            stage.drain()
        summary = stage.check()
        acknowledged = sum(isinstance(event, Published) and event.id is not None for event in stage.clients.history)
    assert acknowledged == len(files)
    size = sum(path.stat().st_size for path in files)
    sys.stdout.write(f"{len(files)} files, {size:,} bytes, {KILLS} kills: {summary}\n")
