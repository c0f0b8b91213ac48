"""How passwords and tokens are kept: so that they can be checked and not read back.

People can remember a password, so guessing it has to be slow: scrypt (RFC 7914), at the cost that OWASP's sheet on
storing passwords names. A token is 256 random bits, which cannot be guessed, so one round of SHA-256 is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import unicodedata
from datetime import UTC, datetime
from typing import Final, NamedTuple

from mq.errors import InvalidSetting

SHORTEST_PASSWORD: Final = 8
"""In characters."""
LONGEST_PASSWORD: Final = 1024
MOST_MEMORY_BYTES: Final = 1 << 28
"""A hash in a file may not ask for more."""
MOST_WORK: Final = 1 << 26
"""The most n * r * p: some ten seconds."""

_PASSWORD_HASH: Final = re.compile(r"scrypt:(\d{1,9}):(\d{1,3}):(\d{1,3}):([0-9a-f]{32}):([0-9a-f]{64})", re.ASCII)
_KEPT_TOKEN: Final = re.compile(r"(sha256:[0-9a-f]{64})(?: until ([0-9TZ:-]{1,30}))?")
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_TOKEN: Final = re.compile(r"mq_[A-Za-z0-9_-]{43}")


class Cost(NamedTuple):
    """What one guess costs: scrypt's parameters.

    Attributes:
        n: a power of two; with `r`, the memory: 128 * n * r bytes.
        r: size of a block.
        p: how often all of it is done.
    """

    n: int
    r: int
    p: int

    @property
    def memory_bytes(self) -> int:
        """What a check takes while it lasts."""
        return 128 * self.r * (self.n + self.p + 2)


COST: Final = Cost(1 << 14, 8, 5)
"""16 MiB and a few tenths of a second."""


class PasswordHash(NamedTuple):
    """A password as it is kept."""

    cost: Cost
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str, cost: Cost = COST) -> PasswordHash:
        """The hash of a password, with a salt of its own. Making it takes as long as a check does."""
        salt = secrets.token_bytes(16)
        return cls(cost, salt, _scrypt(password, salt, cost))

    @classmethod
    def decoy(cls, cost: Cost = COST) -> PasswordHash:
        """A hash that no password fits. Checking it takes as long as checking any other."""
        return cls(cost, secrets.token_bytes(16), secrets.token_bytes(32))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """The hash that `text` holds.

        Raises:
            ValueError: it holds none, or one that costs nothing or too much. The error does not quote it.
        """
        matched = _PASSWORD_HASH.fullmatch(text)
        if matched is None:
            raise ValueError("invalid password hash")
        cost = Cost(int(matched[1]), int(matched[2]), int(matched[3]))
        is_power_of_two = cost.n > 1 and cost.n & (cost.n - 1) == 0
        if not is_power_of_two or not cost.r or not cost.p:
            raise ValueError("the password hash has an invalid scrypt cost")
        if cost.memory_bytes > MOST_MEMORY_BYTES or cost.n * cost.r * cost.p > MOST_WORK:
            raise ValueError("the password hash's scrypt cost is too high")
        return cls(cost, bytes.fromhex(matched[4]), bytes.fromhex(matched[5]))

    def __str__(self) -> str:
        n, r, p = self.cost
        return f"scrypt:{n}:{r}:{p}:{self.salt.hex()}:{self.digest.hex()}"

    def fits(self, password: str) -> bool:
        """Whether this is the hash of that password. Compared in constant time."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.cost), self.digest)


def check_password(password: str) -> None:
    """Check that a new password is allowed.

    Raises:
        InvalidSetting: it is too short, too long, or holds what no keyboard should send. The error does not quote it.
    """
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD or not password.isprintable():
        raise InvalidSetting(
            f"a password must consist of {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} printable characters"
        )


def new_token() -> str:
    """A token: ``mq_`` and 256 random bits, base64url."""
    return "mq_" + secrets.token_urlsafe(32)


def token_hash(token: str) -> str | None:
    """The token as it is kept: ``sha256:`` and hex digits. None for what is no token of ours, such as a password."""
    if _TOKEN.fullmatch(token) is None:
        return None
    return "sha256:" + hashlib.sha256(token.encode("ascii")).hexdigest()


class KeptToken(NamedTuple):
    """A token as a file keeps it.

    Attributes:
        hash: what :func:`token_hash` makes of it.
        expires: seconds since 1970; None for never.
    """

    hash: str
    expires: int | None = None

    @classmethod
    def parse(cls, text: str) -> KeptToken:
        """What `text` says: a hash, and perhaps `` until `` and a time of UTC to the second.

        Raises:
            ValueError: it says something else. The error does not quote it.
        """
        matched = _KEPT_TOKEN.fullmatch(text)
        if matched is None:
            raise ValueError("invalid token hash")
        return cls(matched[1], None if matched[2] is None else _seconds_of(matched[2]))

    def __str__(self) -> str:
        return self.hash if self.expires is None else f"{self.hash} until {time_text(self.expires)}"


def time_text(seconds: int) -> str:
    """A time as a file of users has it (RFC 3339): ``2026-12-24T19:00:00Z``.

    Args:
        seconds: since 1970.
    """
    return datetime.fromtimestamp(seconds, UTC).strftime(_TIME)


def _seconds_of(text: str) -> int:
    try:
        return int(datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise ValueError("invalid expiry time. Use a UTC time such as 2026-12-24T19:00:00Z") from None


def _scrypt(password: str, salt: bytes, cost: Cost) -> bytes:
    data = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")  # NFC: RFC 7617, section 2.1
    n, r, p = cost
    return hashlib.scrypt(data, salt=salt, n=n, r=r, p=p, maxmem=2 * cost.memory_bytes, dklen=32)
