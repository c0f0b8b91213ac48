"""The directory of users: finds a user by a secret. All servers share it, so a user is the same behind each. A node of
a cluster has the cluster's users beside those of its file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from mq.access.aws_keys import AwsKey, path_of_keys, read_keys
from mq.access.hashes import PasswordHash, time_text, token_hash
from mq.access.rights import User
from mq.access.users_file import Account, read_users, shared_account, users_by_uid
from mq.errors import Conflict, InvalidSetting, MQError

logger = logging.getLogger(__name__)

REMEMBERED_SECONDS: Final = 60.0
"""How long a verified password is accepted without computing its hash again."""


class SecretRefused(MQError):
    """The secret is refused for every user. The text is for the client."""

    why = ""


class TokenExpired(SecretRefused):
    """The token was valid once. Only its holder can see this error."""

    why = "expired token"

    def __init__(self, expired: int) -> None:
        super().__init__(f"this token expired on {time_text(expired)}. Create another one with mq user token")


class UserDirectory:
    """The users of a file, and of the cluster.

    Args:
        path: of the users file. A file of AWS keys may lie beside it.
        clock: seconds, on any clock that only goes on.
        wall_clock: seconds since 1970. Tokens expire by it.

    Raises:
        InvalidSetting: the file cannot be read or is wrong.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._clock = clock
        self._wall_clock = wall_clock
        self._shared: tuple[Account, ...] = ()
        self._own = _read(path)
        self._book = self._make()

    def reload(self) -> int:
        """Read the file anew; users and secrets that it lacks count no more, at once. Returns how many users there are.

        Raises:
            InvalidSetting: the new file is wrong; the users stay as they were.
        """
        self._own = _read(self.path)
        self._book = self._make()
        return len(self._book.accounts)

    def share(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Have these users of the cluster from now on, and no others of it. At once.

        The file goes first: a name that stands there is this node's own user, and a token or a certificate of the file
        is that user's.
        """
        accounts = []
        for name, table in tables.items():
            try:
                accounts.append(shared_account(name, table))
            except InvalidSetting as error:  # a neighbour of another version may know more of it
                logger.warning("ignoring a cluster user: %s", error)
        for name in sorted(self._own.names & {account.user.name for account in accounts}):
            logger.warning(
                "ignoring cluster user %s, because the users file %s contains a user with the same name",
                name,
                self.path,
            )
        self._shared = tuple(accounts)
        self._book = self._make()

    def check(self, name: str, table: Mapping[str, Any]) -> None:
        """Check that there can be such a user of the cluster.

        Raises:
            InvalidSetting: the name or the table is wrong.
            Conflict: the file has one of that name.
        """
        shared_account(name, table)
        if name in self._own.names:
            raise Conflict(
                f"user {name} is in this node's users file, which takes precedence over cluster users. "
                "Remove the user from the file and send SIGHUP to mq"
            )

    def _make(self) -> _Book:
        own = self._own
        accounts = [*(account for account in self._shared if account.user.name not in own.names), *own.accounts]
        return _Book(accounts, own.by_uid, own.keys)

    def again(self, user: User) -> User | None:
        """The user as the file has them now; None for a removed one. At once."""
        account = self._book.accounts.get(user.name)
        return None if account is None else account.user

    def stamp(self, user: User) -> object:
        """Equal for as long as the user's password is the same. At once."""
        account = self._book.accounts.get(user.name)
        return None if account is None else account.password

    def knows(self, name: str) -> bool:
        """Whether there is such a user. At once."""
        return name in self._book.accounts

    def by_certificate(self, common_name: str) -> User | None:
        """The user of a client certificate that TLS has verified; None without one. At once."""
        return self._book.certified.get(common_name)

    def by_uid(self, uid: int) -> User | None:
        """The user with the login of that number, as the kernel tells it of a peer. Neither root nor the daemon's own
        login makes a user. At once."""
        return self._book.by_uid.get(uid)

    def by_aws_key(self, id: str) -> tuple[User, str] | None:
        """The user of an AWS key, and its secret; None without such a key. At once."""
        return self._book.aws_keys.get(id)

    def by_token(self, token: str) -> User | None:
        """The user of a token; None without one. At once.

        Raises:
            TokenExpired: it was valid once.
        """
        return self._unless_expired(self._book.owner(token))

    def recall(self, name: str, secret: str) -> User | None:
        """The user, if `secret` is a token of theirs, or a password that was right a short while ago. At once.

        Raises:
            TokenExpired: it was a token of theirs.
        """
        book = self._book
        owned = book.owner(secret)
        if owned is not None and owned.owner.name == name:
            return self._unless_expired(owned)
        return book.recall(name, secret, self._clock())

    def _unless_expired(self, owned: _Owned | None) -> User | None:
        if owned is None:
            return None
        if owned.expires is not None and self._wall_clock() >= owned.expires:
            raise TokenExpired(owned.expires)
        return owned.owner

    def verify(self, name: str, password: str) -> User | None:
        """The user, if that is the password. It takes some tenths of a second and 16 MiB, for unknown names
        just as for wrong passwords: call it in a thread, few at a time."""
        return self._book.verify(name, password, self._clock)


class _OwnUsers(NamedTuple):
    """What this machine's files have."""

    accounts: tuple[Account, ...]
    names: frozenset[str]
    by_uid: Mapping[int, User]
    keys: tuple[AwsKey, ...]


def _read(path: str) -> _OwnUsers:
    accounts = read_users(path)
    names = frozenset(account.user.name for account in accounts)
    return _OwnUsers(accounts, names, users_by_uid(accounts, path), tuple(read_keys(path_of_keys(path))))


class _Owned(NamedTuple):
    """The user of a token, and when it expires: seconds since 1970, or None."""

    owner: User
    expires: int | None


class _Book:
    """The users of one version of the file, and their verified passwords. It is replaced as a whole, so no remembered
    password outlives its file, not even one that was being verified meanwhile."""

    def __init__(self, accounts: Iterable[Account], by_uid: Mapping[int, User], keys: Iterable[AwsKey]) -> None:
        self.by_uid = by_uid
        self.accounts: Mapping[str, Account] = {account.user.name: account for account in accounts}
        self._owners = {
            token.hash: _Owned(account.user, token.expires)
            for account in self.accounts.values()
            for token in account.tokens
        }
        self.certified = {
            account.certificate: account.user for account in self.accounts.values() if account.certificate is not None
        }
        self.aws_keys = {
            key.id: (self.accounts[key.user].user, key.secret) for key in keys if key.user in self.accounts
        }
        costs = [account.password.cost for account in self.accounts.values() if account.password is not None]
        self._decoy = PasswordHash.decoy(*costs[:1])
        self._key = secrets.token_bytes(32)
        self._remembered: dict[str, tuple[bytes, float]] = {}  # only what was right: at most one for each user

    def owner(self, token: str) -> _Owned | None:
        """The owner of a token; None without one."""
        # By its hash: a client cannot choose the digits, so the time of the look-up tells nothing of a token.
        hashed = token_hash(token)
        return None if hashed is None else self._owners.get(hashed)

    def recall(self, name: str, password: str, now: float) -> User | None:
        digest, ends = self._remembered.get(name, (b"", 0.0))
        is_same = hmac.compare_digest(digest, self._digest(name, password))
        return self.accounts[name].user if is_same and now < ends else None

    def verify(self, name: str, password: str, clock: Callable[[], float]) -> User | None:
        user = self.recall(name, password, clock())
        if user is not None:
            return user  # the same password was verified while this one waited for a turn
        account = self.accounts.get(name)
        stored = self._decoy if account is None or account.password is None else account.password
        if not stored.fits(password) or account is None:
            return None
        self._remembered[name] = (self._digest(name, password), clock() + REMEMBERED_SECONDS)
        return account.user

    def _digest(self, name: str, password: str) -> bytes:
        data = f"{name}\0{password}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()
