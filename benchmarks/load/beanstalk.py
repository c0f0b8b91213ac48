"""beanstalkd's protocol."""

from __future__ import annotations

from typing import Final

from benchmarks.load.codec import Codec, Steps, check

_LEASE_SECONDS: Final = 60
_MOST_LEFT: Final = 2000


class BeanstalkCodec(Codec):
    """As in Codec."""

    def __init__(self, queue: str, body: bytes) -> None:
        super().__init__(queue, body)
        self._publish = b"put 0 0 %d %d\r\n%b\r\n" % (_LEASE_SECONDS, len(body), body)

    def parse(self, data: bytes) -> tuple[bytes, int] | None:
        """As in Codec: the line; whatever follows a RESERVED is looked over."""
        end = data.find(b"\r\n")
        if end < 0:
            return None
        line = data[:end]
        whole = end + 2
        if line.startswith(b"RESERVED "):
            whole += int(line.rpartition(b" ")[2]) + 2
        return (line, whole) if len(data) >= whole else None

    def open(self) -> Steps:
        queue = self.queue.encode()
        answer = yield b"use %b\r\n" % queue
        check(answer.startswith(b"USING "), answer)
        answer = yield b"watch %b\r\n" % queue
        check(answer.startswith(b"WATCHING "), answer)
        answer = yield b"ignore default\r\n"
        check(answer.startswith(b"WATCHING "), answer)

    def publish(self) -> Steps:
        answer = yield self._publish
        check(answer.startswith(b"INSERTED "), answer)

    def consume(self) -> Steps:
        answer = yield b"reserve-with-timeout 10\r\n"
        check(answer.startswith(b"RESERVED "), answer)
        answer = yield b"delete %b\r\n" % answer.split(b" ")[1]
        check(answer == b"DELETED", answer)

    def delete(self) -> Steps:
        """As in Codec: beanstalkd has no word for it, so what is left is consumed, or most of it. What then stays is
        in no one's way."""
        for _ in range(_MOST_LEFT):
            answer = yield b"reserve-with-timeout 0\r\n"
            if not answer.startswith(b"RESERVED "):
                return
            yield b"delete %b\r\n" % answer.split(b" ")[1]
