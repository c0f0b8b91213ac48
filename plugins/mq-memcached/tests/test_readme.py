"""The README's example runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mq_memcached.testing.server import Server

from tests.documents import blocks

README = Path(__file__).resolve().parent.parent / "README.md"

pytestmark = pytest.mark.slow


def test_the_example_runs(server: Server) -> None:
    (example,) = blocks(README, "python")
    source = example.replace("11211", str(server.port))
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
