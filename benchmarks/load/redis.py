"""Redis streams: XADD, then XREADGROUP by one consumer group, then XACK and XDEL together.

A stream with a group is what Redis has that comes nearest to a lease: a message that was handed out stays until it is
acknowledged, and can be claimed by another consumer.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.load.codec import Codec, ServerError, Steps, check

_GROUP: Final = b"group"


class RedisCodec(Codec):
    """As in Codec."""

    def __init__(self, queue: str, body: bytes) -> None:
        super().__init__(queue, body)
        self._key = queue.encode()
        self._publish = _command(b"XADD", self._key, b"*", b"b", body)
        self._fetch = _command(
            *(b"XREADGROUP", b"GROUP", _GROUP, b"reader", b"COUNT", b"1", b"BLOCK", b"10000"),
            *(b"STREAMS", self._key, b">"),
        )

    def parse(self, data: bytes) -> tuple[Any, int] | None:
        """As in Codec: a reply of RESP 2 as Python's own values."""
        try:
            return _value(data, 0)
        except _NotWhole:
            return None

    def create(self) -> Steps:
        answer = yield _command(b"XGROUP", b"CREATE", self._key, _GROUP, b"0", b"MKSTREAM")
        check(answer == b"OK", answer)

    def delete(self) -> Steps:
        yield _command(b"DEL", self._key)

    def publish(self) -> Steps:
        yield self._publish

    def consume(self) -> Steps:
        answer = yield self._fetch
        check(answer is not None, answer)
        [[_, [[id, [_, body]]]]] = answer
        check(len(body) == len(self.body), id)
        acknowledged = yield _command(b"XACK", self._key, _GROUP, id) + _command(b"XDEL", self._key, id)
        deleted = yield b""
        check(acknowledged == deleted == 1, (acknowledged, deleted))


class _NotWhole(Exception):
    """More bytes are to come."""


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _value(data: bytes, start: int) -> tuple[Any, int]:
    """A value and where it ends."""
    end = data.find(b"\r\n", start)
    if end < 0:
        raise _NotWhole
    kind, line, end = data[start : start + 1], data[start + 1 : end], end + 2
    if kind in b"$*" and line == b"-1":
        return None, end
    if kind == b"$":
        length = int(line)
        if len(data) < end + length + 2:
            raise _NotWhole
        return data[end : end + length], end + length + 2
    if kind == b"*":
        values = []
        for _ in range(int(line)):
            value, end = _value(data, end)
            values.append(value)
        return values, end
    if kind == b":":
        return int(line), end
    if kind == b"+":
        return line, end
    raise ServerError(line.decode(errors="replace"))
