"""Limits of users in the users file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.access import Right, UserDirectory, owner_of
from mq.access.user_limits import NO_LIMITS, UserLimits
from mq.access.users_editor import UsersFile
from mq.access.users_file import parse_users, shared_account
from mq.errors import InvalidSetting
from tests.access.files import TOKEN, write_users
from tests.cases import for_each

LIMITED = '[users.shop]\ntokens = ["TOKEN"]\nmax_connections = 5\nmax_queues = 0\nmax_publish_rate = 2.5\n'


def limits_in(text: str) -> UserLimits:
    [account] = parse_users(text, "users.toml")
    return account.user.limits


def test_file_without_limits_sets_none() -> None:
    assert limits_in("[users.shop]\n") == NO_LIMITS


def test_file_sets_each_limit() -> None:
    text = "[users.shop]\nmax_connections = 5\nmax_queues = 0\nmax_publish_rate = 2.5\n"
    assert limits_in(text) == UserLimits(connections=5, queues=0, publish_rate=2.5)
    assert shared_account("shop", {"max_queues": 7}).user.limits == UserLimits(queues=7)


@for_each("key", ["max_connections", "max_queues", "max_publish_rate"])
@for_each("value", ["-1", "true", '"5"', "10000000000", "nan", "inf", "[5]"])
def test_wrong_limit_is_refused_without_its_value(key: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=rf'users."shop".{key} in the users file .* number'):
        limits_in(f"[users.shop]\n{key} = {value}\n")


@pytest.mark.parametrize(("key", "value"), [("max_connections", 1.5), ("max_queues", 1.0), ("max_publish_rate", 0)])
def test_only_a_rate_has_fractions_and_no_rate_is_zero(key: str, value: Any) -> None:
    with pytest.raises(InvalidSetting):
        limits_in(f"[users.shop]\n{key} = {value}\n")


def test_reload_applies_new_limits(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    access = UserDirectory(write_users(path, LIMITED))
    user = access.by_token(TOKEN)
    assert user is not None
    assert owner_of(user) == ("shop", 0)
    write_users(path, '[users.shop]\ntokens = ["TOKEN"]\nmax_queues = 9\n')
    access.reload()
    again = access.again(user)
    assert again is not None
    assert again.limits == UserLimits(queues=9)
    assert owner_of(None) is None


def test_editor_sets_changes_and_takes_away_limits(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    editor = UsersFile(str(path))
    editor.add("shop", {Right.PUBLISH: ["*"]}, None, limits=UserLimits(connections=5))
    assert editor.limit("shop", {"max_queues": 3, "max_publish_rate": 0.5}) == UserLimits(5, 3, 0.5)
    assert editor.limit("shop", {"max_connections": None, "max_queues": 4}) == UserLimits(None, 4, 0.5)
    [account] = editor.accounts()
    assert account.user.limits == UserLimits(None, 4, 0.5)
    with pytest.raises(InvalidSetting, match='user "ben" does not exist'):
        editor.limit("ben", {"max_queues": 1})
