"""The file of AWS keys: for its owner's eyes alone, changed with its users, and never quoted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mq.access import UserDirectory
from mq.access.aws_keys import new_key, path_of_keys, read_keys
from mq.access.users_editor import UsersFile
from mq.errors import InvalidSetting

SECRET = "Very/Secret+0123456789"


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "users.toml")
    UsersFile(path).add("anna", {}, None, only_aws_key=True)
    return path


def write_keys(path: str, text: str, mode: int = 0o600) -> None:
    keys = Path(path_of_keys(path))
    keys.write_text(text)
    keys.chmod(mode)


def test_a_key_is_its_owners_and_in_a_file_of_its_own(path: str) -> None:
    key = UsersFile(path).add_aws_key("anna")
    found = UserDirectory(path).by_aws_key(key.id)
    assert found is not None
    assert (found[0].name, found[1]) == ("anna", key.secret)
    assert os.stat(path_of_keys(path)).st_mode & 0o777 == 0o600
    assert key.secret not in Path(path).read_text()
    assert key.secret not in repr(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_is_open_to_others_is_refused(path: str, mode: int) -> None:
    write_keys(path, f'[keys.SOMEKEY00]\nuser = "anna"\nsecret = "{SECRET}"\n', mode)
    with pytest.raises(InvalidSetting, match="chmod 600"):
        UserDirectory(path)


@pytest.mark.parametrize(
    "text",
    [
        f"secret = {SECRET}",
        f'secret = "{SECRET}"',
        f'[keys]\nx = "{SECRET}"',
        f'[keys.short]\nuser = "anna"\nsecret = "{SECRET}"',
        f'[keys.SOMEKEY00]\nuser = 1\nsecret = "{SECRET}"',
        f'[keys.SOMEKEY00]\nuser = "anna"\nsecret = "{SECRET}"\nmore = 1',
        f'[keys.SOMEKEY00]\nuser = "anna"\nsecret = "{SECRET} "',
    ],
)
def test_what_is_wrong_is_told_and_not_quoted(path: str, text: str) -> None:
    write_keys(path, text)
    with pytest.raises(InvalidSetting) as caught:
        UserDirectory(path)
    assert "AWS keys" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_comments_and_the_keys_of_others_stay(path: str) -> None:
    UsersFile(path).add("bert", {}, None, only_aws_key=True)
    write_keys(path, f'# of the office\n[keys.SOMEKEY00]\nuser = "bert"\nsecret = "{SECRET}"\n')
    first, second = (UsersFile(path).add_aws_key("anna") for _ in range(2))
    assert UsersFile(path).aws_keys("anna") == [first.id, second.id]
    third = UsersFile(path).add_aws_key("anna", only=True)
    assert [key.id for key in read_keys(path_of_keys(path))] == ["SOMEKEY00", third.id]
    assert "# of the office" in Path(path_of_keys(path)).read_text()


def test_a_later_user_of_a_name_has_no_key_of_the_earlier_one(path: str) -> None:
    key = UsersFile(path).add_aws_key("anna")
    UsersFile(path).remove("anna")
    assert UserDirectory(path).by_aws_key(key.id) is None
    UsersFile(path).add("anna", {}, None)
    assert UserDirectory(path).by_aws_key(key.id) is None


def test_no_key_is_like_another() -> None:
    assert new_key("anna")[:2] != new_key("anna")[:2]
