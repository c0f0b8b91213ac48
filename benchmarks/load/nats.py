"""NATS JetStream: a publish that the stream confirms, a pull of one message, a confirmed acknowledgement."""

from __future__ import annotations

import itertools
import json
from typing import Any, Final, NamedTuple

from benchmarks.load.codec import Codec, ServerError, Steps, check

_NUMBERS: Final = itertools.count()
_CONSUMER: Final = "consumer"
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
_WAIT: Final = b'{"batch":1,"expires":10000000000}'


class Delivered(NamedTuple):
    """A message from the server."""

    reply_to: bytes
    body: bytes


class NatsCodec(Codec):
    """As in Codec."""

    def __init__(self, queue: str, body: bytes) -> None:
        super().__init__(queue, body)
        self._inbox = b"_INBOX.%d" % next(_NUMBERS)
        self._publish = self._to(f"s.{queue}".encode(), body)
        self._fetch = self._to(f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{_CONSUMER}".encode(), _WAIT)

    def parse(self, data: bytes) -> tuple[bytes | Delivered, int] | None:
        """As in Codec: INFO and PONG as they are, deliveries with what belongs to them.

        A PING is looked over: no connection lives so long that the server would miss the answer.
        """
        end = data.find(b"\r\n")
        if end < 0:
            return None
        line = data[:end]
        end += 2
        if line.startswith(b"-ERR"):
            raise ServerError(line.decode(errors="replace"))
        if line == b"PING":
            found = self.parse(data[end:])
            return found and (found[0], end + found[1])
        if not line.startswith((b"MSG ", b"HMSG ")):
            return line, end
        words = line.split(b" ")
        length = int(words[-1])
        if len(data) < end + length + 2:
            return None
        extra = 5 if words[0] == b"HMSG" else 4
        reply_to = words[3] if len(words) > extra else b""
        return Delivered(reply_to, data[end : end + length]), end + length + 2

    def open(self) -> Steps:
        answer = yield b""
        check(answer.startswith(b"INFO "), answer)
        answer = yield _CONNECT + b"SUB %b 1\r\nPING\r\n" % self._inbox
        check(answer == b"PONG", answer)

    def create(self) -> Steps:
        stream = {
            "name": self.queue,
            "subjects": [f"s.{self.queue}"],
            "storage": "file",
            "retention": "workqueue",
            "num_replicas": 1,
        }
        yield from self._ask(f"STREAM.CREATE.{self.queue}", stream)
        consumer = {"durable_name": _CONSUMER, "ack_policy": "explicit", "ack_wait": 60_000_000_000}
        wanted = {"stream_name": self.queue, "config": {**consumer, "max_ack_pending": 100_000}}
        yield from self._ask(f"CONSUMER.DURABLE.CREATE.{self.queue}.{_CONSUMER}", wanted)

    def delete(self) -> Steps:
        yield from self._ask(f"STREAM.DELETE.{self.queue}", {})

    def publish(self) -> Steps:
        answer = yield self._publish
        check(b'"seq"' in answer.body, answer)

    def consume(self) -> Steps:
        answer = yield self._fetch
        check(len(answer.body) == len(self.body), answer)
        answer = yield self._to(answer.reply_to, b"+ACK")
        check(not answer.body, answer)

    def _ask(self, what: str, request: dict[str, Any]) -> Steps:
        answer = yield self._to(f"$JS.API.{what}".encode(), json.dumps(request).encode())
        check("error" not in json.loads(answer.body), answer)

    def _to(self, subject: bytes, body: bytes) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, self._inbox, len(body), body)
