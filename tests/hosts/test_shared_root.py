"""Several brokers on one root that is a GlusterFS volume or a CephFS with three copies, or on NFS, while copies die
and cables are pulled.

Nothing acknowledged is lost, whatever happens. While nothing happens nothing is handed out twice; what is, is counted.
``--shared-messages=5000`` is the long run, ``make shared``.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.clients import QUEUE, Caller, Clients
from tests.e2e.through import Through
from tests.hosts import ceph, gluster, nfs
from tests.hosts.brokers import HostDaemon, on
from tests.hosts.ceph import Ceph
from tests.hosts.gluster import Gluster
from tests.hosts.network import Network, made_network
from tests.hosts.nfs import Nfs

LEASE_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 3
"""A copy that does not answer for so long is gone."""
CUT_SECONDS: Final = 8.0
SILENCE_SECONDS: Final = 15.0
HEARD_TIMES: Final = 9
QUIET_SECONDS: Final = 2.0

pytestmark = [pytest.mark.root, pytest.mark.cluster, pytest.mark.proof]


HOSTS: Final = ("n1", "n2", "n3")


class Volume:
    """A shared file system, a broker on each of two of its hosts, and a host for their clients."""

    def __init__(self, network: Network, folder: Path, copies: Gluster | Ceph | Nfs) -> None:
        self.network = network
        self.client = network["client"]
        self.copies = copies
        copies.start()
        flags = ("--peers", "1", "--visibility", str(LEASE_SECONDS))
        self.daemons = [
            HostDaemon(network[name], self.client, copies.root(name) / "q", folder / f"{name}.log", *flags)
            for name in ("n1", "n2")
        ]
        for daemon in self.daemons:
            daemon.start()


@pytest.fixture(params=["gluster", "ceph", "nfs"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Volume]:
    reason = {"gluster": gluster, "ceph": ceph, "nfs": nfs}[request.param].missing()
    if reason:
        pytest.skip(f"no volume can be made here: {reason}")
    with made_network(*HOSTS, "client") as network:
        folder = tmp_path / "volume"
        made: dict[str, Callable[[], Gluster | Ceph | Nfs]] = {
            "gluster": lambda: Gluster(network, folder, HOSTS, ping_seconds=SILENT_SECONDS),
            "ceph": lambda: Ceph(network, folder, HOSTS, "client", silent_seconds=SILENT_SECONDS),
            "nfs": lambda: Nfs(network, folder, HOSTS),
        }
        yield Volume(network, folder, made[request.param]())


def test_nothing_is_lost_when_a_copy_dies_and_a_cable_is_pulled(
    volume: Volume, shared_messages: int, report: Callable[[str], None]
) -> None:
    run = Through(volume.daemons, LEASE_SECONDS, SILENCE_SECONDS, partial(on, volume.client))
    quiet = shared_messages // 3
    began = time.monotonic()
    with run.at_work(quiet):
        pass
    calm = run.verdict()
    report(f"while nobody fails: {calm.summary()}; {quiet / (time.monotonic() - began):.0f} messages/s through both")
    assert not calm.faults(peers=0)
    assert (calm.again, calm.twice) == (0, 0), "handed out twice, though nobody failed"

    cut_off = volume.daemons[1]
    share = (shared_messages - quiet) // 6
    begin, began = len(run.clients.history), time.monotonic()
    with run.at_work(shared_messages - quiet):
        run.go_on(share)
        volume.copies.kill_copy("n3")
        time.sleep(CUT_SECONDS) if isinstance(volume.copies, Nfs) else run.go_on(share)  # which has no other copy
        volume.copies.revive_copy("n3")
        run.wait_until(lambda: volume.copies.is_healed("n1"), "a healed volume")
        run.go_on(share)
        cut_off.host.cut()
        run.go_on(share)
        time.sleep(CUT_SECONDS)
        cut_off.host.mend()
        if isinstance(volume.copies, Ceph):  # which has shut it out for good
            run.go_on(share)
            assert "the disk failed" in cut_off.log.read_text()
            cut_off.process.kill()
            volume.copies.mount_again(cut_off.host.name)
            cut_off.start()
        run.go_on(share)
        run.wait_until(cut_off.is_ready, "the broker that was cut off")
        run.go_on(share)
    verdict = run.verdict()
    report(
        f"a copy killed, a cable pulled: {verdict.summary()}; "
        f"{time.monotonic() - began:.0f} s, the longest without a delivery {run.longest_pause(begin):.1f} s"
    )
    faults = verdict.faults(peers=1)
    assert not faults, "\n".join(faults)
    for daemon in volume.daemons:
        assert daemon.process.is_running(), daemon.process.last_words()
        assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.process.last_words(60)


def test_a_request_that_waits_at_one_machine_hears_of_what_another_publishes(
    volume: Volume, report: Callable[[str], None]
) -> None:
    """Where nothing tells of it, mq looks."""
    delays = []
    clients = Clients(volume.daemons)
    on(volume.client, clients.create_queue)()
    with ThreadPoolExecutor(1) as pool, clients.caller(0) as publisher, clients.caller(1) as consumer:
        for number in range(HEARD_TIMES):
            waiting = pool.submit(on(volume.client, partial(_fetch, consumer)))
            time.sleep(QUIET_SECONDS)  # it is there, and has been looked for
            assert not waiting.done()
            on(volume.client, partial(clients.publish, publisher, b"message %d" % number))()
            answered = waiting.result(60)
            delays.append(answered - clients.history[-1].answered)
    delays.sort()
    report(f"heard after {delays[HEARD_TIMES // 2]:.2f} s, {delays[0]:.2f} to {delays[-1]:.2f}")
    assert delays[HEARD_TIMES // 2] <= 1.0


def _fetch(consumer: Caller) -> float:
    """Wait for a message; when it came."""
    answer = consumer.call("GET", f"/{QUEUE}/messages?wait=50")
    assert answer.status == http.client.OK
    consumer.call("DELETE", f"/{QUEUE}/messages/{answer.id}")
    return answer.answered
