"""The file of users, read: TOML, a table for each user. No secret stands in it, only hashes."""

from __future__ import annotations

import logging
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mq.access.hashes import PasswordHash, is_token_hash
from mq.access.rights import Right, User
from mq.errors import InvalidSetting
from mq.message import shorten

logger = logging.getLogger(__name__)

LONGEST_PATTERN: Final = 255

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}")
_KEYS: Final = ("password", "tokens", *Right)


class Account(NamedTuple):
    """One user of the file.

    Attributes:
        user: the name and the rights.
        password: its hash, or None.
        tokens: their hashes.
    """

    user: User
    password: PasswordHash | None
    tokens: tuple[str, ...]


def read_users(path: str) -> tuple[Account, ...]:
    """The users of a file, in its order. Warns when others than its owner and group may read it.

    Raises:
        InvalidSetting: it cannot be read or is wrong; the text names the file and the key, and quotes no value.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise InvalidSetting(f"cannot read the users file {shorten(path, 200)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"the users file {shorten(path, 200)} is not UTF-8") from error
    warn_if_open(path)
    return parse_users(text, path)


def parse_users(text: str, path: str) -> tuple[Account, ...]:
    """The users in the text of a file.

    Raises:
        InvalidSetting: as in :func:`read_users`.
    """
    try:
        file = tomllib.loads(text)
    except ValueError as error:
        raise InvalidSetting(f"the users file {shorten(path, 200)} is not TOML: {error}") from error
    except RecursionError:
        raise InvalidSetting(f"the users file {shorten(path, 200)} is nested too deep") from None
    for key in file:
        _hold(key == "users", path, shorten(key), "unknown; known: users")
    users = file.get("users", {})
    _hold(isinstance(users, dict), path, "users", "must be a table")
    accounts = tuple(_account(path, name, table) for name, table in users.items())
    _check_tokens_differ(accounts, path)
    return accounts


def check_user_name(name: str) -> None:
    """Whether a user may be called that.

    Raises:
        InvalidSetting: no.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidSetting(
            f"not a user's name: {shorten(name)}. Use 1 to 100 letters, digits and . _ @ -, "
            "beginning with a letter, a digit or _"
        )


def is_pattern(text: object) -> bool:
    """Whether `text` may stand for queues: printable, not too long."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_PATTERN and text.isprintable()


def warn_if_open(path: str) -> None:
    """Warn when everybody on the machine may read a file that should be its owner's."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return  # whoever reads it says so
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        logger.warning("%s is open to every user of this machine: chmod o-rw it", path)


def _account(path: str, name: str, table: Any) -> Account:
    where = f"users.{shorten(name)}"
    _hold(_NAME.fullmatch(name) is not None, path, where, "not a user's name")
    _hold(isinstance(table, dict), path, where, "must be a table")
    for key in table:
        _hold(key in _KEYS, path, f"{where}.{shorten(key)}", "unknown; known: " + ", ".join(_KEYS))
    rights = {right: _patterns(path, where, right, table) for right in Right if right in table}
    return Account(User(name, rights), _password(path, where, table), _tokens(path, where, table))


def _patterns(path: str, where: str, right: Right, table: Mapping[str, Any]) -> tuple[str, ...]:
    patterns = table[right]
    is_right = isinstance(patterns, list) and all(is_pattern(pattern) for pattern in patterns)
    _hold(is_right, path, f"{where}.{right}", 'must be a list of patterns of queue names, such as ["orders.*"]')
    return tuple(patterns)


def _password(path: str, where: str, table: Mapping[str, Any]) -> PasswordHash | None:
    if "password" not in table:
        return None
    try:
        return PasswordHash.parse(str(table["password"]))
    except ValueError as error:
        raise _wrong(path, f"{where}.password", f"{error}: mq user makes one") from None


def _tokens(path: str, where: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = table.get("tokens", [])
    is_right = isinstance(tokens, list) and all(isinstance(token, str) and is_token_hash(token) for token in tokens)
    _hold(is_right, path, f"{where}.tokens", 'must be a list of "sha256:..." hashes: mq user makes them')
    return tuple(tokens)


def _check_tokens_differ(accounts: tuple[Account, ...], path: str) -> None:
    owners: dict[str, str] = {}
    for account in accounts:
        for token in account.tokens:
            owner = owners.setdefault(token, account.user.name)
            same = owner == account.user.name
            _hold(same, path, f"users.{shorten(account.user.name)}.tokens", f"{owner} has the same token")


def _hold(condition: bool, path: str, key: str, problem: str) -> None:
    if not condition:
        raise _wrong(path, key, problem)


def _wrong(path: str, key: str, problem: str) -> InvalidSetting:
    return InvalidSetting(f"{key} in the users file {shorten(path, 200)}: {problem}")
