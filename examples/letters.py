"""Programs that share a folder as a queue, and no daemon: three of them here, of which the second dies at its work.

What it had received comes back when its time runs out::

    python examples/letters.py /tmp/mq-letters
"""

from __future__ import annotations

import subprocess
import sys

from mq.vsqs import Queue

VISIBILITY_SECONDS = 0.5


def write(folder: str) -> None:
    """When publish returns, the message is on the disk, for everybody who opens the folder."""
    with Queue(folder, create=True) as queue:
        for number in range(3):
            queue.publish(f"letter {number}".encode())


def die_reading(folder: str) -> None:
    """A process that receives and never deletes."""
    receive = f"Queue({folder!r}).receive({VISIBILITY_SECONDS})"
    source = f"from mq.vsqs import Queue; print({receive}.body.decode(), 'is lost?')"
    subprocess.run([sys.executable, "-c", source], check=True)


def read(folder: str) -> None:
    """A block that ends well deletes its message; one that raises gives it back at once."""
    with Queue(folder) as queue:
        while queue.size():
            message = queue.receive(VISIBILITY_SECONDS, timeout=10)
            if message is not None:
                with message:
                    print(message.body.decode(), flush=True)


if __name__ == "__main__":
    write(sys.argv[1])
    die_reading(sys.argv[1])
    read(sys.argv[1])
