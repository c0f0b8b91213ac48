"""The examples run, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_embedded_example_does_every_job_once(temp_root: Path) -> None:
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, EXAMPLES / "embedded.py", temp_root],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ended.stdout.startswith("20 jobs done; ")
        assert "'requeue': 2" in ended.stdout
    assert not list((temp_root / "queues" / "work").iterdir())
