"""Who is it? Counted in computations of the slow hash, so that no clock is needed to see what takes as long as what."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mq.access import Access, hashes
from mq.access.access import REMEMBERED_SECONDS
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
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(path: Path, clock: Clock) -> Access:
    return Access(write_users(path, USERS), clock)


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


def test_a_token_says_who_it_is(access: Access) -> None:
    assert name_of(access.by_token(TOKEN)) == "alice"
    assert name_of(access.by_token(OTHER_TOKEN)) == "bob"
    assert access.by_token("mq_" + "x" * 43) is None
    assert access.by_token(PASSWORD) is None


def test_a_token_is_taken_for_a_password_of_its_own_user_only(access: Access) -> None:
    assert name_of(access.recall("alice", TOKEN)) == "alice"
    assert access.recall("bob", TOKEN) is None
    assert access.recall("nobody", TOKEN) is None
    assert access.verify("bob", TOKEN) is None


def test_a_password_is_verified_and_then_remembered_for_a_while(
    access: Access, clock: Clock, slow_hashes: list[object]
) -> None:
    assert access.recall("alice", PASSWORD) is None
    assert name_of(access.verify("alice", PASSWORD)) == "alice"
    assert name_of(access.recall("alice", PASSWORD)) == "alice"
    assert name_of(access.verify("alice", PASSWORD)) == "alice"
    assert len(slow_hashes) == 1
    clock.now += REMEMBERED_SECONDS
    assert access.recall("alice", PASSWORD) is None


def test_what_is_wrong_is_never_remembered(access: Access) -> None:
    access.verify("alice", PASSWORD)
    for name, password in (("alice", "wrong"), ("bob", PASSWORD), ("nobody", PASSWORD), ("alice", ""), ("", "")):
        assert access.recall(name, password) is None
        assert access.verify(name, password) is None
        assert access.recall(name, password) is None


def test_nothing_that_was_remembered_stands_in_memory_as_it_was_typed(access: Access) -> None:
    access.verify("alice", PASSWORD)
    assert PASSWORD not in repr(vars(access._book))
    assert TOKEN not in repr(vars(access._book))


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("bob", "wrong"), ("nobody", "wrong"), ("", "")])
def test_a_wrong_name_takes_as_long_as_a_wrong_password(
    access: Access, slow_hashes: list[tuple[int, int, int]], name: str, password: str
) -> None:
    assert access.verify(name, password) is None
    assert slow_hashes == [(2, 1, 1)]  # one, at the cost of the hashes in the file


def test_a_new_file_counts_at_once(access: Access, path: Path) -> None:
    access.verify("alice", PASSWORD)
    write_users(path, '[users.alice]\ntokens = ["OTHER_TOKEN"]')
    assert access.reload() == 1
    assert access.recall("alice", PASSWORD) is None
    assert access.verify("alice", PASSWORD) is None
    assert access.by_token(TOKEN) is None
    assert name_of(access.by_token(OTHER_TOKEN)) == "alice"


def test_a_wrong_new_file_changes_nothing(access: Access, path: Path) -> None:
    access.verify("alice", PASSWORD)
    path.write_text("[users.alice]\nfly = true")
    with pytest.raises(InvalidSetting, match="fly"):
        access.reload()
    assert name_of(access.by_token(TOKEN)) == "alice"
    assert name_of(access.recall("alice", PASSWORD)) == "alice"


def test_what_is_verified_while_the_file_changes_is_not_remembered(
    access: Access, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = hashlib.scrypt

    def change_meanwhile(*args: object, **more: object) -> bytes:
        path.write_text('[users.alice]\npublish = ["q"]')
        access.reload()
        return compute(*args, **more)

    monkeypatch.setattr(hashes.hashlib, "scrypt", change_meanwhile)
    access.verify("alice", PASSWORD)
    assert access.recall("alice", PASSWORD) is None
