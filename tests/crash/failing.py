"""A disk that fails under a real daemon: what the daemon must answer, and what must be there afterwards."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.crash.bench import Bench
from tests.crash.images import CrashImages, Cut, Fate, mounted
from tests.crash.judge import judge
from tests.crash.ledger import Ledger
from tests.crash.recording import Recording
from tests.crash.rig import FileSystem, Rig
from tests.crash.trial import ROOT, serve
from tests.crash.workload import KEPT, LARGE, WORKED, Client, Refused, with_one
from tests.e2e.daemon import DaemonFailed

_PUBLISHERS: Final = 4
_MOST_MESSAGES: Final = 200
_PUBLISH_SECONDS: Final = 120.0


def fail_disk(
    bench: Bench, system: FileSystem, what: str, times: int | None, *, remount: bool = True, mutant: str = ""
) -> list[str]:
    """What is wrong when a disk fails.

    Args:
        what: ``write`` or ``flush``.
        times: how often that fails; None for always, until the disk is healed.
        remount: whether the machine is restarted afterwards, or only the daemon.
    """
    wrong: list[str] = []
    with Rig(bench.folder / "rig", system) as rig:
        with serve(bench, rig, mutant=mutant) as daemon:
            ids = _before(rig, daemon.port)
            rig.fail(what, times)
            if not _publish_until_refused(rig, daemon.port):
                wrong.append(f"{_PUBLISHERS * _MOST_MESSAGES} messages were taken")
            wrong += _look(daemon.port, ids, "while the disk fails")
            rig.heal()
            wrong += _look(daemon.port, ids, "when the disk works again")
        if remount or not _starts(bench, rig):
            rig.remount()
        with serve(bench, rig) as daemon:
            wrong += _after(rig, daemon.port)
        recording = rig.recording()
        rig.remount()
        flaws = judge(rig.mountpoint / ROOT, Ledger(recording.marks()), time.time_ns())
        wrong += [f"remounted: {flaw}" for flaw in flaws]
    return wrong + list(_judge_cuts(bench, system, recording))


def _starts(bench: Bench, rig: Rig) -> bool:
    """Whether the daemon serves a file system that has met an error and was not mounted anew. It may refuse, and must
    where the kernel lets nothing be written there any more.
    """
    try:
        with serve(bench, rig):
            return True
    except DaemonFailed as refusal:
        if "exit status 2" not in str(refusal):
            raise
        return False


def _before(rig: Rig, port: int) -> list[str]:
    """Messages of every kind, while all is well. Two that stand in WORKED, and one that is leased from it."""
    client = Client(port, rig.mark, threading.Event())
    with contextlib.closing(client):
        for queue in (KEPT, WORKED):
            client.create(queue)
        for number in range(6):
            client.publish(KEPT, f"before {number}".encode() * 100, "text/plain")
        ids = [client.publish(WORKED, f"worked {number}".encode(), "text/plain") for number in range(4)]
        client.fetch(WORKED)
        client.remove(WORKED, ids[1])
    return [ids[2], ids[3], ids[0]]


def _publish_until_refused(rig: Rig, port: int) -> bool:
    """Several clients publish until each of them is refused. False when somebody never was."""
    stop = threading.Event()
    stop.set()  # refused once is refused for good

    def publish(number: int) -> bool:
        try:
            with_one(Client(port, rig.mark, stop), lambda client: _publish_many(client, number))
        except Refused:
            return True
        return False

    with ThreadPoolExecutor(_PUBLISHERS) as pool:
        return all(list(pool.map(publish, range(_PUBLISHERS), timeout=_PUBLISH_SECONDS)))


def _publish_many(client: Client, number: int) -> None:
    for count in range(_MOST_MESSAGES):
        body = f"{number} {count} ".encode() * (LARGE // 8 if count % 10 == 9 else 300)
        client.publish(KEPT, body, "text/plain")


def _look(port: int, ids: list[str], when: str) -> Iterator[str]:
    """What the daemon answers wrongly now that its disk has failed."""
    expected = [
        ("POST", f"/{KEPT}/messages", 503),
        ("GET", f"/{WORKED}/messages", 503),
        ("DELETE", f"/{WORKED}/messages/{ids[0]}", 503),
        ("DELETE", f"/{WORKED}/messages/{ids[2]}", 503),
        ("PUT", "/other", 503),
        ("DELETE", f"/{KEPT}", 503),
        ("GET", "/-/ready", 503),
        ("GET", "/-/live", 200),
        ("GET", f"/{KEPT}", 200),
        ("HEAD", f"/{WORKED}", 200),
        ("GET", "/other", 404),
    ]
    client = Client(port, lambda text: None, threading.Event())
    with contextlib.closing(client):
        for method, path, status in expected:
            reply = client.call(method, path, b"body" if method == "POST" else None)
            if reply.status != status:
                yield f"{when}: {method} {path} was answered {reply.status}, not {status}: {reply.body[:200]!r}"
            elif status == http.client.SERVICE_UNAVAILABLE and not reply.body:
                yield f"{when}: {method} {path} was refused without a word"


def _after(rig: Rig, port: int) -> Iterator[str]:
    """The daemon was started again: all is as usual."""
    client = Client(port, rig.mark, threading.Event())
    with contextlib.closing(client):
        if client.call("GET", "/-/ready").status != http.client.OK:
            yield "started again, it is not ready"
        client.create("afterwards")
        id = client.publish("afterwards", b"after", "text/plain")
        if client.fetch("afterwards") != id:
            yield "started again, it does not hand out what it takes"


def _judge_cuts(bench: Bench, system: FileSystem, recording: Recording) -> Iterator[str]:
    """The power goes at the very end."""
    k = len(recording.records)
    images = CrashImages(recording, system.atom, bench.folder / "cuts")
    for cut in (Cut(k, Fate.LOST, 0), Cut(k, Fate.KEPT, 0), *(Cut(k, Fate.TORN, seed) for seed in range(4))):
        images.build(cut, bench.folder / "cuts" / "image")
        with mounted(system, bench.folder / "cuts" / "image", bench.folder / "cuts" / "mounted") as place:
            flaws = judge(place / ROOT, Ledger(recording.marks()), recording.time_ns(k))
            yield from (f"cut {cut}: {flaw}" for flaw in flaws)
