"""``python -m tests.hostile.slow_daemon SYNCS ...``: the program ``mq``, on a disk that syncs so many times a second.

Each sync waits for those before it, as on a disk with one queue.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable


def slow(sync: Callable[[int], None], seconds: float, queue: threading.Lock) -> Callable[[int], None]:
    """A sync that takes so long."""

    def sync_slowly(fd: int) -> None:
        with queue:
            time.sleep(seconds)
            sync(fd)

    return sync_slowly


def main() -> None:
    seconds, queue = 1 / float(sys.argv.pop(1)), threading.Lock()
    os.fsync, os.fdatasync = slow(os.fsync, seconds, queue), slow(os.fdatasync, seconds, queue)
    from mq.cli import main as run

    run(prog_name="mq")


if __name__ == "__main__":
    main()
