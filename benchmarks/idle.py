"""How often a daemon with nothing to do wakes up: the kernel's count of its threads' context switches."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Final

from benchmarks.figures import Figure, at_most

WATCHED_SECONDS: Final = 10.0
_START_SECONDS: Final = 30.0
_THREADS_GO_SECONDS: Final = 40.0
_LISTENS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


def measure(folder: str) -> list[Figure]:
    """Wake-ups of a daemon that has served a message and now has nothing to do."""
    root = f"{folder}/idle"
    log = f"{folder}/idle.log"
    with open(log, "w+", encoding="utf-8") as output:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "mq", "--root", root, "--port", "0", "--amqp-port", "0", "--delay", "1"],
            stderr=output,
        )
        try:
            _use(port_of(daemon, log))
            threads = _wait_for_quiet(daemon.pid)
            before = switches(daemon.pid)
            time.sleep(WATCHED_SECONDS)
            wake_ups = switches(daemon.pid) - before
        finally:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
            shutil.rmtree(root, ignore_errors=True)
    note = f"in {WATCHED_SECONDS:.0f} seconds, {threads} thread{'s' if threads != 1 else ''}"
    return [at_most("wake-ups of an idle daemon", wake_ups, 0, note=note)]


def switches(pid: int) -> int:
    """Voluntary context switches of all threads of a process so far."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii", errors="replace") as status:
            total += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
    return total


def port_of(daemon: subprocess.Popen[bytes], log: str) -> int:
    """Where it listens, which it says at its start."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        with open(log, encoding="utf-8") as said:
            found = _LISTENS.search(said.read())
        if found is not None:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"the daemon did not start; its log is {log}")


def _use(port: int) -> None:
    """One message all the way, so that every part has been at work once."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for method, path, body in (
        ("PUT", "/q", None),
        ("POST", "/q/messages", b"body"),
        ("GET", "/q/messages", None),
        ("GET", "/q/messages", None),
    ):
        connection.request(method, path, body)
        reply = connection.getresponse()
        reply.read()
        id = reply.getheader("x-message-id")
        if method == "GET" and id is not None:
            connection.request("DELETE", f"/q/messages/{id}")
            connection.getresponse().read()
            break
    connection.close()


def _wait_for_quiet(pid: int) -> int:
    """Until Trio's worker threads, which wait ten seconds for more to do, are gone: what is left are the daemon's
    own and the two of its store. How many."""
    deadline = time.monotonic() + _THREADS_GO_SECONDS
    while (threads := len(os.listdir(f"/proc/{pid}/task"))) > 3 and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(1)
    return threads
