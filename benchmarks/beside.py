"""Twenty publishes a second beside another program that writes 20 MB a second to the same file system.

A flush of the log waits for the log alone; ``syncfs`` waits for what others have written, too. Both daemons run all the
time, and take turns. The other program writes one file over and over; it ends by itself.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, at_most
from benchmarks.systems.system import Server, System

PUBLISHES_A_SECOND: Final = 20
MEGABYTES_A_SECOND: Final = 20
MEGABYTES: Final = 128
"""Of the file that the other program writes over and over."""
_BODY: Final = os.urandom(1024)
_BOUNDS: Final = {0.5: 0.5, 0.9: 0.6, 0.99: None}
"""Share of the publishes -> how much of the time without a log they may take at the most."""


def measure(servers: Sequence[tuple[System, Server]], folder: Path, rounds: int, seconds: float) -> list[Figure]:
    """How long a publish takes with a log, against without: its middle, and its slow ones.

    Args:
        servers: the daemon with a log, and the one without.
        folder: where the other program writes.
        rounds: turns of each.
        seconds: length of a turn.
    """
    took: dict[str, list[float]] = {system.name: [] for system, _ in servers}
    with _another_program(folder / "another", (rounds + 1) * 2 * (seconds + 5)):
        for number in range(rounds):
            for system, server in servers if number % 2 else reversed(servers):
                took[system.name] += _publish(server.ports[0], round(seconds * PUBLISHES_A_SECOND))
    ours, before = (sorted(took[system.name]) for system, _ in servers)
    return [_figure(share, ours, before, bound) for share, bound in _BOUNDS.items()]


def _figure(share: float, ours: Sequence[float], before: Sequence[float], bound: float | None) -> Figure:
    new, old = _percentile(ours, share), _percentile(before, share)
    name = f"publish beside another program's writes: p{share * 100:.0f}, against --no-log"
    note = f"{new * 1e3:,.1f} against {old * 1e3:,.1f} ms; {len(ours)} publishes each"
    return Figure(name, new / old, note=note) if bound is None else at_most(name, new / old, bound, note=note)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _publish(port: int, count: int) -> list[float]:
    """Seconds that each publish took; they begin at an even pace."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    _ask(connection, "PUT", "/beside")
    took = []
    begin = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begin + number / PUBLISHES_A_SECOND - time.perf_counter()))
        started = time.perf_counter()
        _ask(connection, "POST", "/beside/messages", _BODY)
        took.append(time.perf_counter() - started)
    _ask(connection, "DELETE", "/beside")
    connection.close()
    return took


def _ask(connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> None:
    connection.request(method, path, body)
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status < 300, said


@contextmanager
def _another_program(path: Path, seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.beside", str(path), str(seconds)]
    with subprocess.Popen(command) as running:
        try:
            yield
            assert running.poll() is None, "the other program has ended too soon"
        finally:
            running.terminate()
    path.unlink(missing_ok=True)


def _write(path: str, seconds: float) -> None:
    block = os.urandom(1 << 20)
    begin = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for number in range(round(seconds * MEGABYTES_A_SECOND)):
            time.sleep(max(0.0, begin + number / MEGABYTES_A_SECOND - time.monotonic()))
            file.seek((number % MEGABYTES) << 20)
            file.write(block)


if __name__ == "__main__":
    _write(sys.argv[1], float(sys.argv[2]))
