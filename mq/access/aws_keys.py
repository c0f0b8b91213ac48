"""The file of AWS keys, beside the file of users: keys that sign requests (AWS Signature Version 4), and their users.

A signature is made with the secret itself, so the secrets stand here readable. The file is its owner's alone, or mq
does not start: ``users.toml`` may be shown to others, ``users.toml.aws-keys`` may not.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mq.errors import InvalidSetting
from mq.message import shorten

SUFFIX: Final = ".aws-keys"
"""The end of its name, after the name of the users file."""

_KEY_ID: Final = re.compile(r"[A-Za-z0-9_]{8,128}")
_SECRET: Final = re.compile(r"[!-~]{16,128}")
_KEYS: Final = ("user", "secret")
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class AwsKey(NamedTuple):
    """One key.

    Attributes:
        id: what clients call ``aws_access_key_id``. It is no secret.
        secret: what they call ``aws_secret_access_key``.
    """

    id: str
    secret: str
    user: str

    def __repr__(self) -> str:
        return f"AwsKey({self.id!r}, ..., {self.user!r})"  # a log may show it


def new_key(user: str) -> AwsKey:
    """A key that no user has yet: 80 random bits, and 240."""
    id = "MQIA" + "".join(secrets.choice(_LETTERS) for _ in range(16))
    return AwsKey(id, secrets.token_urlsafe(30), user)


def path_of_keys(users: str) -> str:
    """Where the keys of the users of a file are."""
    return os.path.realpath(users) + SUFFIX


def read_keys(path: str) -> tuple[AwsKey, ...]:
    """The keys of a file, in its order; none without a file.

    Raises:
        InvalidSetting: it cannot be read, others than its owner may read it, or it is wrong. The text quotes no value.
    """
    shown = shorten(path, 200)
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InvalidSetting(f"cannot read the AWS keys file {shown}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidSetting(
            f"other users can read the AWS keys file {shown} and may know its secrets. Run chmod 600 on "
            "the file, then replace the keys"
        )
    try:
        file_keys = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        raise InvalidSetting(
            f"the AWS keys file {shown} must be valid TOML, encoded in UTF-8"
        ) from None  # its error may quote a secret
    return parse_keys(file_keys, path)


def parse_keys(file: Mapping[str, Any], path: str) -> tuple[AwsKey, ...]:
    """The keys in the tables of a file.

    Raises:
        InvalidSetting: as in :func:`read_keys`.
    """
    keys = file.get("keys", {})
    if set(file) - {"keys"} or not isinstance(keys, dict):
        raise _wrong(
            path,
            'the file must contain only the table "keys". Each entry, such as [keys."ID"], must have a user '
            "and a secret",
        )
    return tuple(_key(path, id, table) for id, table in keys.items())


def _key(path: str, id: str, table: Any) -> AwsKey:
    where = f"keys.{shorten(id)}"
    if _KEY_ID.fullmatch(id) is None:
        raise _wrong(path, f"{where} is not a valid access key ID. Create access keys with mq user aws-key")
    if not isinstance(table, dict) or set(table) != set(_KEYS):
        raise _wrong(path, f"{where} must have exactly two fields: user and secret")
    user, secret = table["user"], table["secret"]
    if not isinstance(user, str):
        raise _wrong(path, f"{where}.user must be a user name (a string)")
    if not isinstance(secret, str) or _SECRET.fullmatch(secret) is None:
        raise _wrong(
            path,
            f"{where}.secret must consist of 16 to 128 printable ASCII characters without spaces. Create a "
            "secret with mq user aws-key",
        )
    return AwsKey(id, secret, user)


def _wrong(path: str, problem: str) -> InvalidSetting:
    return InvalidSetting(f"invalid AWS keys file {shorten(path, 200)}: {problem}")
