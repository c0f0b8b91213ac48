"""Receives what is left in queues, and writes it down: ``python -m tests.cluster.draining LOG SECONDS QUEUES``, a file
with the URLs of queues as its lines. A queue that is not there is empty."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TextIO

import httpx


def drain(client: httpx.Client, queue: str, log: TextIO, ends: float) -> bool:
    """Whether it is empty in time."""
    while time.monotonic() < ends:
        asked = time.monotonic_ns()
        reply = client.get(f"{queue}/messages")
        if reply.status_code == 404:
            return True
        if reply.status_code == 200:
            id = reply.headers["x-message-id"]
            line = {"at": time.monotonic_ns(), "event": "got", "body": reply.text, "asked": asked, "id": id}
            print(json.dumps(line), file=log, flush=True)
            client.delete(f"{queue}/messages/{id}")
        elif reply.status_code == 204:
            found = client.get(queue).json()
            if not found["ready"] + found["leased"] + found["delayed"]:
                return True
            time.sleep(0.2)
        else:
            time.sleep(0.2)
    return False


def main() -> None:
    path, seconds, queues = sys.argv[1:]
    ends = time.monotonic() + float(seconds)
    with open(path, "a") as log, httpx.Client(timeout=30) as client:
        full = [queue for queue in Path(queues).read_text().split() if not drain(client, queue, log, ends)]
    if full:
        sys.exit(f"not empty: {', '.join(full)}")


if __name__ == "__main__":
    main()
