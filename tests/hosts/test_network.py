"""Hosts in namespaces: they reach each other, are cut off, and take everything with them when they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts.network import Host, HostsFailed, Network, made_network

_PORT = 7000
_SERVER = (sys.executable, "-m", "http.server", str(_PORT), "--bind", "0.0.0.0")

pytestmark = [pytest.mark.root, pytest.mark.cluster]


@pytest.fixture
def network() -> Iterator[Network]:
    with made_network("n1", "n2", "n3") as network:
        yield network


def connects(source: Host, target: Host, seconds: float) -> bool:
    """Whether somebody on one host reaches the server on the other."""
    with source.inside():
        try:
            socket.create_connection((target.address, _PORT), seconds).close()
        except OSError:
            return False
    return True


def await_true(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """Whether a process lives, or has ended and is not forgotten."""
    return Path(f"/proc/{pid}").exists()


def test_hosts_have_names_and_reach_each_other(network: Network, tmp_path: Path) -> None:
    one, two = network["n1"], network["n2"]
    one.start(*_SERVER, log=tmp_path / "log")
    await_true(lambda: connects(two, one, 1))
    assert not connects(two, two, 1), "nobody listens there"
    assert [host.run("hostname").strip() for host in network] == ["n1", "n2", "n3"]


def test_a_host_holds_no_disk_of_other_tests(tmp_path: Path) -> None:
    """A copy of the mount would keep it as it is, whatever its own test does with the disk behind it."""
    subprocess.run(["mount", "-t", "tmpfs", "mq-test", str(tmp_path)], check=True)
    try:
        with made_network("n1") as network:
            mounts = network["n1"].run("cat", "/proc/self/mountinfo")
            assert f" {tmp_path} " not in mounts
            assert " /proc " in mounts
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_cut_host_is_reached_by_nobody_until_it_is_mended(network: Network, tmp_path: Path) -> None:
    one, two = network["n1"], network["n2"]
    one.start(*_SERVER, log=tmp_path / "log")
    await_true(lambda: connects(two, one, 1))
    one.cut()
    assert not connects(two, one, 0.3)
    assert connects(one, one, 1), "a program on the cut host reaches itself"
    one.mend()
    await_true(lambda: connects(two, one, 1))


def test_two_hosts_are_cut_from_each_other_and_not_from_the_third(network: Network, tmp_path: Path) -> None:
    one, two, three = network
    one.start(*_SERVER, log=tmp_path / "log")
    await_true(lambda: connects(two, one, 1))
    one.cut(two)
    assert not connects(two, one, 0.3)
    assert connects(three, one, 1)
    one.mend(two)
    await_true(lambda: connects(two, one, 1))


@pytest.mark.slow
def test_two_networks_have_the_same_addresses_and_do_not_meet(network: Network, tmp_path: Path) -> None:
    network["n1"].start(*_SERVER, log=tmp_path / "log")
    await_true(lambda: connects(network["n2"], network["n1"], 1))
    with made_network("n1", "n2") as other:
        assert other["n1"].address == network["n1"].address
        assert not connects(other["n2"], other["n1"], 0.3)


def test_a_program_is_paused_resumed_and_killed(network: Network, tmp_path: Path) -> None:
    one, two = network["n1"], network["n2"]
    server = one.start(*_SERVER, log=tmp_path / "log")
    await_true(lambda: connects(two, one, 1))

    def state() -> str:
        return Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]

    server.pause()
    await_true(lambda: state() == "T")
    server.resume()
    await_true(lambda: state() == "S")
    server.pause()
    server.kill()
    assert not is_there(server.pid)
    assert not connects(two, one, 1)


def test_what_was_started_ends_with_its_host(tmp_path: Path) -> None:
    """Also a daemon that has let go of who started it."""
    with made_network("n1") as network:
        network["n1"].start("sh", "-c", "setsid sleep 100 & echo $!", log=tmp_path / "log").wait(5)
        inside = int((tmp_path / "log").read_text())
        await_true(lambda: network["n1"].run("cat", f"/proc/{inside}/comm") == "sleep\n")
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _lives_in(name, network["n1"].pid)]
        assert len(pids) == 2, "the first process and the daemon"
    assert not any(map(is_there, pids))


@pytest.mark.slow
def test_a_network_ends_with_who_made_it(network: Network) -> None:
    """kill -9 of the tests leaves nothing behind."""
    script = (
        "from tests.hosts.network import made_network; import time\n"
        "with made_network('n1') as network: print(network['n1'].pid, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        pid = int(maker.stdout.readline())
        assert is_there(pid)
        maker.send_signal(signal.SIGKILL)
    await_true(lambda: not is_there(pid))


def test_a_program_that_fails_says_why(network: Network, tmp_path: Path) -> None:
    with pytest.raises(HostsFailed, match="no such address"):
        network["n1"].run("sh", "-c", "echo no such address; exit 3")
    with pytest.raises(HostsFailed, match="takes longer"):
        network["n1"].run("sleep", "5", seconds=0.2)


def _lives_in(pid: str, space: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{space}/ns/pid")
    except OSError:
        return False
