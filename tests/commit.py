"""The commit that is tested: what is tested in turns moves with it, and is the same when it is tested again."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent


@cache
def commit_number() -> int:
    """A large number, another one for each commit; 0 where there is no repository."""
    try:
        told = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return 0
    return int(told[:8] or "0", 16)
