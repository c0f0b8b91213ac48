"""A Unix socket at a path: who may reach it, what is replaced, what is refused, and what is left at the end."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from mq.doors import listeners
from mq.doors.connections import NOBODY, Peer, peer_of, uid_of
from mq.doors.listeners import LONGEST_PATH, CannotListen, listen_unix
from tests.cases import for_each


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short one, whatever the folder of the tests is called."""
    monkeypatch.chdir(tmp_path)
    return "s"


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def leave_stale(path: str) -> os.stat_result:
    """What a daemon that was killed leaves behind."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    return os.lstat(path)


async def refusal(path: str) -> str:
    with pytest.raises(CannotListen) as caught:
        async with listen_unix(path, 0o600):
            pass
    text = str(caught.value)
    assert text.isprintable()  # so it is one line, too
    return text


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o177])
async def test_the_mode_is_what_was_said_whatever_the_umask(path: str, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        async with listen_unix(path, mode):
            assert mode_of(path) == mode
            assert os.umask(umask) == umask  # it is the whole process's
    finally:
        os.umask(before)


async def test_it_is_never_wider_and_takes_nobody_before_it_has_its_mode(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(file: str, mode: int) -> None:
        seen.append(mode_of(path))
        with socket.socket(socket.AF_UNIX) as early, pytest.raises(ConnectionRefusedError):
            early.connect(path)
        chmod(file, mode)

    chmod = os.chmod
    monkeypatch.setattr(os, "chmod", look)
    before = os.umask(0o022)
    try:
        async with listen_unix(path, 0o660):
            assert mode_of(path) == 0o660
    finally:
        os.umask(before)
    assert seen == [0o640]


async def test_it_is_gone_at_the_end(path: str) -> None:
    async with listen_unix(path, 0o600):
        assert os.listdir() == [path]
    assert os.listdir() == []


async def test_a_path_that_somebody_else_has_by_then_is_left_to_them(path: str) -> None:
    async with listen_unix(path, 0o600):
        os.unlink(path)
        theirs = leave_stale(path)
    assert os.path.samestat(os.lstat(path), theirs)


async def test_a_path_that_is_gone_by_then_is_no_error(path: str) -> None:
    async with listen_unix(path, 0o600):
        os.unlink(path)


async def test_a_dead_daemons_socket_is_replaced(path: str) -> None:
    leave_stale(path)
    async with listen_unix(path, 0o600) as listener:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            await (await listener.accept()).aclose()


@pytest.mark.parametrize("crowded", [False, True])
async def test_a_live_one_is_refused_and_stays(path: str, crowded: bool) -> None:
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as client:
        live.bind(path)
        live.listen(0)
        if crowded:
            client.connect(path)
        theirs = os.lstat(path)
        assert await refusal(path) == 'cannot listen on "s": another program is listening there'
        assert os.path.samestat(os.lstat(path), theirs)


async def test_two_that_begin_together_take_turns(path: str) -> None:
    leave_stale(path)
    lost = 0
    async with trio.open_nursery() as nursery:

        async def begin() -> None:
            nonlocal lost
            try:
                async with listen_unix(path, 0o600):
                    await trio.sleep_forever()
            except CannotListen:
                lost += 1

        for _ in range(3):
            nursery.start_soon(begin)
        await trio.testing.wait_all_tasks_blocked()
        while lost < 2:
            await trio.sleep(0.01)  # others hold the folder's lock for as long as that
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        nursery.cancel_scope.cancel()


def put_there(kind: str, path: str) -> None:
    if kind == "file":
        Path(path).write_text("precious")
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        os.symlink("target", path)
        if kind == "link":
            leave_stale("target")


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling", "fifo"])
async def test_anything_else_is_refused_and_stays(path: str, kind: str) -> None:
    put_there(kind, path)
    before = sorted(os.listdir())
    assert "the file exists and is not a socket" in await refusal(path)
    assert sorted(os.listdir()) == before


async def test_a_socket_of_another_kind_is_refused_and_stays(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        assert 'cannot listen on "s"' in await refusal(path)
        assert os.listdir() == [path]


async def test_a_path_that_cannot_be_is_told(tmp_path: Path) -> None:
    assert f"must not exceed {LONGEST_PATH} bytes" in await refusal("x" * (LONGEST_PATH + 1))
    assert "No such file or directory" in await refusal("nowhere/s")


async def test_a_folder_that_stays_locked_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "LOCK_SECONDS", 0.05)
    folder = os.open(".", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert "has locked the socket's folder" in await refusal(path)
    os.close(folder)
    assert os.listdir() == []


async def test_the_peer_is_a_user_of_this_machine(path: str) -> None:
    async with listen_unix(path, 0o600) as listener:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            async with await listener.accept() as stream:
                peer = peer_of(stream.socket)
    assert peer == (f"uid:{os.geteuid()}", 0)
    assert str(peer) == f"uid:{os.geteuid()}"
    assert uid_of(peer.address) == os.geteuid()
    assert peer_of(stream.socket) == NOBODY


@for_each("address", ["", "127.0.0.1", "::1", "uid:", "uid:x", "uid:-1", "uid:1\n", "uid:\u0661", "1000"])
def test_other_addresses_are_nobodys(address: str) -> None:
    assert uid_of(address) is None
    assert str(Peer("192.0.2.1", 80)) == "192.0.2.1 port 80"
