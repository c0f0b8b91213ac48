"""P8 on real file systems, with the real daemon: a full disk, no inodes, no quota, no handles, and disks that fail.

Everything is asked over HTTP. Mounts are a test's own, small, and gone with it.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cases import proof
from tests.crash.bench import Bench, CommandFailed, run
from tests.e2e.daemon import Daemon
from tests.faults import injected, places
from tests.faults.injected import Injected
from tests.faults.places import FEW_INODES, PLACES, Place, fill, mounted, repair
from tests.faults.visitor import Visitor

pytestmark = pytest.mark.slow

SMALL_MESSAGES = 300
PAGE = 4_000
SIZES = (300_000, 40_000, PAGE)
"""Bytes. The first is more than a request holds in memory, and none is so small that btrfs keeps it in its tree."""
ROOM = 8 << 20


Begin = Callable[..., tuple[Path, Daemon, Visitor]]


class FewFiles(Daemon):
    """Begins with a soft limit of 256 open files, as a shell that set it would start it."""

    def _program(self) -> list[str]:
        return ["sh", "-c", 'ulimit -S -n 256 && exec "$@"', "sh", *super()._program()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


@pytest.fixture
def begin(bench: Bench, tmp_path: Path) -> Iterator[Begin]:
    """A file system of its own, a daemon with a queue on it, and a client."""
    with ExitStack() as stack:

        def begin(place: Place, *arguments: str) -> tuple[Path, Daemon, Visitor]:
            if reason := places.missing(place):
                pytest.skip(f"no {place.kind} here: {reason}")
            point = stack.enter_context(mounted(bench, place))
            daemon = stack.enter_context(Daemon(point / "root", tmp_path / "log", *arguments))
            client = stack.enter_context(Visitor(daemon))
            assert client.create()
            return point, daemon, client

        yield begin


def assert_empty(root: Path) -> None:
    """No message is left, nor half of one."""
    folders = ("new", "queues/q", "delay", "remove", "state/stage", "state/properties")
    assert [str(path) for folder in folders for path in (root / folder).iterdir()] == []


# Full


@pytest.mark.root
@pytest.mark.parametrize("name", [name if name in ("ext4", "btrfs") else proof(name) for name in PLACES])
def test_a_full_disk_takes_nothing_new_and_gives_what_it_has(name: str, begin: Begin) -> None:
    point, daemon, client = begin(PLACES[name], "--visibility", "600")
    others = point / "of somebody else"
    fill(others, leave=ROOM)
    small = [client.publish(8) for _ in range(SMALL_MESSAGES)]
    assert all(small) or name.startswith("tiny")
    for size in SIZES:
        while client.publish(size):
            pass
    assert client.has_delivered(point / "root", len(client.kept))
    assert not client.publish(PAGE)
    fill(others)
    assert not client.publish(PAGE)
    assert not client.create("another")

    leased = set()
    while (id := client.fetch()) is not None:
        leased.add(id)
        if len(leased) % 100 == 0:
            assert not client.publish(PAGE)
    assert leased == set(client.kept)

    daemon.kill()
    daemon.start()
    assert client.is_ready()
    assert client.fetch() is None
    assert not client.publish(PAGE)
    for id in sorted(leased)[10:]:
        client.remove(id)
    client.soon(lambda: client.publish(PAGE))  # removals have made room

    if name != "btrfs":  # which finds more room now and then, by itself
        client.soon(lambda: fill(others) or not client.publish(PAGE))
    others.unlink()
    client.soon(lambda: client.publish(PAGE))
    assert client.create("another")
    client.remove_all()
    assert daemon.starts == 2
    daemon.stop()
    assert_empty(point / "root")


@pytest.mark.root
@pytest.mark.parametrize("name", ["ext4", proof("tmpfs")])
def test_without_inodes_it_is_the_same_and_leases_end(name: str, begin: Begin) -> None:
    point, daemon, client = begin(FEW_INODES[name], "--visibility", "0.5")
    while client.publish(8):
        pass
    assert not client.create("another")
    first = client.fetch()
    assert first is not None
    client.soon(lambda: client.fetch() == first)  # it has come back, and stands at its old place
    assert not client.publish(8)
    daemon.kill()
    daemon.start()
    assert not client.publish(8)
    for id in list(client.kept)[::2]:
        client.remove(id)
    client.soon(lambda: client.publish(8))
    client.soon(lambda: client.create("another"))
    client.soon(client.has_drained)
    daemon.stop()
    assert_empty(point / "root")


@pytest.mark.root
def test_a_used_up_quota_is_a_full_disk(begin: Begin) -> None:
    point, daemon, client = begin(PLACES["btrfs"], "--visibility", "600")
    run("btrfs", "quota", "enable", point)
    run("btrfs", "qgroup", "limit", "12M", point)
    for size in SIZES:
        while client.publish(size):
            pass
    assert "Disk quota exceeded" in client.why(PAGE)
    leased = client.fetch_all()
    assert leased == set(client.kept)
    assert not client.publish(8)
    for id in sorted(leased)[::2]:
        client.remove(id)
    client.soon(lambda: client.publish(8))
    client.remove_all()
    assert daemon.starts == 1


# No handles


def settled_handles(daemon: Daemon) -> set[int]:
    """The handles that it has once connections of before are closed."""
    used: set[int] = set()
    while used != (used := {int(name) for name in os.listdir(f"/proc/{daemon.pid}/fd")}):
        time.sleep(0.3)
    return used


@contextmanager
def no_new_handles(daemon: Daemon, more: int = 0) -> Iterator[None]:
    """The daemon can open so many more files, or none at all."""
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    used = settled_handles(daemon)
    free = [fd for fd in range(len(used) + more + 1) if fd not in used][more]
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("size", [8, 300_000])
def test_without_handles_nothing_new_is_taken_and_what_is_there_is_given(size: int, tmp_path: Path) -> None:
    with Daemon(tmp_path / "root", tmp_path / "log", "--visibility", "600") as daemon, Visitor(daemon) as client:
        assert client.create()
        for _ in range(20):
            assert client.publish(size)
        assert client.has_delivered(tmp_path / "root", 20)
        with no_new_handles(daemon):
            assert not client.publish(8)
            assert not client.publish(300_000)
            assert not client.create("another")
            leased = [client.fetch() for _ in range(10)]
            assert None not in leased
            for id in leased[:5]:
                client.remove(str(id))
            assert not client.publish(8)
            assert client.is_ready()
        client.soon(lambda: client.publish(8))
        assert client.create("another")
        assert client.fetch_all() | set(leased[5:]) == set(client.kept)
        client.remove_all()
        daemon.stop()
        assert_empty(tmp_path / "root")


def test_a_crowd_that_wants_all_handles_leaves_some_to_the_store(tmp_path: Path) -> None:
    """Else connections that do nothing, such as those of AMQP that send heartbeats, end all publishing."""
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon, Visitor(daemon) as client:
        assert client.create()
        assert client.publish(8)
        with ExitStack() as crowd, no_new_handles(daemon, 40):
            idle = [crowd.enter_context(socket.create_connection(("127.0.0.1", daemon.port))) for _ in range(80)]
            idle[-1].settimeout(10)
            assert idle[-1].recv(1) == b""  # those that are too many are told at once
            for size in (8, 8, 300_000):
                assert client.publish(size)
            assert client.fetch() is not None
            assert len(os.listdir(f"/proc/{daemon.pid}/fd")) > 40  # as many as may come did
        client.soon(lambda: client.publish(8))
        client.close()
        client.remove_all()
        assert daemon.starts == 1


def test_the_soft_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    # Only the daemon gets the limit: this process may have more files open than that.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with FewFiles(tmp_path / "root", tmp_path / "log") as daemon:
        assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        daemon.stop()


# Failing


def assert_stays_failed(client: Visitor) -> None:
    """Nothing is changed any more, and what changes nothing goes on."""
    assert not client.is_ready()
    some = next(iter(client.kept))
    for method, path in (("PUT", "/new"), ("GET", "/q/messages"), ("DELETE", f"/q/messages/{some}"), ("DELETE", "/q")):
        assert client.is_refused(method, path), f"{method} {path}"
    assert not client.publish(8, failing=True)
    assert client.ask("GET", "/q").status == 200


@pytest.mark.root
def test_a_file_system_that_becomes_read_only_has_failed(begin: Begin, bench: Bench) -> None:
    point, daemon, client = begin(PLACES["ext4"], "--visibility", "600")
    for _ in range(20):
        assert client.publish(8)
    for _ in range(5):
        client.remove(str(client.fetch()))
        assert client.fetch()
    with pytest.raises(CommandFailed, match="busy"):
        run("mount", "-o", "remount,ro", point)
    assert client.publish(8)
    run("mount", "-o", "remount,abort", point)  # as the kernel does when it meets an error
    assert not client.publish(8, failing=True)
    assert_stays_failed(client)
    daemon.kill()
    repair(bench, PLACES["ext4"], point)
    daemon.start()
    assert client.is_ready()
    client.fetch_all()
    client.remove_all()
    daemon.stop()
    assert_empty(point / "root")


def publish_small(client: Visitor) -> bool:
    return client.publish(8, failing=True)


def publish_large(client: Visitor) -> bool:
    return client.publish(300_000, failing=True)


def make_queue(client: Visitor) -> bool:
    return client.create(f"another{len(client.kept)}")


def fetch(client: Visitor) -> bool:
    return not client.is_refused("GET", "/q/messages")


def remove(client: Visitor) -> bool:
    """Told to the client when it is durable, and unlinked when it likes; an earlier one may be, just now."""
    client.remove(next(iter(client.kept)), failing=True)
    return client.is_ready()


FAILURES = [
    ("rw/write", publish_large),
    ("sync/fsync", publish_small),
    ("dir/rename", fetch),
    ("dir/unlink", remove),
    proof("rw/write", publish_small),
    proof("rw/write", make_queue),
    proof("sync/fsync", make_queue),
    proof("oc/open", publish_small),
    proof("oc/open", publish_large),
]
"""The calls that fail, each with a request that needs it: one of each kind with each commit."""


@pytest.mark.parametrize(("point", "ask"), FAILURES)
def test_a_disk_that_fails_stays_failed_until_a_restart(
    point: str, ask: Callable[[Visitor], bool], bench: Bench, tmp_path: Path
) -> None:
    if reason := injected.missing():
        pytest.skip(reason)
    if ask is fetch and not bench.folder.is_relative_to("/dev/shm"):
        pytest.skip("there is no file system in memory, where moves are renames for certain")
    with (
        Injected(tmp_path, bench.folder / "root", tmp_path / "log", "--visibility", "600") as daemon,
        Visitor(daemon) as client,
    ):
        assert client.create()
        for _ in range(20):
            assert client.publish(8)
        for _ in range(5):
            client.remove(str(client.fetch()))
            assert client.fetch()
        daemon.fail(point, errno.EIO)
        client.soon(lambda: not ask(client))
        daemon.heal(point)
        assert_stays_failed(client)
        daemon.kill()
        daemon.start()
        assert client.is_ready()
        client.fetch_all()
        client.remove_all()
        daemon.stop()
        assert_empty(bench.folder / "root")
