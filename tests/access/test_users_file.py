"""The file of users: what it may hold, and what is said when it holds something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.access.hashes import token_hash
from mq.access.rights import Right
from mq.access.users_file import read_users
from mq.errors import InvalidSetting
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users


def refusal(path: Path) -> str:
    with pytest.raises(InvalidSetting) as caught:
        read_users(str(path))
    text = str(caught.value)
    assert text.isprintable()  # so it is one line, too
    assert path.name in text
    return text


def test_all_that_it_may_hold(path: Path) -> None:
    write_users(
        path,
        """
        [users.alice]
        password = "PASSWORD"
        tokens = ["TOKEN", "OTHER_TOKEN"]
        publish = ["orders.*", "letters"]
        consume = []
        [users."bob@example.org"]
        administer = ["*"]
        """,
    )
    alice, bob = read_users(str(path))
    assert alice.user.name == "alice"
    assert alice.user.rights == {Right.PUBLISH: ("orders.*", "letters"), Right.CONSUME: ()}
    assert alice.password is not None
    assert alice.password.fits(PASSWORD)
    assert [token.hash for token in alice.tokens] == [token_hash(TOKEN), token_hash(OTHER_TOKEN)]
    assert bob.user.name == "bob@example.org"
    assert (bob.password, bob.tokens) == (None, ())


def test_an_empty_file_has_no_users(path: Path) -> None:
    assert read_users(write_users(path, "")) == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("user = 1", '"user"'),
        ("users = 1", "users"),
        ("[users]\nalice = 1", 'users."alice"'),
        ('[users."a b"]', 'users."a b"'),
        ('[users."a:b"]', 'users."a:b"'),
        ("[users.alice]\nconsumes = []", 'users."alice"."consumes"'),
        ("[users.alice]\nconsume = 'q'", 'users."alice".consume'),
        ("[users.alice]\nconsume = [1]", 'users."alice".consume'),
        ("[users.alice]\nconsume = ['']", 'users."alice".consume'),
        ("[users.alice]\nconsume = ['a\tb']", 'users."alice".consume'),
        ("[users.alice]\npassword = 'hunter2'", 'users."alice".password'),
        ("[users.alice]\nunix = 1000", 'users."alice".unix'),
        ("[users.alice]\nunix = ''", 'users."alice".unix'),
        ("[users.alice]\npassword = 7", 'users."alice".password'),
        ("[users.alice]\ntokens = 'hunter2'", 'users."alice".tokens'),
        ("[users.alice]\ntokens = ['hunter2']", 'users."alice".tokens'),
        ("[users.alice]\ntokens = ['TOKEN until tomorrow']", 'users."alice".tokens'),
        ("[users.alice]\ntokens = ['TOKEN until 2026-13-24T19:00:00Z']", 'users."alice".tokens'),
        ("[users.alice]\ncertificate = 7", 'users."alice".certificate'),
        ("[users.alice]\ncertificate = 'c'\n[users.bob]\ncertificate = 'c'", 'users."bob".certificate'),
        ("[users.alice]\ntokens = [7]", 'users."alice".tokens'),
        ("[users.alice]\ntokens = ['TOKEN']\n[users.bob]\ntokens = ['TOKEN']", 'users."bob".tokens'),
    ],
)
def test_what_is_wrong_is_named_and_no_value_quoted(path: Path, text: str, key: str) -> None:
    write_users(path, text)
    told = refusal(path)
    assert told.startswith(f"invalid entry {key} in the users file ")
    assert "hunter2" not in told


def test_what_is_nested_too_deep_is_told(path: Path) -> None:
    path.write_bytes(b"users = " + b"[" * 100_000)
    assert "nested too deep" in refusal(path)


@pytest.mark.parametrize("data", [b"[users.alice", b"password = hunter2", b"\xff", b"[users.a]\n[users.a]"])
def test_what_is_not_toml_is_told(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    told = refusal(path)
    assert "is not valid TOML" in told or "is not encoded in UTF-8" in told
    assert "hunter2" not in told


def test_a_file_that_is_not_there_is_told(path: Path) -> None:
    assert "No such file" in refusal(path)


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o604, True), (0o644, True)])
def test_a_file_that_is_open_to_all_is_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_open: bool
) -> None:
    write_users(path, "")
    path.chmod(mode)
    read_users(str(path))
    assert ("every user of this machine can read the file" in caplog.text) is is_open


@pytest.mark.parametrize("mode", [0o666, 0o622, 0o602, 0o660, 0o620])
def test_users_file_that_others_may_change_is_refused(path: Path, mode: int) -> None:
    write_users(path, "")
    path.chmod(mode)
    told = refusal(path)
    assert "can be modified by" in told
    assert "chmod go-w" in told
