"""Receives what is left in queues, and writes it down: ``python -m tests.cluster.draining LOG SECONDS QUEUES``, a file
with the URLs of queues as its lines. A queue that is not there is empty."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TextIO

import httpx


def drain(client: httpx.Client, queue: str, log: TextIO, ends: float) -> str:
    """What was said last of a queue that is not empty in time; nothing of one that is."""
    said = "not asked"
    while time.monotonic() < ends:
        asked = time.monotonic_ns()
        reply = client.get(f"{queue}/messages")
        said = f"{reply.status_code} {reply.text}"
        if reply.status_code == 404:
            return ""
        if reply.status_code == 200:
            id = reply.headers["x-message-id"]
            line = {"at": time.monotonic_ns(), "event": "got", "body": reply.text, "asked": asked, "id": id}
            print(json.dumps(line), file=log, flush=True)
            client.delete(f"{queue}/messages/{id}")
        elif reply.status_code == 204:
            shown = client.get(queue)
            found, said = shown.json(), shown.text
            if not found["ready"] + found["leased"] + found["delayed"]:
                return ""
            time.sleep(0.2)
        else:
            time.sleep(0.2)
    return said


def main() -> None:
    path, seconds, queues = sys.argv[1:]
    ends = time.monotonic() + float(seconds)
    with open(path, "a") as log, httpx.Client(timeout=30) as client:
        said = {queue: drain(client, queue, log, ends) for queue in Path(queues).read_text().split()}
    full = [f"{queue} ({last})" for queue, last in said.items() if last]
    if full:
        sys.exit(f"not empty: {', '.join(full)}")


if __name__ == "__main__":
    main()
