"""The members of a cluster as one that answers: connections that are kept, failover, bounded waits, logging in.

A request goes to the member that answered last. One that does not answer within the *patience* of an attempt, refuses
the connection or has no leader is passed over, and the next one is asked, round and round until the *deadline* of the
request.

A member that has lost its leader says so at once, before it has begun (``hasleader``), instead of keeping the request
until it times out: so a member that is cut off from the others costs one round trip, and nothing is uncertain by it.
"""

from __future__ import annotations

import itertools
import json
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from mq_etcd.connection import BROKEN, Connection, Endpoint, connect
from mq_etcd.errors import EtcdError, Rejected, Unavailable, Uncertain
from mq_etcd.refusals import INVALID_TOKEN, error_of, refusal
from mq_etcd.values import Json

BETWEEN_ROUNDS_SECONDS: Final = 0.05
"""How long to wait when every member was asked and none could."""
BYTES_A_SECOND: Final = 1 << 19
"""A long request has so much more time: what is given up too soon is sent once more, and makes a slow member slower."""
_WITH_LEADER: Final = b"Grpc-Metadata-hasleader: true\r\n"


class Members:
    """Asks whichever member answers.

    Args:
        endpoints: where they are; the first one is asked first.
        tls: authorities to trust and a certificate to show, over https.
        patience: of one attempt, in seconds; a long request has more.
        deadline: of one request, with all its attempts, in seconds.
        connections: so many requests at the same time; others wait.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        user: tuple[str, str] | None,
        tls: ssl.SSLContext | None,
        *,
        patience: float,
        deadline: float,
        connections: int,
    ) -> None:
        self._endpoints = list(endpoints)
        self._user = user
        self._tls = tls
        self._patience = patience
        self._deadline = deadline
        self._turns = trio.CapacityLimiter(connections)
        self._idle: defaultdict[Endpoint, list[Connection]] = defaultdict(list)
        self._current = 0
        self._token = ""
        self._is_closed = False

    @property
    def current(self) -> Endpoint:
        """The member that is asked first."""
        return self._endpoints[self._current]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """All of them."""
        return self._endpoints

    async def ask(self, path: str, wanted: Json, *, changes: bool = False, repeats: bool = True) -> Json:
        """The reply to a request.

        Args:
            changes: it may change something.
            repeats: it may be sent again when it is not known what became of it.

        Raises:
            Unavailable: no member could, until the deadline.
            Uncertain: it changes something, and was sent; no reply came.
            EtcdError: what etcd said.
        """
        body = _encoded(wanted)
        patience = self._patience + len(body) / BYTES_A_SECOND
        ends = trio.current_time() + self._deadline
        failures: dict[Endpoint, EtcdError] = {}
        is_uncertain = False
        await self._take_turn()
        try:
            for attempt in itertools.count(1):
                left = ends - trio.current_time()
                if left <= 0:
                    break
                member = self.current
                try:
                    return await self._attempt(member, path, body, min(left, patience))
                except (Unavailable, Uncertain) as error:
                    if left >= patience or member not in failures:  # else it was cut short, and says little
                        failures[member] = error
                    if changes and isinstance(error, Uncertain):
                        is_uncertain = True
                        if not repeats:
                            raise
                self.pass_over(member)
                if attempt % len(self._endpoints) == 0:
                    await trio.sleep(BETWEEN_ROUNDS_SECONDS)
        finally:
            self._turns.release()
        raise self._given_up(failures, is_uncertain=is_uncertain)

    async def ask_member(self, member: Endpoint, path: str, wanted: Json, seconds: float | None = None) -> Json:
        """The reply of one member, without trying others; `seconds` is how long it has, where that is not the patience.

        Raises:
            EtcdError: there is none.
        """
        body = _encoded(wanted)
        return await self._attempt(member, path, body, seconds or self._patience, needs_leader=False)

    @asynccontextmanager
    async def stream(self, path: str, wanted: Json) -> AsyncIterator[tuple[Endpoint, Connection]]:
        """A reply that does not end, over a connection of its own: one attempt, at the current member.

        Raises:
            Unavailable: that member cannot; ask again for the next one.
            EtcdError: what etcd said.
        """
        member = self.current
        try:
            connection = await self._send(member, path, _encoded(wanted))
        except (Unavailable, Uncertain) as error:
            self.pass_over(member)
            raise Unavailable(str(error)) from error
        try:
            yield member, connection
        finally:
            await connection.aclose()

    def pass_over(self, member: Endpoint) -> None:
        """Ask the one after it first, from now on, unless another request has seen to that already."""
        if self.current == member:
            self._current = (self._current + 1) % len(self._endpoints)

    async def aclose(self) -> None:
        """Let go of the connections."""
        self._is_closed = True
        while self._idle:  # while one is closed, others that still ask may put more there
            _, connections = self._idle.popitem()
            while connections:
                await connections.pop().aclose()

    async def _send(self, member: Endpoint, path: str, body: bytes) -> Connection:
        """A connection on which the head of a good reply has come."""
        await self._log_in(member)
        connection = None
        try:
            with trio.fail_after(self._patience):
                connection = await connect(member, self._tls)
                await connection.send(path, body, self._fields())
                head = await connection.head()
                if head.status == 200:
                    return connection
                said = refusal(head.status, await connection.body())
        except (*BROKEN, trio.TooSlowError) as error:
            await _close(connection)
            raise _away(member, error, was_sent=False) from error
        except BaseException:
            await _close(connection)
            raise
        await connection.aclose()
        raise self._refused(said.text, error_of(said, str(member)))

    async def _take_turn(self) -> None:
        try:
            with trio.fail_after(self._deadline):
                await self._turns.acquire()
        except trio.TooSlowError as error:
            busy = (
                f"no etcd connection became free within {self._deadline:g} seconds, because too many requests are "
                "in progress"
            )
            raise Unavailable(f"{busy}. Try again later") from error

    async def _attempt(
        self, member: Endpoint, path: str, body: bytes, seconds: float, *, needs_leader: bool = True
    ) -> Json:
        await self._log_in(member)
        return await self._exchange(member, path, body, self._fields(needs_leader=needs_leader), seconds)

    async def _exchange(self, member: Endpoint, path: str, body: bytes, fields: bytes, seconds: float) -> Json:
        connection: Connection | None = None
        was_sent = False
        try:
            with trio.fail_after(seconds):
                connection = await self._kept(member) or await connect(member, self._tls)
                was_sent = True
                await connection.send(path, body, fields)
                head = await connection.head()
                content = await connection.body()
        except (*BROKEN, trio.TooSlowError) as error:
            await _close(connection)
            await self._forget(member)
            raise _away(member, error, was_sent=was_sent) from error
        except BaseException:
            await _close(connection)
            raise
        if self._is_closed:
            await connection.aclose()
        else:
            self._idle[member].append(connection)
        if head.status != 200:
            said = refusal(head.status, content)
            raise self._refused(said.text, error_of(said, str(member)))
        return _decoded(content, member)

    def _refused(self, words: str, error: EtcdError) -> EtcdError:
        if words.startswith(INVALID_TOKEN):
            self._token = ""
            return (
                error
                if self._user
                else Rejected(
                    f"{error}. The etcd server requires authentication: set the etcd options user and password-file"
                )
            )
        return error

    def _fields(self, *, needs_leader: bool = True) -> bytes:
        fields = _WITH_LEADER if needs_leader else b""
        return fields + b"Authorization: %s\r\n" % self._token.encode("ascii") if self._token else fields

    async def _log_in(self, member: Endpoint) -> None:
        if self._user is None or self._token:
            return
        name, password = self._user
        wanted = json.dumps({"name": name, "password": password}).encode("ascii")
        try:
            reply = await self._exchange(member, "/v3/auth/authenticate", wanted, _WITH_LEADER, self._patience)
        except Uncertain as error:  # of a login; nothing else was sent
            raise Unavailable(str(error)) from error
        self._token = str(reply.get("token", ""))

    async def _kept(self, member: Endpoint) -> Connection | None:
        """A connection that was used before, if one is still good."""
        connections = self._idle[member]
        while connections:
            connection = connections.pop()
            if connection.is_fit:
                return connection
            await connection.aclose()
        return None

    async def _forget(self, member: Endpoint) -> None:
        """Close what leads to a member that has failed: the next one to ask it connects anew."""
        connections = self._idle.pop(member, [])
        for connection in connections:
            await connection.aclose()

    def _given_up(self, failures: dict[Endpoint, EtcdError], *, is_uncertain: bool) -> EtcdError:
        reasons = "; ".join(str(error) for error in failures.values())
        if is_uncertain:
            return Uncertain(
                f"etcd did not report the outcome of a change within {self._deadline:g} seconds: {reasons}"
            )
        members = _listed(self._endpoints)
        return Unavailable(
            f"no etcd member responded within {self._deadline:g} seconds: {reasons}. Check that etcd is running at "
            f"{members}"
        )


async def _close(connection: Connection | None) -> None:
    if connection is not None:
        await connection.aclose()


def _away(member: Endpoint, error: BaseException, *, was_sent: bool) -> EtcdError:
    said = str(error) or str(error.__cause__ or type(error).__name__)
    why = "the member is not responding" if isinstance(error, trio.TooSlowError) else said
    kind = Uncertain if was_sent else Unavailable
    return kind(f"etcd at {member}: {why}")


def _encoded(wanted: Json) -> bytes:
    return json.dumps(wanted, separators=(",", ":")).encode("ascii")


def _decoded(content: bytes, member: Endpoint) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise Uncertain(
            f"the server at {member} did not return JSON. Check that the address is etcd's client port"
        ) from error
    if not isinstance(found, dict):
        raise Uncertain(f"the server at {member} is not an etcd server")
    return found


def _listed(endpoints: Sequence[Endpoint]) -> str:
    return ", ".join(map(str, endpoints))
