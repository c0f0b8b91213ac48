"""Sessions of users that have logged in at the page: in the memory of this process, each under a secret of 256 bits.

The secret goes into a cookie. No script can read it, and no other site's page makes the browser send it. A request that
changes something needs the session's second secret, too, in a header: the page has it, and a form elsewhere has not.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple

import trio

from mq.access import Right, TokenExpired, User, UserDirectory
from mq.access.hashes import token_hash
from mq.errors import InvalidRequest
from mq.web.exchange import Request

LASTS_SECONDS: Final = 12 * 3600
"""How long a session lasts, used or not: a working day."""
SESSIONS_PER_USER: Final = 16
"""For one more login of a user, the user's oldest session ends."""
MOST_SESSIONS: Final = 1024
"""For one more session, the oldest one of a user with the most sessions ends: many logins of one user, or of a few,
end no session of a user with one."""
CSRF_HEADER: Final = "x-csrf-token"

_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_PORT: Final = re.compile(r":([0-9]{1,5})$")


class LoginSession(NamedTuple):
    """A session.

    Attributes:
        csrf: what a request that changes something has to have in its header.
        token: by which the user logged in; None for a password.
        stamp: changes with the user's password.
    """

    user: User
    csrf: str
    ends: float
    token: str | None
    stamp: object

    def has(self, token: str) -> bool:
        """Whether that is its second secret. Compared in constant time."""
        return hmac.compare_digest(self.csrf.encode(), token.encode("utf-8", "replace"))


class Sessions:
    """All sessions.

    Args:
        access: knows the users. A session ends when its user is removed there, or gets another password.
    """

    def __init__(self, access: UserDirectory) -> None:
        self._access = access
        self._sessions: dict[bytes, LoginSession] = {}
        self._by_user: dict[str, deque[bytes]] = {}  # the keys of each user's sessions, the oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User, secret: str) -> tuple[str, LoginSession]:
        """A new session, and its secret."""
        cookie = secrets.token_urlsafe(32)
        token = secret if token_hash(secret) is not None else None
        ends = trio.current_time() + LASTS_SECONDS
        session = LoginSession(user, secrets.token_urlsafe(32), ends, token, self._access.stamp(user))
        self._drop_expired()
        if len(self._by_user.get(user.name, ())) >= SESSIONS_PER_USER:
            self._drop(self._by_user[user.name][0])
        if len(self._sessions) >= MOST_SESSIONS:
            self._drop(max(self._by_user.values(), key=len)[0])
        self._sessions[_key(cookie)] = session
        self._by_user.setdefault(user.name, deque()).append(_key(cookie))
        return cookie, session

    def find(self, cookie: str) -> LoginSession | None:
        """The session of a secret, with its user as the file has them now; None where there is none any more."""
        session = self._sessions.get(_key(cookie))
        if session is None:
            return None
        user = self._user(session) if trio.current_time() < session.ends else None
        if user is None:
            self.end(cookie)
            return None
        return session._replace(user=user)

    def end(self, cookie: str) -> None:
        """End a session, if there is one."""
        self._drop(_key(cookie))

    def _drop_expired(self) -> None:
        now = trio.current_time()
        expired = takewhile(lambda item: item[1].ends <= now, self._sessions.items())  # all last equally long
        for key in [key for key, _ in expired]:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._by_user[session.user.name]
            keys.remove(key)
            if not keys:
                del self._by_user[session.user.name]

    def _user(self, session: LoginSession) -> User | None:
        if session.token is None:
            return self._access.again(session.user) if self._access.stamp(session.user) == session.stamp else None
        try:
            return self._access.by_token(session.token)
        except TokenExpired:
            return None


def _key(cookie: str) -> bytes:
    """The key of a cookie among the sessions."""
    # A hash: a client cannot choose its bytes, so the time of a look-up tells nothing of a secret.
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()


def cookie_name(request: Request) -> str:
    """With the port that was asked: cookies do not tell ports apart, and a machine may have several daemons."""
    host = request.headers.get("host", "")
    if not host:
        return "mq-session"
    port = _PORT.search(host)
    return f"mq-session-{port[1] if port else _DEFAULT_PORTS[request.scheme]}"


def cookie_of(request: Request) -> str | None:
    """The secret in a request's cookies; None without one."""
    name = cookie_name(request)
    for pair in request.headers.get("cookie", "").replace(",", ";").split(";"):
        its_name, _, value = pair.strip().partition("=")
        if its_name == name and _SECRET.fullmatch(value):
            return value
    return None


def set_cookie(request: Request, secret: str, base_path: str = "") -> tuple[str, str]:
    """The header that gives a browser the secret; an empty one takes it away.

    Args:
        base_path: the path under which a proxy serves the daemon: what else is on that host does not get the secret.
    """
    lasts = LASTS_SECONDS if secret else 0
    guards = f"Path={base_path or '/'}; HttpOnly; SameSite=Strict" + ("; Secure" if request.scheme == "https" else "")
    return "set-cookie", f"{cookie_name(request)}={secret}; Max-Age={lasts}; {guards}"


def credentials(given: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the secret in the JSON of a login.

    Raises:
        InvalidRequest: they are not there, or something else is.
    """
    name, secret = given.get("name"), given.get("secret")
    if given.keys() != {"name", "secret"} or not isinstance(name, str) or not isinstance(secret, str):
        raise InvalidRequest(
            'the request body must be {"name": "NAME", "secret": "SECRET"}, where SECRET is a password or a token'
        )
    return name, secret


def shown_user(user: User | None, csrf: str | None = None) -> dict[str, Any]:
    """A user and their rights, as JSON. Without users it lists every right.

    Args:
        user: None where there are no users.
    """
    rights = {right.value: list(user.rights.get(right, ())) for right in Right} if user else {Right.ADMINISTER: ["*"]}
    return {
        "user": None if user is None else user.name,
        "rights": {right.value: [] for right in Right} | rights,
        "csrf": csrf,
    }
