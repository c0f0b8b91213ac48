"""A root that somebody else has prepared: whom mq trusts with its folders, and that a swapped one leads it nowhere."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.doctor import check_ownership
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount
from mq.storage.files.opening import open_root
from mq.storage.files.ownership import check_root
from mq.storage.files.posix import make_posix
from mq.storage.files.stepwise.peers import PeerLease
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import QUEUE
from mq.storage.options import StorageOptions
from simulation.calls import FaultyCalls
from tests.cases import for_each
from tests.e2e.prepared import run

STRANGER: Final = 4711
TRUSTING: Final = StorageOptions(group_writable=True, root_owner=STRANGER)
MOUNT: Final = Mount("test", atomic_rename=True, ordered=True)
PEER: Final = "0123456789abcdef"
FOLDERS: Final = (
    *(".", "new", "queues", "queues/q", "delay", "remove", "state", "state/records", "state/records/queue"),
    *("state/stage", f"state/stage/{PEER}", "state/properties", "state/peers"),
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give folders to another user")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root with everything in it that a daemon, or somebody who prepares one, makes."""
    tmp_path.chmod(0o755)
    root = tmp_path / "root"
    for folder in FOLDERS:
        (root / folder).mkdir(mode=0o700)
        (root / folder).chmod(0o700)
    yield root
    for folder in FOLDERS:
        if (root / folder).is_dir():
            (root / folder).chmod(0o700)


def tree(root: Path) -> list[str]:
    """All that is below a root."""
    return sorted(str(path) for path in root.rglob("*"))


async def refusal(root: Path, options: StorageOptions = StorageOptions()) -> str:  # noqa: B008 - frozen
    """Why it is not served: in one line, and nothing was changed."""
    before = tree(root)
    storage = make_posix(str(root), options)
    with pytest.raises(StorageUnusable) as caught:
        await storage.open()
    await storage.aclose()
    assert "\n" not in str(caught.value)
    assert tree(root) == before
    return str(caught.value)


async def serve(root: Path, options: StorageOptions = StorageOptions()) -> None:  # noqa: B008 - frozen
    """It is served."""
    storage = make_posix(str(root), options)
    try:
        await storage.open()
        assert "q" in await storage.records(QUEUE)
    finally:
        await storage.aclose()


# Whom mq trusts


async def test_a_root_that_is_this_user_s_alone_is_served(root: Path) -> None:
    for folder in FOLDERS:
        (root / folder).chmod(0o755)
    await serve(root)


@as_root
@for_each("folder", FOLDERS)
async def test_another_user_s_folder_is_refused_and_may_be_trusted(root: Path, folder: str) -> None:
    os.chown(root / folder, STRANGER, STRANGER)
    text = await refusal(root)
    assert f'{folder.strip(".")}" is owned by 4711, but mq runs as root. 4711 could use symbolic links' in text
    assert "trust 4711 with --root-owner 4711" in text
    await serve(root, StorageOptions(root_owner=STRANGER))
    os.chown(root / folder, 0, 0)


@as_root
async def test_where_users_may_be_mapped_the_refusal_says_which_option_is_for_it(root: Path) -> None:
    os.chown(root, STRANGER, STRANGER)
    with pytest.raises(StorageUnusable, match="--root-owner 4711, also where nfs4 shows users by other names"):
        check_root(LinuxCalls(), str(root), StorageOptions(), Mount("nfs4", remote=True))


@for_each("folder", FOLDERS)
@for_each("mode", [0o707, 0o777, 0o1777])
async def test_a_folder_in_which_everybody_may_write_is_refused(root: Path, folder: str, mode: int) -> None:
    (root / folder).chmod(mode)
    for options in (StorageOptions(), TRUSTING):
        text = await refusal(root, options)
        assert re.search(f'every user of this machine can write to "[^"]*{folder.strip(".")}" .mode {mode:04o}.', text)
        assert "chmod go-w" in text
    (root / folder).chmod(0o700)


@for_each("folder", [folder for folder in FOLDERS if folder != "queues/q"])
async def test_a_folder_in_which_a_group_may_write_needs_a_setting(root: Path, folder: str) -> None:
    (root / folder).chmod(0o770)
    text = await refusal(root)
    assert re.search(f'the members of group .* can write to "[^"]*{folder.strip(".")}" ', text)
    assert "(mode 0770)" in text
    assert "trust the group with --group-writable" in text
    await serve(root, StorageOptions(group_writable=True))
    (root / folder).chmod(0o700)


async def test_a_queue_in_which_a_group_may_write_is_worth_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "queues/q").chmod(0o770)
    await serve(root)
    assert any('these queue folders are group-writable: "q"' in message for message in caplog.messages)
    caplog.clear()
    await serve(root, StorageOptions(group_writable=True))
    assert not caplog.text


@as_root
async def test_where_the_group_is_trusted_its_members_make_queues(root: Path) -> None:
    os.chown(root / "queues/q", STRANGER, STRANGER)
    await serve(root, StorageOptions(group_writable=True))


async def test_no_stranger_can_put_another_root_in_its_place(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chmod(tmp_path, 0o777)
    text = await refusal(root, TRUSTING)
    assert "so any of them could replace the root with another folder. Restrict access to the parent folder" in text
    os.chmod(tmp_path, 0o1777)
    await serve(root)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def linked(root: Path, tmp_path: Path) -> Path:
    """The root by a link, which leads through a folder in which everybody may write."""
    (tmp_path / "open" / "deeper").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    root.rename(tmp_path / "open" / "deeper" / "root")
    (tmp_path / "link").symlink_to(tmp_path / "open" / "deeper")
    return tmp_path / "link" / "root"


async def test_a_link_above_the_root_is_followed_to_what_it_leads_through(linked: Path) -> None:
    assert re.search(
        'every user of this machine can write to the parent folder "[^"]*/open" .mode ', await refusal(linked)
    )


@as_root
async def test_a_stranger_s_folder_above_the_root_is_worth_a_warning(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    await serve(root)
    assert "is owned by 4711, who can replace the root with another folder" in caplog.text


@as_root
def test_what_moves_or_removes_besides_the_daemon_refuses_it_too(root: Path) -> None:
    os.chown(root / "remove", STRANGER, STRANGER)
    os.chown(root / "queues", STRANGER, STRANGER)
    with pytest.raises(StorageUnusable, match=r"cannot use .* is owned by 4711"):
        SourceFolder(State.REMOVED, str(root / "remove"))
    with pytest.raises(StorageUnusable, match=r"cannot use .* is owned by 4711"):
        SourceFolder(State.NEW, str(root / "new"), str(root / "queues"))
    with pytest.raises(StorageUnusable, match="is owned by 4711"):
        check_ownership(str(root), StorageOptions())
    SourceFolder(State.REMOVED, str(root / "remove"), options=TRUSTING).close()
    check_ownership(str(root), TRUSTING)


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(
    "program", ["mq --port 0 --amqp-port 0 --root {}", "mq-reaper --source {}/remove", "mq doctor --repair {}"]
)
def test_each_program_says_so_in_one_line_and_ends_with_2(root: Path, program: str) -> None:
    os.chown(root / "remove", STRANGER, STRANGER)
    name, *arguments = program.format(root).split()
    command = [Path(sys.executable).with_name(name), *arguments]
    done = run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is owned by 4711" in done.stderr
    assert done.stderr.count("\n") == 1


# Swapped between the look and the use


def prepared(root: Path, victim: Path) -> None:
    """Something to take away wherever a start takes away."""
    (victim / PEER).mkdir(parents=True)
    for folder in (root / "state/stage", root / f"state/stage/{PEER}", root / "state/properties"):
        (folder / "left").write_bytes(b"left")
    (root / "state/peers" / PEER).write_bytes(b"0" * 16)
    for folder in (victim, victim / PEER):
        (folder / "thesis").write_bytes(b"years")


def swap(folder: Path, victim: Path) -> None:
    """What a stranger does who may write above."""
    folder.rename(folder.with_name("aside"))
    folder.symlink_to(victim)


def start(calls: FaultyCalls, root: Path) -> None:
    """A start, as far as it gets."""
    with contextlib.suppress(StorageUnusable, OSError):
        open_root(calls, str(root), MOUNT, TRUSTING, peers=True).close()


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("folder", ["state/stage", f"state/stage/{PEER}", "state/properties", "state/peers"])
def test_at_no_instant_of_a_start_does_a_swapped_folder_lead_it_to_another(tmp_path: Path, folder: str) -> None:
    """All are trusted here: so nothing is refused, and only how it is done is left."""
    calls = 0
    for nth in range(1, 1000):
        root, victim = tmp_path / f"root{nth}", tmp_path / f"victim{nth}"
        for name in FOLDERS:
            (root / name).mkdir(mode=0o700)
        prepared(root, victim)
        swapping = Swapping(root, nth, folder, victim)
        start(swapping, root)
        assert (victim / "thesis").exists(), swapping.log[-1]
        assert (victim / PEER / "thesis").exists(), swapping.log[-1]
        calls = len(swapping.log)
        if calls < nth:
            break
    assert calls > 50
    assert not (root / "state/stage" / "left").exists(), "a start that is left alone takes it away"
    assert not (root / "state/properties" / "left").exists()
    assert not (root / "state/peers" / PEER).exists()


class Swapping(FaultyCalls):
    """Just before the n-th call a stranger swaps a folder."""

    def __init__(self, root: Path, nth: int, folder: str, victim: Path) -> None:
        super().__init__(LinuxCalls(), str(root))
        self._at = nth
        self._swapped = root / folder
        self._victim = victim

    def _meet(self, verb: str, path: str, detail: str = "") -> None:
        super()._meet(verb, path, detail)
        if len(self.log) == self._at and self._swapped.exists():
            swap(self._swapped, self._victim)


def test_a_dead_peer_s_folder_that_leads_elsewhere_is_left_alone(root: Path, tmp_path: Path) -> None:
    prepared(root, tmp_path / "victim")
    swap(root / f"state/stage/{PEER}", tmp_path / "victim")
    assert PeerLease(LinuxCalls(), Layout.under(str(root)), expires=False).sweep(alone=True) == 0
    assert (tmp_path / "victim/thesis").exists()
    assert not (root / "state/peers" / PEER).exists()
