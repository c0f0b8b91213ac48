"""The same seed is the same run: without that, a seed that found a bug would not find it again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = "from simulation.run import digest, run_seed; print(digest([run_seed(seed) for seed in range(4)]))"


@pytest.mark.slow
def test_a_seed_gives_one_trace_in_every_process() -> None:
    """Under three orders of sets and dictionaries of text, and in processes of their own."""
    traces = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(traces) == 1


def test_another_seed_gives_another() -> None:
    from simulation.run import run_seed

    assert run_seed(1).trace != run_seed(2).trace
