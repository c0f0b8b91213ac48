"""Producers and consumers that a dying daemon does not impress: they note what they saw and go on.

Each is a plain loop in a thread with one connection at a time.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final, NamedTuple, Protocol

from tests.e2e.history import Delivered, Event, Published, Removed

QUEUE: Final = "q"
_ANSWER_SECONDS: Final = 60.0
"""A daemon that lives has answered by then, or something is wrong with it."""
_PAUSE_SECONDS: Final = 0.02
_NOBODY: Final = 1
"""A port on which nobody listens."""
_CREATE_TRIES: Final = 500


class Down(Exception):
    """Nobody took the connection: the request was not made."""


class Broken(Exception):
    """The connection broke before the whole answer was there: whether the request was served is not known."""


class Server(Protocol):
    """A daemon, as its clients see it.

    Attributes:
        port: where it listens there; 0 while it does not.
    """

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int: ...


class Answer(NamedTuple):
    status: int
    id: str
    body: bytes
    asked: float
    answered: float


class Caller:
    """One connection at a time to any of some daemons.

    Args:
        silence: after so many seconds without an answer another daemon is asked; where not given, one is due.
    """

    def __init__(self, daemons: Sequence[Server], turn: int = 0, silence: float | None = None) -> None:
        self._daemons = daemons
        self._silence = silence
        self._turn = turn
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Ask one daemon, once.

        Raises:
            Down: no daemon is there. The next call tries another one, as after Broken.
            Broken: there was no whole answer.
            TimeoutError: a daemon that lives does not answer.
        """
        connection = self._connect()
        asked = time.monotonic()
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            data = reply.read()
        except TimeoutError as error:
            if self._silence is None:
                raise
            self._give_up()
            raise Broken from error
        except (OSError, http.client.HTTPException) as error:
            self._give_up()
            raise Broken from error
        return Answer(reply.status, reply.getheader("x-message-id", ""), data, asked, time.monotonic())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            daemon = self._daemons[self._turn % len(self._daemons)]
            seconds = self._silence or _ANSWER_SECONDS
            self._connection = http.client.HTTPConnection(daemon.address, daemon.port or _NOBODY, timeout=seconds)
            try:
                self._connection.connect()
            except OSError as error:
                self._give_up()
                raise Down from error
        return self._connection

    def _give_up(self) -> None:
        self.close()
        self._turn += 1
        time.sleep(_PAUSE_SECONDS)


class Clients:
    """What the clients of one test share.

    Args:
        walk_away: the share of messages that a consumer fetches and forgets, to have them come back.
    """

    def __init__(self, daemons: Sequence[Server], walk_away: float = 0.02, silence: float | None = None) -> None:
        self.history: list[Event] = []
        self.stop = threading.Event()
        self._daemons = daemons
        self._walk_away = walk_away
        self._silence = silence

    @contextmanager
    def caller(self, turn: int = 0) -> Iterator[Caller]:
        """A connection of one's own."""
        caller = Caller(self._daemons, turn, self._silence)
        try:
            yield caller
        finally:
            caller.close()

    def create_queue(self) -> None:
        """Make the queue, whatever happens meanwhile."""
        with self.caller() as caller:
            for _ in range(_CREATE_TRIES):
                try:
                    assert caller.call("PUT", f"/{QUEUE}").status in (200, 201)
                    return
                except (Down, Broken):
                    continue
        raise AssertionError("no daemon took the queue")

    def publish(self, caller: Caller, body: bytes) -> None:
        """Publish until it is acknowledged, or until all is to stop."""
        digest = hashlib.sha256(body).hexdigest()
        while not self.stop.is_set():
            asked = time.monotonic()
            try:
                answer = caller.call("POST", f"/{QUEUE}/messages", body)
            except Down:
                continue
            except Broken:
                self.history.append(Published(digest, None, asked, time.monotonic()))
                continue
            if answer.status == http.client.CREATED:
                self.history.append(Published(digest, answer.id, answer.asked, answer.answered))
                return
            if is_unsure(answer):
                self.history.append(Published(digest, None, answer.asked, answer.answered))
            self._tolerate(answer)

    def consume(self, number: int, random: Random) -> None:
        """Fetch, look at the body and remove, until all is to stop."""
        with self.caller(number) as caller:
            while not self.stop.is_set():
                try:
                    answer = caller.call("GET", f"/{QUEUE}/messages")
                except (Down, Broken):
                    continue
                if answer.status == http.client.OK:
                    digest = hashlib.sha256(answer.body).hexdigest()
                    self.history.append(Delivered(answer.id, digest, answer.asked, answer.answered))
                    if random.random() >= self._walk_away:
                        self._remove(caller, answer.id)
                elif answer.status == http.client.NO_CONTENT:
                    self.stop.wait(_PAUSE_SECONDS)
                else:
                    self._tolerate(answer)

    def _remove(self, caller: Caller, id: str) -> None:
        """Remove until there is an answer."""
        while not self.stop.is_set():
            asked = time.monotonic()
            try:
                answer = caller.call("DELETE", f"/{QUEUE}/messages/{id}")
            except Down:
                continue
            except Broken:
                self.history.append(Removed(id, None, asked, time.monotonic()))
                continue
            if answer.status in (http.client.ACCEPTED, http.client.NOT_FOUND):
                known = answer.status == http.client.ACCEPTED
                self.history.append(Removed(id, known, answer.asked, answer.answered))
                return
            if is_unsure(answer):
                self.history.append(Removed(id, None, answer.asked, answer.answered))
            self._tolerate(answer)

    def _tolerate(self, answer: Answer) -> None:
        """A disk that is slow for a moment is no fault; everything else is."""
        assert answer.status == http.client.SERVICE_UNAVAILABLE, f"{answer.status}: {answer.body[:200]!r}"
        self.stop.wait(_PAUSE_SECONDS)


def is_unsure(answer: Answer) -> bool:
    """Whether a file system out of reach has not said what it did: as good as no answer."""
    return json.loads(answer.body).get("outcome") == "unknown"
