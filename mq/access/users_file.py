"""The file of users, read: TOML, a table for each user. No secret stands in it, only hashes."""

from __future__ import annotations

import logging
import pwd
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mq.access import user_limits
from mq.access.hashes import KeptToken, PasswordHash
from mq.access.rights import Right, User
from mq.errors import InvalidSetting
from mq.message import shorten

logger = logging.getLogger(__name__)

LONGEST_PATTERN: Final = 255

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}")
_KEYS: Final = ("password", "tokens", "certificate", "unix", *Right, *user_limits.KEYS)
_OF_CLUSTER: Final = "of the cluster"
_OVERFLOW_UID: Final = 65_534
"""The number that the kernel gives for every user of another user namespace."""


class Account(NamedTuple):
    """One user of the file.

    Attributes:
        password: its hash, or None.
        certificate: the common name of the certificate that is theirs, or None.
        unix: the login name on this machine by which they are known over a Unix socket, or None.
    """

    user: User
    password: PasswordHash | None
    tokens: tuple[KeptToken, ...]
    certificate: str | None = None
    unix: str | None = None


def read_users(path: str) -> tuple[Account, ...]:
    """The users of a file, in its order. Warns when others than its owner and group may read it.

    Raises:
        InvalidSetting: it cannot be read or is wrong, or others than its owner may change it; the text names the file
            and the key, and quotes no value.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise InvalidSetting(f"cannot read the users file {shorten(path, 200)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"the users file {shorten(path, 200)} is not encoded in UTF-8") from error
    check_modes(path, "the users file")
    return parse_users(text, path)


def parse_users(text: str, path: str) -> tuple[Account, ...]:
    """The users in the text of a file.

    Raises:
        InvalidSetting: as in :func:`read_users`.
    """
    try:
        file = tomllib.loads(text)
    except ValueError as error:
        raise InvalidSetting(f"the users file {shorten(path, 200)} is not valid TOML: {error}") from error
    except RecursionError:
        raise InvalidSetting(f"the tables in the users file {shorten(path, 200)} are nested too deeply") from None
    for key in file:
        _hold(key == "users", path, shorten(key), "unknown key; the only known key is users")
    users = file.get("users", {})
    _hold(isinstance(users, dict), path, "users", "must be a table")
    accounts = tuple(_account(path, name, table) for name, table in users.items())
    _check_tokens_differ(accounts, path)
    _check_certificates_differ(accounts, path)
    return accounts


def shared_account(name: str, table: Mapping[str, Any]) -> Account:
    """A user of a cluster, by the table that a users file would have.

    Raises:
        InvalidSetting: the name or the table is wrong, or it names a login of one machine.
    """
    account = _account(_OF_CLUSTER, name, table)
    _hold(
        account.unix is None,
        _OF_CLUSTER,
        f"users.{name}.unix",
        "a login name is only valid on one machine. Use the node's users file",
    )
    return account


def users_by_uid(accounts: Iterable[Account], path: str) -> dict[int, User]:
    """The users with login names on this machine, by number. Warns of names that no login has: an account that
    was removed stops no daemon.

    Raises:
        InvalidSetting: two of them are the same user of the machine.
    """
    found: dict[int, User] = {}
    for account in accounts:
        if account.unix is None:
            continue
        key = f"users.{shorten(account.user.name)}.unix"
        uid = uid_of_login(account.unix)
        if uid is None:
            logger.warning(
                "the login name in entry %s of the users file %s does not exist on this machine",
                key,
                shorten(path, 200),
            )
            continue
        owner = found.setdefault(uid, account.user)
        _hold(owner is account.user, path, key, f"user {owner.name} has the same login name")
    return found


def uid_of_login(name: str) -> int | None:
    """The number of a user of this machine; None without such a user, or where the kernel cannot tell it from
    others."""
    try:
        uid = pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # a zero byte in it
        return None
    return None if uid == _OVERFLOW_UID else uid


def check_user_name(name: str) -> None:
    """Check a user's name.

    Raises:
        InvalidSetting: it is not allowed.
    """
    if not is_user_name(name):
        raise InvalidSetting(
            f"invalid user name: {shorten(name)}. Use 1 to 100 characters: letters, digits and any of . _ @ - (the "
            "first must be a letter, a digit or _)"
        )


def is_user_name(name: str) -> bool:
    """Whether a user's name is allowed."""
    return _NAME.fullmatch(name) is not None


def is_pattern(text: object) -> bool:
    """Whether `text` may stand for queues: printable, not too long."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_PATTERN and text.isprintable()


def check_modes(path: str, what: str, *, is_public: bool = False) -> None:
    """Refuse a file that others than its owner may change: they could give themselves every right. Warn when every user
    of the machine may read it.

    Args:
        path: of the file. A missing one is its reader's to tell.

    Raises:
        InvalidSetting: its group or every user may write to it.
    """
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "every user of this machine" if mode & stat.S_IWOTH else "its group"
        raise InvalidSetting(
            f"{what} {shorten(path, 200)} can be modified by {who}. Check the file for unwanted changes, then run "
            "chmod go-w on the file"
        )
    if mode & stat.S_IROTH and not is_public:
        logger.warning("every user of this machine can read the file %s. Restrict access with chmod o-r", path)


def _account(path: str, name: str, table: Any) -> Account:
    where = f"users.{shorten(name)}"
    _hold(is_user_name(name), path, where, "invalid user name")
    _hold(isinstance(table, dict), path, where, "must be a table")
    for key in table:
        _hold(key in _KEYS, path, f"{where}.{shorten(key)}", "unknown key. Valid keys: " + ", ".join(_KEYS))
    rights = {right: _patterns(path, where, right, table) for right in Right if right in table}
    _check_limits(path, where, table)
    certificate = table.get("certificate")
    is_right = certificate is None or is_pattern(certificate)
    _hold(is_right, path, f"{where}.certificate", "must be the common name of a client certificate")
    unix = table.get("unix")
    _hold(unix is None or is_pattern(unix), path, f"{where}.unix", "must be a login name on this machine")
    password, tokens = _password(path, where, table), _tokens(path, where, table)
    return Account(User(name, rights, user_limits.limits_of(table)), password, tokens, certificate, unix)


def _check_limits(path: str, where: str, table: Mapping[str, Any]) -> None:
    for key in user_limits.KEYS:
        is_right = key not in table or user_limits.is_limit(key, table[key])
        known = "a number greater than 0" if key == "max_publish_rate" else "a whole number, 0 or greater"
        _hold(is_right, path, f"{where}.{key}", f"must be {known}. Remove the key for no limit")


def _patterns(path: str, where: str, right: Right, table: Mapping[str, Any]) -> tuple[str, ...]:
    patterns = table[right]
    is_right = isinstance(patterns, list) and all(is_pattern(pattern) for pattern in patterns)
    _hold(is_right, path, f"{where}.{right}", 'must be a list of queue name patterns, such as ["orders.*"]')
    return tuple(patterns)


def _password(path: str, where: str, table: Mapping[str, Any]) -> PasswordHash | None:
    if "password" not in table:
        return None
    try:
        return PasswordHash.parse(str(table["password"]))
    except ValueError as error:
        raise _wrong(path, f"{where}.password", f"{error}. Create a new password or token with mq user") from None


def _tokens(path: str, where: str, table: Mapping[str, Any]) -> tuple[KeptToken, ...]:
    tokens = table.get("tokens", [])
    is_right = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    _hold(is_right, path, f"{where}.tokens", 'must be a list of "sha256:..." hashes, as created by mq user')
    try:
        return tuple(map(KeptToken.parse, tokens))
    except ValueError as error:
        raise _wrong(path, f"{where}.tokens", f"{error}. Create a new password or token with mq user") from None


def _check_tokens_differ(accounts: tuple[Account, ...], path: str) -> None:
    owners: dict[str, str] = {}
    for account in accounts:
        for token in account.tokens:
            owner = owners.setdefault(token.hash, account.user.name)
            same = owner == account.user.name
            _hold(same, path, f"users.{shorten(account.user.name)}.tokens", f"{owner} has the same token")


def _check_certificates_differ(accounts: tuple[Account, ...], path: str) -> None:
    owners: dict[str, str] = {}
    for account in accounts:
        if account.certificate is not None:
            name = account.user.name
            owner = owners.setdefault(account.certificate, name)
            _hold(owner == name, path, f"users.{shorten(name)}.certificate", f"{owner} has the same certificate name")


def _hold(condition: bool, path: str, key: str, problem: str) -> None:
    if not condition:
        raise _wrong(path, key, problem)


def _wrong(path: str, key: str, problem: str) -> InvalidSetting:
    if path == _OF_CLUSTER:
        return InvalidSetting(f"{path}: {key}: {problem}")
    return InvalidSetting(f"invalid entry {key} in the users file {shorten(path, 200)}: {problem}")
