"""Whose turn it is on a root: one at a time, free when it ends, and only where locks are kept."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mq.errors import StorageUnusable
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import Mount
from mq.storage.files.turn import open_turn
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from mq.storage.registry import open_storage

OPTIONS = StorageOptions()

_HOLD = """
import sys
from mq.storage.files.turn import open_turn
from mq.storage.options import StorageOptions
turn = open_turn(sys.argv[1], StorageOptions())
print(turn.take(), flush=True)
sys.stdin.read()
"""


def test_one_at_a_time(tmp_path: Path) -> None:
    turns = [open_turn(str(tmp_path / "root"), OPTIONS) for _ in range(2)]
    assert [turn.take() for turn in turns] == [True, False]
    turns[0].close()
    assert turns[1].take()
    turns[1].close()


def test_it_is_free_when_the_process_is_killed(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        turn = open_turn(root, OPTIONS)
        assert not turn.take()
    finally:
        holder.kill()
        holder.communicate()
    assert turn.take()
    turn.close()


async def test_the_root_is_served_meanwhile_and_what_is_there_disturbs_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    turn = open_turn(str(root), OPTIONS)
    assert turn.take()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(turn.socket)
    assert (root / "state/turn").is_socket()
    for _ in range(2):
        async with open_storage(f"posix:{root}") as storage:
            await put_record(storage, "queue", "q", {"created": 1})
    turn.close()


def test_the_path_of_the_socket_is_short_wherever_the_root_is(tmp_path: Path) -> None:
    turn = open_turn(str(tmp_path / "/".join(["deep" * 20] * 3)), OPTIONS)
    assert len(turn.socket) < 40
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(turn.socket)
    turn.close()


def test_it_is_refused_where_a_lock_can_be_lost(tmp_path: Path) -> None:
    with pytest.raises(
        StorageUnusable, match="on nfs4, a network file system, where a running daemon can lose its lock"
    ):
        open_turn(str(tmp_path / "root"), OPTIONS, mount=Mount("nfs4", remote=True))
    assert not (tmp_path / "root").exists()


def test_it_is_refused_where_one_lock_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = open_turn(str(tmp_path / "root"), OPTIONS)
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    with pytest.raises(StorageUnusable, match="grants the same lock to two processes"):
        turn.take()
    turn.close()


def test_a_root_of_a_stranger_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    open_turn(str(root), OPTIONS).close()
    (root / "state").chmod(0o777)
    with pytest.raises(StorageUnusable, match="every user of this machine can write to"):
        open_turn(str(root), OPTIONS)


def test_a_folder_that_cannot_be_made_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnusable, match="choose a folder as --root"):
        open_turn(str(tmp_path / "file"), OPTIONS, LinuxCalls(None))
