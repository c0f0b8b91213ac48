"""Starting the fuzzer, and what came of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.targets import TARGETS

TREE: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 60.0
_LARGEST_INPUT_BYTES: Final = 4096
_RUNS: Final = re.compile(r"^(?:stat::number_of_executed_units:\s*|Done )(\d+)", re.MULTILINE)


class Result(NamedTuple):
    """What came of fuzzing one target.

    Attributes:
        found: the fuzzer's last words when it found something; empty when not.
    """

    runs: int
    found: str


def missing() -> str:
    """Why nothing can be fuzzed here, in a few words; empty when it can."""
    return "" if importlib.util.find_spec("atheris") else "there is no atheris for this platform"


def fuzz(target: str, corpus: Path, *, seconds: int = 0, runs: int = -1) -> Result:
    """Fuzz one target.

    Args:
        corpus: a folder of inputs, which grows; what ends a target is kept beside it.
        seconds: end after this time; 0 for never.
        runs: end after so many inputs, the same ones each time when the corpus is new; -1 for never.
    """
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[target].seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    flags = [
        f"-max_total_time={seconds}",
        f"-runs={runs}",
        "-seed=1",
        f"-max_len={_LARGEST_INPUT_BYTES}",
        "-timeout=20",
    ]
    flags += ["-print_final_stats=1", f"-artifact_prefix={corpus.parent}/{corpus.name}-", str(corpus)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.one", target, *flags],
        cwd=TREE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_START_SECONDS + (seconds or 600),
    )
    said = done.stdout.decode(errors="replace")
    tried = [int(count) for count in _RUNS.findall(said)]
    return Result(max(tried, default=0), said[-3000:] if done.returncode else "")
