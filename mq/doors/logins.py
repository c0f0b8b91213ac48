"""Logins, for every protocol: tokens are looked up at once, passwords wait in one line for all protocols.

A check takes a core and 16 MiB for a fifth of a second, so there is one at a time. Served in order of arrival, a
stranger that guesses all day would shut all others out: :mod:`mq.access.guesses` decides which login is next.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from mq.access import SecretRefused, User, UserDirectory
from mq.access.guesses import Guesses, LoginLine, Rank, source_of
from mq.access.users_file import is_user_name
from mq.doors.audit import LoginNotes, RefusalNotes
from mq.doors.connections import is_loopback, uid_of
from mq.errors import MQError

MOST_WAITING: Final = 64
"""How many secrets may wait to be checked. One more sends away the one that would be last."""
LONGEST_WAIT_SECONDS: Final = 8.0
"""How long a client waits for its turn; less than what AMQP has for its handshake."""
RETRY_SECONDS: Final = 1.0
"""How long a client that found no room should wait."""


GUEST: Final = "guest"
"""The default name and password of clients of AMQP."""


class GuestFromElsewhere(SecretRefused):
    """A login as ``guest`` with the well-known password ``guest`` from another machine."""

    why = "the user guest can only log in from the machine that mq runs on"

    def __init__(self) -> None:
        where = "the machine that mq runs on. Use a token or another user"
        super().__init__(f"user '{GUEST}' with the password '{GUEST}' may only log in from {where}")


class TryLater(MQError):
    """The secret was not looked at.

    Attributes:
        seconds: how long to wait before another try, a whole number.
    """

    def __init__(self, problem: str, seconds: float) -> None:
        super().__init__(problem, seconds)
        self.problem = problem
        self.seconds = max(1, math.ceil(round(seconds, 3)))

    def __str__(self) -> str:
        return f"{self.problem}. Try again in {self.seconds} s, or use a token"


class Logins:
    """Finds the user of a login. One for all protocols of a daemon.

    Attributes:
        refusals: for servers to note what users have asked for and may not do.
    """

    def __init__(self, access: UserDirectory) -> None:
        self.access = access
        self._notes = LoginNotes()
        self.refusals = RefusalNotes()
        self._guesses = Guesses()
        self._asked: dict[tuple[LoginLine, str], _SecretCheck] = {}
        self._waiting: list[_Waiting] = []
        self._is_checking = False
        self._thread = trio.CapacityLimiter(1)  # beside the store's

    async def user(self, address: str, name: str, secret: str) -> User | None:
        """The user, or None: no user has this name with this secret.

        Raises:
            TokenExpired: it was a token of that user's.
            GuestFromElsewhere: the well-known password of ``guest``. The error does not tell whether that user exists.
            TryLater: others come first, or this client's last secrets were wrong.
        """
        if not is_user_name(name):
            return None  # no user can be called that, so a refusal at once tells no secret
        if name == secret == GUEST and not _is_this_machine(address):
            raise GuestFromElsewhere
        user = self.access.recall(name, secret)
        if user is not None:
            return user
        line = LoginLine(source_of(address), name)
        asked = self._asked.get((line, secret))
        if asked is None:
            return await self._ask(line, secret)
        await asked.is_over.wait()
        if asked.refusal is not None:
            raise TryLater(*asked.refusal.args)
        return asked.user if asked.has_answer else await self.user(address, name, secret)

    def note_success(self, protocol: str, address: str, user: User) -> None:
        """Write down a login."""
        self._notes.succeeded(protocol, address, user.name)

    def note_failure(self, protocol: str, address: str, name: str, why: str) -> None:
        """Write down a failed login, without a name that no user has: it may be a secret in the wrong place."""
        self._notes.failed(protocol, address, name if self.access.knows(name) else None, why)

    async def _ask(self, line: LoginLine, secret: str) -> User | None:
        """Check a secret once for all clients that give it meanwhile, such as a program's many connections."""
        asked = self._asked[line, secret] = _SecretCheck()
        try:
            asked.user = await self._check_in_turn(line, secret)
            asked.has_answer = True
        except TryLater as refusal:
            asked.refusal = refusal
            raise
        finally:
            del self._asked[line, secret]
            asked.is_over.set()
        return asked.user

    async def _check_in_turn(self, line: LoginLine, secret: str) -> User | None:
        self._refuse_if_delayed(line)
        if self._is_checking:
            await self._wait(line)
        self._is_checking = True
        try:
            self._refuse_if_delayed(line)  # others may have guessed meanwhile, with other secrets
            user = await trio.to_thread.run_sync(self.access.verify, line.name, secret, limiter=self._thread)
            if user is None:
                self._guesses.failed(line, trio.current_time())
            else:
                self._guesses.succeeded(line, trio.current_time())
            return user
        finally:
            self._pass_on()

    def _refuse_if_delayed(self, line: LoginLine) -> None:
        seconds = self._guesses.wait_seconds(line, trio.current_time())
        if seconds > 0:
            raise TryLater(
                "too many failed logins for this user from this address",
                seconds,
            )

    async def _wait(self, line: LoginLine) -> None:
        """Wait for the turn of a login."""
        waiting = _Waiting(line, self._waiting)
        self._waiting.append(waiting)
        if len(self._waiting) > MOST_WAITING:
            self._end(max(reversed(self._waiting), key=self._rank), is_next=False)
        try:
            with trio.move_on_after(LONGEST_WAIT_SECONDS):
                await waiting.is_over.wait()
        except trio.Cancelled:
            if waiting.is_next:  # it got its turn while it was on its way out
                self._pass_on()
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        if not waiting.is_next:
            raise TryLater("too many logins at once", RETRY_SECONDS)

    def _pass_on(self) -> None:
        self._is_checking = bool(self._waiting)  # so that none comes before the one that is next
        if self._waiting:
            self._end(min(self._waiting, key=self._rank), is_next=True)

    def _end(self, waiting: _Waiting, *, is_next: bool) -> None:
        self._waiting.remove(waiting)
        waiting.is_next = is_next
        waiting.is_over.set()

    def _rank(self, waiting: _Waiting) -> Rank:
        """The rank of a waiting login. Among equals the first that came is next, for the list is in that order."""
        rank = self._guesses.rank(waiting.line, trio.current_time(), is_known=self.access.knows(waiting.line.name))
        return rank.behind(waiting.of_line, waiting.of_source, waiting.of_name)


def _is_this_machine(address: str) -> bool:
    return uid_of(address) is not None or is_loopback(source_of(address))


class _SecretCheck:
    """A secret that is being checked, for every client that gave it.

    Attributes:
        is_over: the other attributes are valid.
        has_answer: the secret was looked at. If not, and there is no refusal, its client is gone.
        refusal: why it was not looked at.
    """

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.has_answer = False
        self.user: User | None = None
        self.refusal: TryLater | None = None


class _Waiting:
    """A login that waits for its turn.

    Attributes:
        of_line, of_source, of_name: how many waited of the same line, source and name when it came.
        is_over: the wait has ended.
        is_next: its turn has come; else it is refused.
    """

    def __init__(self, line: LoginLine, others: list[_Waiting]) -> None:
        self.line = line
        self.of_line = sum(other.line == line for other in others)
        self.of_source = sum(other.line.source == line.source for other in others)
        self.of_name = sum(other.line.name == line.name for other in others)
        self.is_over = trio.Event()
        self.is_next = False
