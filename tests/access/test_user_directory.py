"""Who is it? Counted in computations of the slow hash, so that no clock is needed to see what takes as long as what."""

from __future__ import annotations

import hashlib
import os
import pwd
from pathlib import Path

import pytest

from mq.access import TokenExpired, UserDirectory, hashes
from mq.access.user_directory import REMEMBERED_SECONDS
from mq.errors import InvalidSetting
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users

USERS = """
[users.alice]
password = "PASSWORD"
tokens = ["TOKEN"]
[users.bob]
tokens = ["OTHER_TOKEN"]
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(path: Path, clock: Clock) -> UserDirectory:
    return UserDirectory(write_users(path, USERS), clock)


@pytest.fixture
def slow_hashes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The cost of each slow hash that was computed."""
    costs: list[tuple[int, int, int]] = []
    compute = hashlib.scrypt

    def count(data: bytes, *, n: int, r: int, p: int, **more: object) -> bytes:
        costs.append((n, r, p))
        return compute(data, n=n, r=r, p=p, **more)

    monkeypatch.setattr(hashes.hashlib, "scrypt", count)
    return costs


def name_of(user: object) -> str | None:
    return getattr(user, "name", None)


def test_a_token_says_who_it_is(access: UserDirectory) -> None:
    assert name_of(access.by_token(TOKEN)) == "alice"
    assert name_of(access.by_token(OTHER_TOKEN)) == "bob"
    assert access.by_token("mq_" + "x" * 43) is None
    assert access.by_token(PASSWORD) is None


def test_a_token_is_taken_for_a_password_of_its_own_user_only(access: UserDirectory) -> None:
    assert name_of(access.recall("alice", TOKEN)) == "alice"
    assert access.recall("bob", TOKEN) is None
    assert access.recall("nobody", TOKEN) is None
    assert access.verify("bob", TOKEN) is None


def test_a_password_is_verified_and_then_remembered_for_a_while(
    access: UserDirectory, clock: Clock, slow_hashes: list[object]
) -> None:
    assert access.recall("alice", PASSWORD) is None
    assert name_of(access.verify("alice", PASSWORD)) == "alice"
    assert name_of(access.recall("alice", PASSWORD)) == "alice"
    assert name_of(access.verify("alice", PASSWORD)) == "alice"
    assert len(slow_hashes) == 1
    clock.now += REMEMBERED_SECONDS
    assert access.recall("alice", PASSWORD) is None


def test_what_is_wrong_is_never_remembered(access: UserDirectory) -> None:
    access.verify("alice", PASSWORD)
    for name, password in (("alice", "wrong"), ("bob", PASSWORD), ("nobody", PASSWORD), ("alice", ""), ("", "")):
        assert access.recall(name, password) is None
        assert access.verify(name, password) is None
        assert access.recall(name, password) is None


def test_nothing_that_was_remembered_stands_in_memory_as_it_was_typed(access: UserDirectory) -> None:
    access.verify("alice", PASSWORD)
    assert PASSWORD not in repr(vars(access._book))
    assert TOKEN not in repr(vars(access._book))


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("bob", "wrong"), ("nobody", "wrong"), ("", "")])
def test_a_wrong_name_takes_as_long_as_a_wrong_password(
    access: UserDirectory, slow_hashes: list[tuple[int, int, int]], name: str, password: str
) -> None:
    assert access.verify(name, password) is None
    assert slow_hashes == [(2, 1, 1)]  # one, at the cost of the hashes in the file


def test_a_new_file_counts_at_once(access: UserDirectory, path: Path) -> None:
    access.verify("alice", PASSWORD)
    write_users(path, '[users.alice]\ntokens = ["OTHER_TOKEN"]')
    assert access.reload() == 1
    assert access.recall("alice", PASSWORD) is None
    assert access.verify("alice", PASSWORD) is None
    assert access.by_token(TOKEN) is None
    assert name_of(access.by_token(OTHER_TOKEN)) == "alice"


def test_a_wrong_new_file_changes_nothing(access: UserDirectory, path: Path) -> None:
    access.verify("alice", PASSWORD)
    path.write_text("[users.alice]\nfly = true")
    with pytest.raises(InvalidSetting, match="fly"):
        access.reload()
    assert name_of(access.by_token(TOKEN)) == "alice"
    assert name_of(access.recall("alice", PASSWORD)) == "alice"


def test_what_is_verified_while_the_file_changes_is_not_remembered(
    access: UserDirectory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = hashlib.scrypt

    def change_meanwhile(*args: object, **more: object) -> bytes:
        path.write_text('[users.alice]\npublish = ["q"]')
        access.reload()
        return compute(*args, **more)

    monkeypatch.setattr(hashes.hashlib, "scrypt", change_meanwhile)
    access.verify("alice", PASSWORD)
    assert access.recall("alice", PASSWORD) is None


def test_a_token_expires_and_says_so_to_who_has_it(path: Path) -> None:
    now = 0.0
    text = '[users.alice]\ntokens = ["TOKEN until 2026-12-24T19:00:00Z", "OTHER_TOKEN"]\n[users.bob]'
    access = UserDirectory(write_users(path, text), wall_clock=lambda: now)
    now = 1_798_138_799.0
    assert name_of(access.by_token(TOKEN)) == name_of(access.recall("alice", TOKEN)) == "alice"
    now += 1
    with pytest.raises(TokenExpired, match="2026-12-24T19:00:00Z"):
        access.by_token(TOKEN)
    with pytest.raises(TokenExpired, match="Create another"):
        access.recall("alice", TOKEN)
    assert access.recall("bob", TOKEN) is None
    assert name_of(access.by_token(OTHER_TOKEN)) == "alice"


def unix(login: str) -> str:
    return f'[users.us]\nunix = "{login}"\n'


def test_a_user_of_the_machine_is_known_by_number(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    us = pwd.getpwuid(os.geteuid())
    access = UserDirectory(write_users(path, USERS + unix(us.pw_name)))
    found = access.by_uid(us.pw_uid)
    assert found is not None
    assert found.name == "us"
    assert access.by_uid(us.pw_uid + 1) is None
    assert not caplog.records


def test_nobody_is_known_for_being_root_or_for_running_the_daemon(path: Path) -> None:
    access = UserDirectory(write_users(path, USERS))
    assert access.by_uid(0) is None
    assert access.by_uid(os.geteuid()) is None


@pytest.mark.parametrize("login", ["gone-by-now", "0", "nobody"])
def test_a_login_name_that_says_nobody_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture, login: str) -> None:
    """The kernel has 65534, which is nobody's number, for all whom it cannot name."""
    access = UserDirectory(write_users(path, USERS + unix(login)))
    assert access.knows("us")
    assert access.by_uid(0) is None
    assert access.by_uid(65_534) is None
    assert any('users."us".unix of the users file' in message for message in caplog.messages)
    assert access.reload() == 3


def test_two_users_cannot_be_the_same_one_of_the_machine(path: Path) -> None:
    us = pwd.getpwuid(os.geteuid()).pw_name
    write_users(path, USERS + unix(us) + unix(us).replace("[users.us]", "[users.we]"))
    with pytest.raises(InvalidSetting, match="has the same login name"):
        UserDirectory(str(path))


SHOP = {"tokens": [str(hashes.token_hash("mq_" + "s" * 43))], "publish": ["orders.*"]}


def test_users_of_the_cluster_are_beside_those_of_the_file(access: UserDirectory, path: Path) -> None:
    access.share({"shop": SHOP})
    shop, alice = access.by_token("mq_" + "s" * 43), access.by_token(TOKEN)
    assert shop is not None
    assert alice is not None
    assert (shop.name, alice.name) == ("shop", "alice")
    write_users(path, USERS.replace("alice", "eve"))
    assert access.reload() == 3, "eve, bob and shop"
    assert access.again(shop) == shop
    access.share({})
    assert (access.again(shop), access.by_token("mq_" + "s" * 43)) == (None, None)
    assert access.knows("eve")


def test_a_token_of_the_file_is_its_user_s_whatever_the_cluster_says(access: UserDirectory) -> None:
    access.share({"thief": {"tokens": [str(hashes.token_hash(TOKEN))], "administer": ["*"]}})
    user = access.by_token(TOKEN)
    assert user is not None
    assert user.name == "alice"


def test_a_user_of_the_cluster_that_this_release_does_not_understand_does_not_count(
    access: UserDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    access.share({"new": {"wings": 2}, "shop": SHOP})
    assert (access.knows("new"), access.knows("shop")) == (False, True)
    assert 'of the cluster: users."new"."wings": unknown' in caplog.text


def test_a_password_of_the_cluster_counts_until_it_is_another(access: UserDirectory) -> None:
    access.share({"shop": {"password": str(hashes.PasswordHash.of("one", hashes.Cost(2, 1, 1)))}})
    assert access.verify("shop", "one") is not None
    assert access.recall("shop", "one") is not None
    access.share({"shop": {"password": str(hashes.PasswordHash.of("two", hashes.Cost(2, 1, 1)))}})
    assert access.recall("shop", "one") is None
    assert access.verify("shop", "one") is None
