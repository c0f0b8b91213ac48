"""Who is it? Every door asks here, so a user is the same one behind all of them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mq.access.hashes import PasswordHash, token_hash
from mq.access.rights import User
from mq.access.users_file import Account, read_users

REMEMBERED_SECONDS: Final = 60.0
"""How long a password that was right is taken without computing its hash again."""


class Access:
    """The users of a file.

    Args:
        path: of the users file.
        clock: seconds, on any clock that only goes on.

    Raises:
        InvalidSetting: the file cannot be read or is wrong.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._book = _Book(read_users(path))

    def reload(self) -> int:
        """Read the file anew. What was removed from it counts no more, at once. Returns how many users there are.

        Raises:
            InvalidSetting: the new file is wrong; the users stay as they were.
        """
        self._book = _Book(read_users(self.path))
        return len(self._book.accounts)

    def again(self, user: User) -> User | None:
        """The same user as the file has them now; None for one that it has no more. At once."""
        account = self._book.accounts.get(user.name)
        return None if account is None else account.user

    def by_token(self, token: str) -> User | None:
        """Whose token it is. At once."""
        return self._book.owner(token)

    def recall(self, name: str, secret: str) -> User | None:
        """The user, if `secret` is a token of theirs, or a password that was right a short while ago. At once."""
        book = self._book
        owner = book.owner(secret)
        if owner is not None and owner.name == name:
            return owner
        return book.recall(name, secret, self._clock())

    def verify(self, name: str, password: str) -> User | None:
        """The user, if that is the password. It takes some tenths of a second and 16 MiB, for names that nobody has
        just as for wrong passwords: call it in a thread, few at a time."""
        return self._book.verify(name, password, self._clock)


class _Book:
    """The users as one file had them, and what was remembered of them. It is replaced as a whole, so nothing that was
    remembered outlives its file, not even when it was being verified meanwhile."""

    def __init__(self, accounts: Iterable[Account]) -> None:
        self.accounts: Mapping[str, Account] = {account.user.name: account for account in accounts}
        self._owners = {token: account.user for account in self.accounts.values() for token in account.tokens}
        costs = [account.password.cost for account in self.accounts.values() if account.password is not None]
        self._decoy = PasswordHash.decoy(*costs[:1])
        self._key = secrets.token_bytes(32)
        self._remembered: dict[str, tuple[bytes, float]] = {}  # only what was right: at most one for each user

    def owner(self, token: str) -> User | None:
        """Looked up by its hash, whose digits nobody can choose: how long that takes says nothing of a token."""
        hashed = token_hash(token)
        return None if hashed is None else self._owners.get(hashed)

    def recall(self, name: str, password: str, now: float) -> User | None:
        digest, ends = self._remembered.get(name, (b"", 0.0))
        is_same = hmac.compare_digest(digest, self._digest(name, password))
        return self.accounts[name].user if is_same and now < ends else None

    def verify(self, name: str, password: str, clock: Callable[[], float]) -> User | None:
        user = self.recall(name, password, clock())
        if user is not None:
            return user  # somebody else with the same password was verified while this one waited for a turn
        account = self.accounts.get(name)
        stored = self._decoy if account is None or account.password is None else account.password
        if not stored.fits(password) or account is None:
            return None
        self._remembered[name] = (self._digest(name, password), clock() + REMEMBERED_SECONDS)
        return account.user

    def _digest(self, name: str, password: str) -> bytes:
        data = f"{name}\0{password}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()
