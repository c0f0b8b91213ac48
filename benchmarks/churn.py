"""Durable queues that are made and deleted: flushes of each, and what they do to publishers beside them."""

from __future__ import annotations

import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import trio

from benchmarks.counts import Used
from benchmarks.figures import Figure, at_most, not_measured
from benchmarks.load.driver import Timed, open_session
from benchmarks.load.http import HttpCodec
from benchmarks.systems.system import Server
from benchmarks.turns import publish

PUBLISHERS: Final = 32
LEAST_SECONDS: Final = 0.2
_BODY: Final = b"x" * 1024


def measure(server: Server, folder: Path, count: int) -> list[Figure]:
    """Make and delete so many queues: alone, and beside publishers to another one.

    Args:
        server: of mq, over HTTP.
        folder: on its disk.
        count: of queues.
    """
    with Used(server.pids, folder) as used:
        make_and_delete(server.ports[0], count)
    name = f"{count:,} durable queues made and deleted"
    flushes = (
        not_measured(f"{name}: flushes", "this file system has no device that counts", "≤ 1.1")
        if used.device is None
        else at_most(f"{name}: flushes", used.device.flushes / count / 2, 1.1, "each")
    )
    alone, beside = trio.run(_publish, server, count)
    note = f"{beside.percentile(0.99) * 1e3:,.1f} against {alone.percentile(0.99) * 1e3:,.1f} ms"
    ratio = beside.percentile(0.99) / alone.percentile(0.99)
    return [
        flushes,
        at_most(f"{name}: p99 of {PUBLISHERS} publishers beside that, against without", ratio, 2.0, note=note),
    ]


async def _publish(server: Server, count: int) -> tuple[Timed, Timed]:
    """Publishers alone, and as long as queues are made and deleted beside them."""
    async with open_session(lambda: HttpCodec("busy", _BODY), server.ports, PUBLISHERS) as session:
        await session.run(publish, LEAST_SECONDS)
        alone = await session.run(publish, LEAST_SECONDS * 10)
        churning = threading.Thread(target=make_and_delete, args=(server.ports[0], count))
        churning.start()
        beside = await session.run(publish, float("inf"), is_over=lambda: not churning.is_alive())
        churning.join()
    return alone, beside


def make_and_delete(port: int, count: int) -> None:
    """One connection makes and deletes so many queues, one after the other."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for number in range(count):
        for method, wanted in (("PUT", 201), ("DELETE", 200)):
            connection.request(method, f"/churn{number}")
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == wanted, said
    connection.close()
