"""What happens in every run: two lives of a broker, in which everything is done that a broker can do.

Between them lies what a crash can leave, so that the second life begins with repairs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from mq.message import MessageId, MessageIds, Properties, checksum
from mq.storage.files.calls import OPEN_NEW
from mq.storage.files.format import RootUse, note_use
from mq.storage.files.layout import SUM, Layout, Sum, encode_side
from simulation.disk import Disk
from tests.faults.actor import ROOT, START_NS, Actor
from tests.faults.ledger import Fate, Ledger

LARGE: Final = b"large" * 60_000
"""More than is read at once."""
NOTE: Final = "x" * 3000
"""More than an extended attribute holds."""


async def first_life(client: Actor) -> None:
    """On an empty root: a queue is made, messages of every size come and go."""
    await client.create("q")
    await client.publish("q", b"small", content_type="text/plain")
    await client.publish("q", b"", note=NOTE)
    await client.publish("q", LARGE, staged=True, note=NOTE)
    await client.remove(await client.fetch("q"))
    await client.requeue(await client.fetch("q"))
    await client.stage_and_discard("q", b"never published")
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(client.publish, "q", b"together %d" % number)
    await client.fetch_and_vanish("q")
    for _ in range(2):
        await client.fetch("q")


def litter(disk: Disk, ledger: Ledger, seconds: float, *, attributes: bool, log: bool) -> str:
    """Leave what a crash can leave: a message under two names, torn and stranded ones, bodies that never arrived.

    The id of the torn message; beside a log there is none.
    """
    if not log:
        note_use(disk, Layout.under(ROOT), RootUse.FILES)
    ids = MessageIds(lambda: START_NS + round(seconds * 1e9), node=2)
    stranded, torn, removed, arriving, lost = (ids.new() for _ in range(5))
    _put(disk, f"new/q:{stranded}", b"stranded", b"stranded", stranded, attributes=attributes)
    if not log:
        _put(disk, f"new/q:{torn}", b"torn to pieces", b"torn", torn, attributes=attributes)
    _put(disk, f"remove/q:{removed}", b"removed", b"removed", removed, attributes=attributes)
    _put(disk, f"state/stage/{arriving}", b"half a body", b"half", arriving, attributes=True)
    _put(disk, f"state/stage/{lost}", b"", b"", lost, attributes=False)
    ledger.publishing("q", b"stranded", {}).fate = Fate.THERE
    leased = min(name for name, _ in disk.names(f"{ROOT}/delay"))
    disk.link(f"{ROOT}/delay/{leased}", f"{ROOT}/new/{leased.partition(',')[0]}")
    return "" if log else torn


def _put(disk: Disk, path: str, body: bytes, arrived: bytes, id: MessageId, *, attributes: bool) -> None:
    fd = disk.open(f"{ROOT}/{path}", OPEN_NEW)
    if attributes:
        disk.set_attribute(fd, SUM, Sum(len(body), checksum(body)).encode())
    disk.write(fd, arrived)
    disk.close(fd)
    if not attributes:
        fd = disk.open(f"{ROOT}/state/properties/{id}", OPEN_NEW)
        disk.write(fd, encode_side(Properties(len(body), checksum(body))))
        disk.close(fd)


async def second_life(client: Actor) -> None:
    """Leases outlive the broker, and end; a queue goes with all that is in it, and comes anew."""
    held = [thing for thing in client.ledger.messages("q") if thing.leased_until > trio.current_time()]
    await client.remove(held[0])
    await client.create("doomed")
    for number in range(3):
        await client.publish("doomed", b"doomed %d" % number)
    await client.fetch("doomed")
    await client.let_leases_end()
    await client.fetch("doomed")
    await client.delete("doomed")
    await client.create("doomed")
    await client.publish("doomed", b"of the second queue")
    await client.drain("q")


LIVES: Final[tuple[Callable[[Actor], Awaitable[None]], ...]] = (first_life, second_life)
