"""A client of a real daemon on a bad day: it notes what it was told, and holds every answer to P8."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from tests.e2e.daemon import Daemon

QUEUE: Final = "q"
ANSWER_SECONDS: Final = 30.0
SOON_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.1


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Visitor:
    """One client with one connection, and what it knows of its messages.

    Args:
        daemon: it may be restarted meanwhile.

    Attributes:
        kept: id -> body of what must be there.
        unsure: bodies whose publish or removal a failing store answered with an error: they may be there.
        doubtful: ids whose removal was answered so.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.kept: dict[str, bytes] = {}
        self.unsure: set[bytes] = set()
        self.doubtful: set[str] = set()
        self._daemon = daemon
        self._port = 0
        self._connection: http.client.HTTPConnection | None = None
        self._bodies = 0

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """One request on a connection that is kept."""
        if self._connection is None or self._port != self._daemon.port:
            self.close()
            self._port = self._daemon.port
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        self._connection.request(method, path, body)
        reply = self._connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def is_ready(self) -> bool:
        """What ``/-/ready`` says."""
        return self.ask("GET", "/-/ready").status == 200

    def create(self, queue: str = QUEUE) -> bool:
        """False when that is refused."""
        return self._is_done(self.ask("PUT", f"/{queue}"), 201, 200)

    def body(self, size: int) -> bytes:
        """Like no other."""
        self._bodies += 1
        return b"%08d" % self._bodies + b"x" * max(0, size - 8)

    def publish(self, size: int, *, failing: bool = False) -> bool:
        """False when that is refused; what is refused is not there, unless the store is `failing`."""
        body = self.body(size)
        answer = self.ask("POST", f"/{QUEUE}/messages", body)
        done = self._is_done(answer, 201)
        if done:
            self.kept[answer.headers["x-message-id"]] = body
        elif failing:
            self.unsure.add(body)
        return done

    def fetch(self) -> str | None:
        """The id of the message that was handed out; None when there is none."""
        answer = self.ask("GET", f"/{QUEUE}/messages")
        if answer.status == 204:
            return None
        assert answer.status == 200, answer
        id = answer.headers["x-message-id"]
        if id not in self.kept:
            assert answer.body in self.unsure, f"never published, or removed: {id} {answer.body[:40]!r}"
            self.kept[id] = answer.body
        assert answer.body == self.kept[id], f"{id} is not what was published"
        return id

    def fetch_all(self) -> set[str]:
        """Until there is nothing more. Nothing comes twice: no lease ends meanwhile."""
        seen: set[str] = set()
        while (id := self.fetch()) is not None:
            assert id not in seen, f"{id} is handed out twice"
            seen.add(id)
        return seen

    def remove(self, id: str, *, failing: bool = False) -> None:
        """It must be there. On a failing disk it may be refused, and then be there or not."""
        answer = self.ask("DELETE", f"/{QUEUE}/messages/{id}")
        assert answer.status == 202 or (failing and answer.status == 503), answer
        body = self.kept.pop(id)
        if answer.status == 503:
            self.unsure.add(body)
            self.doubtful.add(id)

    def remove_all(self) -> None:
        """All that must be there is; and nothing else is."""
        for id in list(self.kept):
            self.remove(id)
        for id in self.doubtful:
            assert self.ask("DELETE", f"/{QUEUE}/messages/{id}").status in (202, 404)
        assert self.fetch() is None

    def is_refused(self, method: str, path: str, body: bytes | None = None) -> bool:
        """Whether the answer is a refusal that may pass, as it has to be: 503, Retry-After, one plain line."""
        return not self._is_done(self.ask(method, path, body), 200, 201, 202, 204)

    def why(self, size: int) -> str:
        """What the refusal of a publish says."""
        answer = self.ask("POST", f"/{QUEUE}/messages", self.body(size))
        assert not self._is_done(answer, 201)
        return str(json.loads(answer.body)["detail"])

    def has_delivered(self, root: Path, count: int) -> bool:
        """So many messages are in their queue: waits for it."""
        self.soon(lambda: len(os.listdir(root / "queues" / QUEUE)) == count)
        return True

    def has_drained(self) -> bool:
        """Take out what there is; whether all that must be there has come."""
        while (id := self.fetch()) is not None:
            self.remove(id)
        return not self.kept

    def soon(self, what: Callable[[], bool]) -> None:
        """It becomes so by itself."""
        deadline = time.monotonic() + SOON_SECONDS
        while not what():
            assert time.monotonic() < deadline, f"not in {SOON_SECONDS} s:\n{self._daemon.last_words()}"
            time.sleep(_POLL_SECONDS)

    def _is_done(self, answer: Answer, *wanted: int) -> bool:
        if answer.status in wanted:
            return True
        assert answer.status == 503, answer
        assert int(answer.headers["retry-after"]) > 0
        assert answer.headers["content-type"] == "application/problem+json"
        assert "\n" not in json.loads(answer.body)["detail"]
        return False
