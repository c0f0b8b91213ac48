"""The file of users, changed by mq: comments stay, and so do owner and mode; a crash leaves the old or the new."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mq.access import UserDirectory, users_editor
from mq.access.rights import Right
from mq.access.users_editor import UsersFile
from mq.errors import InvalidSetting
from tests.access.files import PASSWORD, TOKEN, write_users

COMMENTED = """
# who may do what

[users.alice] # since 2013
tokens = ["TOKEN"]
publish = [
    "orders.*", # the shop
]

# reads them all
[users.bob]
password = "PASSWORD"
consume = ["*"]
"""


def test_the_first_user_makes_the_file(path: Path) -> None:
    token = UsersFile(str(path)).add("alice", {Right.PUBLISH: ["orders.*"]}, None)
    assert path.stat().st_mode & 0o777 == 0o600
    user = UserDirectory(str(path)).by_token(str(token))
    assert user is not None
    assert (user.name, user.rights) == ("alice", {Right.PUBLISH: ("orders.*",)})
    assert str(token) not in path.read_text()


def test_a_user_with_a_password(path: Path) -> None:
    assert UsersFile(str(path)).add("a@b.c", {}, PASSWORD) is None
    assert UserDirectory(str(path)).verify("a@b.c", PASSWORD) is not None
    assert PASSWORD not in path.read_text()


def test_comments_stay(path: Path) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    file.add("carol", {Right.CONFIGURE: ["*"]}, None)
    file.add_token("alice", only=False)
    file.remove("bob")
    text = path.read_text()
    assert "# who may do what" in text
    assert "# since 2013" in text
    assert "# the shop" in text
    assert [account.user.name for account in file.accounts()] == ["alice", "carol"]


def test_a_token_more_or_only_one(path: Path) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    second = file.add_token("alice", only=False)
    access = UserDirectory(str(path))
    assert access.by_token(TOKEN) == access.by_token(second) != None  # noqa: E711
    third = file.add_token("alice", only=True)
    access.reload()
    assert access.by_token(TOKEN) is access.by_token(second) is None
    assert access.by_token(third) is not None


def test_a_retirement_leaves_the_newest_token(path: Path) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    second, third = file.add_token("alice", only=False), file.add_token("alice", only=False)
    assert file.retire("alice") == 2
    access = UserDirectory(str(path))
    assert access.by_token(TOKEN) is access.by_token(second) is None
    assert access.by_token(third) is not None
    assert file.retire("alice") == file.retire("bob") == 0
    assert UserDirectory(str(path)).by_token(third) is not None


def test_only_a_token_takes_the_password_away(path: Path) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    assert UserDirectory(str(path)).verify("bob", PASSWORD) is not None
    file.add_token("bob", only=True)
    assert UserDirectory(str(path)).verify("bob", PASSWORD) is None


def test_what_cannot_be_done_changes_nothing(path: Path) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    before = path.read_bytes(), path.stat().st_ino
    with pytest.raises(InvalidSetting, match="user alice already exists"):
        file.add("alice", {}, None)
    with pytest.raises(InvalidSetting, match="does not exist"):
        file.remove("zoe")
    with pytest.raises(InvalidSetting, match="does not exist"):
        file.add_token("zoe", only=False)
    with pytest.raises(InvalidSetting, match="invalid user name"):
        file.add("a:b", {}, None)
    assert (path.read_bytes(), path.stat().st_ino) == before


@pytest.mark.parametrize("text", ["[users.alice]\nfly = true\n", "users = 1\n", "[users"])
def test_a_file_that_is_wrong_is_left_as_it_is(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidSetting, match="users file"):
        UsersFile(str(path)).add("bob", {}, None)
    assert path.read_text() == text


def test_what_would_not_be_read_again_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    before = path.read_bytes()
    monkeypatch.setattr(users_editor.tomlkit, "dumps", lambda document: "[users")
    with pytest.raises(InvalidSetting, match="not valid TOML"):
        file.remove("bob")
    assert path.read_bytes() == before


def test_mode_and_owner_stay(path: Path) -> None:
    file = UsersFile(write_users(path, COMMENTED))
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    before = path.stat()
    file.remove("bob")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


def test_behind_a_link_its_target_changes(path: Path, tmp_path: Path) -> None:
    write_users(path, COMMENTED)
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    UsersFile(str(link)).remove("bob")
    assert link.is_symlink()
    assert [account.user.name for account in UsersFile(str(path)).accounts()] == ["alice"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failing_disk_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = UsersFile(write_users(path, COMMENTED))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(*((users_editor.os, "fsync") if call == "fsync" else (Path, "rename")), fail)
        with pytest.raises(InvalidSetting, match="No space left"):
            file.remove("bob")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_new_file_is_durable_before_it_has_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(users_editor.os, "fsync", lambda fd: done.append("sync") or fsync(fd))
    monkeypatch.setattr(Path, "rename", lambda old, new: done.append("rename") or rename(old, new))
    UsersFile(str(path)).add("alice", {}, None)
    assert done == ["sync", "rename", "sync"]


def test_two_that_change_it_at_once_do_both(path: Path) -> None:
    def add(name: str) -> None:
        UsersFile(str(path)).add(name, {}, None)

    names = [f"user{number}" for number in range(20)]
    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(account.user.name for account in UsersFile(str(path)).accounts()) == sorted(names)
