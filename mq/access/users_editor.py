"""Changes of users by ``mq user``: of the file, or of a cluster. People may edit the file, too: their comments stay.

A change is a new file under a temporary name, synced, then renamed over the old one: a daemon that reads it at any
instant finds the old users or the new ones. A crash may leave a ``.NAME.XXXX.tmp`` beside it, which means nothing.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from mq.access.aws_keys import AwsKey, new_key, parse_keys, path_of_keys, read_keys
from mq.access.hashes import KeptToken, PasswordHash, new_token, token_hash
from mq.access.rights import Right
from mq.access.user_limits import KEYS, NO_LIMITS, UserLimits, limits_of
from mq.access.users_file import Account, check_user_name, parse_users, uid_of_login
from mq.errors import InvalidSetting
from mq.message import shorten

_HEAD: Final = (
    "# mq users (docs/access.md). This file contains hashes but no secrets. Send SIGHUP to mq after a change."
)
_HEAD_OF_KEYS: Final = "# AWS keys of mq users (docs/sqs.md). The secrets are in plain text: protect this file."
_MODE: Final = 0o600


class UsersEditor(ABC):
    """Changes users, wherever they are kept."""

    @abstractmethod
    def accounts(self) -> tuple[Account, ...]:
        """The users, as they are now.

        Raises:
            InvalidSetting: they cannot be read, or are wrong.
        """

    @abstractmethod
    def changing(self) -> AbstractContextManager[Any]:
        """The tables of users by name, to be changed in the block. Nothing changes when the block raises.

        Raises:
            InvalidSetting: they cannot be changed, or would be wrong.
        """

    def add(
        self,
        name: str,
        rights: Mapping[Right, Sequence[str]],
        password: str | None,
        unix: str | None = None,
        *,
        only_aws_key: bool = False,
        limits: UserLimits = NO_LIMITS,
    ) -> str | None:
        """Add a user.

        Args:
            password: None makes a token instead, where there is no login name either.
            unix: the login name of a user of this machine, valid over a Unix socket; None for none.
            only_aws_key: the user is to have an AWS key (:meth:`add_aws_key`), and needs no token.

        Returns:
            The token, which stands nowhere else. None where there is another way in.

        Raises:
            InvalidSetting: there is such a user, no user of this machine has that login name, or the file cannot be
                changed.
        """
        check_user_name(name)
        table: dict[str, Any] = {}
        token = None
        if unix is not None:
            if uid_of_login(unix) is None:
                raise InvalidSetting(
                    f"login name {shorten(unix)} cannot be used: the user does not exist on this machine, or is the "
                    'system user "nobody"'
                )
            table["unix"] = unix
        if password is not None:
            table["password"] = str(PasswordHash.of(password))
        elif unix is None and not only_aws_key:
            token = new_token()
            table["tokens"] = [token_hash(token)]
        for right, patterns in rights.items():
            table[right.value] = list(patterns)
        table |= limits.table()
        with self.changing() as users:
            if name in users:
                raise InvalidSetting(
                    f"user {name} already exists. Remove the user, or create another token for the user"
                )
            users[name] = table
        return token

    def limit(self, name: str, changes: Mapping[str, float | None]) -> UserLimits:
        """Change limits of a user.

        Args:
            changes: values by their keys in the users file (:data:`mq.access.user_limits.KEYS`); None takes a limit
                away, and those that are not named stay.

        Returns:
            The limits as they are now.

        Raises:
            InvalidSetting: there is no such user, a value is wrong, or nothing can be changed.
        """
        with self.changing() as users:
            table = _known(users, name)
            for key, value in changes.items():
                if value is not None:
                    table[key] = value
                elif key in table:
                    del table[key]
            return limits_of({key: table[key] for key in KEYS if key in table})

    def remove(self, name: str) -> None:
        """Remove a user.

        Raises:
            InvalidSetting: there is none, or nothing can be changed.
        """
        with self.changing() as users:
            _known(users, name)
            del users[name]

    def add_token(self, name: str, *, only: bool, expires: int | None = None) -> str:
        """Give a user one more token, beside the others, so that clients can change over one by one.

        Args:
            expires: when it counts no more, in seconds since 1970; None for never.

        Returns:
            The token, which stands nowhere else.

        Raises:
            InvalidSetting: there is no such user, or the file cannot be changed.
        """
        token = new_token()
        kept = str(KeptToken(str(token_hash(token)), expires))
        with self.changing() as users:
            table = _known(users, name)
            table["tokens"] = [*([] if only else table.get("tokens", [])), kept]
            if only:
                table.pop("password", None)
        return token

    def retire(self, name: str) -> int:
        """Take away all tokens of a user but the newest, which is the last one.

        Returns:
            How many count no more.

        Raises:
            InvalidSetting: there is no such user, or the file cannot be changed.
        """
        with self.changing() as users:
            table = _known(users, name)
            tokens = table.get("tokens", [])
            count = max(len(tokens) - 1, 0)
            del tokens[:count]
        return count


class UsersFile(UsersEditor):
    """A file of users, to be changed. Programs that change it in this way take turns.

    Args:
        path: of the file; made by the first user. Behind a symbolic link it is the link's target that changes.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.realpath(path))

    def accounts(self) -> tuple[Account, ...]:
        """The users, as they stand there."""
        return parse_users(self._read(), str(self._path))

    def remove(self, name: str) -> None:
        """Remove a user, with the AWS keys."""
        with self.changing() as users:
            _known(users, name)
            self._change_keys(name, None, only=True)  # before the user: a later one of that name must not have them
            del users[name]

    def add_aws_key(self, name: str, *, only: bool = False) -> AwsKey:
        """Give a user one more AWS key, beside the others, so that clients can change over one by one.

        Args:
            only: the others count no more.

        Returns:
            The key. The file that has it can be read by its owner alone.

        Raises:
            InvalidSetting: there is no such user, or a file cannot be changed.
        """
        key = new_key(name)
        with self.changing() as users:
            _known(users, name)
            self._change_keys(name, key, only=only)
        return key

    def aws_keys(self, name: str) -> list[str]:
        """The ids of a user's AWS keys.

        Raises:
            InvalidSetting: the file of keys cannot be read or is wrong.
        """
        return [key.id for key in read_keys(path_of_keys(str(self._path))) if key.user == name]

    def _change_keys(self, name: str, added: AwsKey | None, *, only: bool) -> None:
        """Change the AWS keys of a user. The folder is locked."""
        path = Path(path_of_keys(str(self._path)))
        kept = [key for key in read_keys(str(path)) if not (only and key.user == name)]
        keys = [*kept, *([] if added is None else [added])]
        if not keys and not path.exists():
            return
        document = tomlkit.parse(path.read_text("utf-8") if path.exists() else _HEAD_OF_KEYS)
        table = document.setdefault("keys", tomlkit.table(is_super_table=True))
        for id in [id for id in table if id not in {key.id for key in keys}]:
            del table[id]
        if added is not None:
            table[added.id] = {"user": added.user, "secret": added.secret}
        changed = tomlkit.dumps(document)
        parse_keys(tomlkit.parse(changed).unwrap(), str(path))
        _replace(path, changed.encode(), like=self._path)

    def _read(self) -> str:
        try:
            return self._path.read_text("utf-8")
        except FileNotFoundError:
            return _HEAD
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(f"cannot read the users file {_shown(self._path)}: {_reason(error)}") from error

    @contextmanager
    def changing(self) -> Iterator[Any]:
        """The table of users, to be changed in the block. Nothing changes when the block raises."""
        try:
            with _locked(self._path.parent) as folder:
                text = self._read()
                parse_users(text, str(self._path))  # what is wrong stays as it is, and is told
                document = tomlkit.parse(text)
                yield document.setdefault("users", tomlkit.table(is_super_table=True))
                changed = tomlkit.dumps(document)
                parse_users(changed, str(self._path))
                _replace(self._path, changed.encode())
                os.fsync(folder)
        except (OSError, TOMLKitError) as error:
            raise InvalidSetting(f"cannot change the users file {_shown(self._path)}: {_reason(error)}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes, like: Path | None = None) -> None:
    """Replace a file durably, with the same owner and mode. With `like` only its owner may read it, and a new file has
    the owner of the file `like`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with open(descriptor, "wb") as file:
            _keep_owner(path if like is None or path.exists() else like, descriptor)
            if like is not None:
                os.fchmod(descriptor, _MODE)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.rename(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give the new file the owner of the old one, so that the same daemon can read it."""
    with suppress(FileNotFoundError):
        old, new = path.stat(), os.fstat(descriptor)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, old.st_mode & 0o777)


def _known(users: Any, name: str) -> Any:
    if name not in users:
        raise InvalidSetting(f"user {shorten(name)} does not exist")
    return users[name]


def _shown(path: Path) -> str:
    return shorten(str(path), 200)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
