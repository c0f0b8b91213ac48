"""mq over HTTP/1.1."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from benchmarks.load.codec import Codec, Steps, check

WAIT_SECONDS: Final = 10
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ID: Final = re.compile(rb"\r\nx-message-id: *([\w-]+)", re.IGNORECASE)
_PATIENCE: Final = 20
_STATUS: Final = slice(9, 12)
_NO_BODY: Final = (b"204", b"304")


class Answer(NamedTuple):
    """A response: its head without the empty line, how long its body is, and the body of a refusal."""

    head: bytes
    length: int
    body: bytes = b""


class HttpCodec(Codec):
    """As in Codec."""

    def __init__(self, queue: str, body: bytes) -> None:
        super().__init__(queue, body)
        self._publish = self._request("POST", f"/{queue}/messages", body)
        self._fetch = self._request("GET", f"/{queue}/messages?wait={WAIT_SECONDS}")
        self._fetch_now = self._request("GET", f"/{queue}/messages")
        self._remove = (f"DELETE /{queue}/messages/".encode(), b" HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def parse(self, data: bytes) -> tuple[Answer, int] | None:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = data[:end]
        found = _LENGTH.search(head)
        length = int(found[1]) if found else 0
        check(found is not None or head[_STATUS] in _NO_BODY, head)
        whole = end + 4 + length
        if len(data) < whole:
            return None
        refused = head[_STATUS] >= b"400"
        return Answer(head, length, data[end + 4 : whole] if refused else b""), whole

    def create(self) -> Steps:
        _good((yield self._request("PUT", f"/{self.queue}")))

    def delete(self) -> Steps:
        _good((yield self._request("DELETE", f"/{self.queue}")))

    def publish(self) -> Steps:
        _good((yield self._publish), b"201")

    def fetch_nothing(self) -> Steps:
        """Fetch from the queue, which is empty, without waiting."""
        _good((yield self._fetch_now), b"204")

    def consume(self) -> Steps:
        answer = yield self._fetch
        for _ in range(_PATIENCE):  # a lease whose barrier took too long is not handed out
            if answer.head[_STATUS] != b"503":
                break
            answer = yield self._fetch
        _good(answer, b"200")
        check(answer.length == len(self.body), answer)
        found = _ID.search(answer.head)
        assert found is not None, answer
        _good((yield found[1].join(self._remove)), b"202")

    def _request(self, method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
        head = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        if method in ("POST", "PUT"):
            head.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*head, *lines, "", ""]).encode() + body


def _good(answer: Answer, status: bytes | None = None) -> None:
    got = answer.head[_STATUS]
    check(got == status if status else got.startswith(b"2"), answer)
