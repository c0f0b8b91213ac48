"""The load generator's codecs take answers apart wherever the network cuts them. No server is asked here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.cases import for_each

codec = pytest.importorskip("benchmarks.load.codec", reason="a source package has no benchmarks")
amqp = pytest.importorskip("benchmarks.load.amqp")
beanstalk = pytest.importorskip("benchmarks.load.beanstalk")
http = pytest.importorskip("benchmarks.load.http")
nats = pytest.importorskip("benchmarks.load.nats")
redis = pytest.importorskip("benchmarks.load.redis")

BODY = b"1\r\n2\x00"
ACK, DELIVER = (60, 80), (60, 60)


def frame(kind: int, payload: bytes) -> bytes:
    return kind.to_bytes(1, "big") + b"\0\1" + len(payload).to_bytes(4, "big") + payload + b"\xce"


def method(numbers: tuple[int, int], *rest: bytes) -> bytes:
    return frame(1, b"".join([*(number.to_bytes(2, "big") for number in numbers), *rest]))


def confirm(tag: int, *, multiple: bool = False) -> bytes:
    return method(ACK, tag.to_bytes(8, "big"), bytes([multiple]))


def delivery(tag: int) -> bytes:
    head = frame(2, b"\0\x3c\0\0" + len(BODY).to_bytes(8, "big") + b"\0\0")
    return method(DELIVER, b"\3tag", tag.to_bytes(8, "big"), b"\0\0\1q") + head + frame(3, BODY)


CONVERSATIONS = {
    "http publish": (http.HttpCodec, "publish", [b"HTTP/1.1 201 \r\nContent-Length: 0\r\n\r\n"]),
    "http consume": (
        http.HttpCodec,
        "consume",
        [
            b"HTTP/1.1 200 \r\nx-message-id: a-1\r\ncontent-length: 5\r\n\r\n" + BODY,
            b"HTTP/1.1 202 \r\ncontent-length: 0\r\n\r\n",
        ],
    ),
    "beanstalk publish": (beanstalk.BeanstalkCodec, "publish", [b"INSERTED 1\r\n"]),
    "beanstalk consume": (
        beanstalk.BeanstalkCodec,
        "consume",
        [b"RESERVED 7 5\r\n" + BODY + b"\r\n", b"DELETED\r\n"],
    ),
    "redis publish": (redis.RedisCodec, "publish", [b"$3\r\n1-1\r\n"]),
    "redis consume": (
        redis.RedisCodec,
        "consume",
        [
            b"*1\r\n*2\r\n$1\r\nq\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nb\r\n$5\r\n" + BODY + b"\r\n",
            b":1\r\n:1\r\n",
        ],
    ),
    "nats publish": (nats.NatsCodec, "publish", [b'PING\r\nMSG i 1 9\r\n{"seq":1}\r\n']),
    "nats consume": (nats.NatsCodec, "consume", [b"MSG i 1 $JS.ACK 5\r\n" + BODY + b"\r\n", b"MSG i 1 0\r\n\r\n"]),
    "amqp publish": (amqp.AmqpCodec, "publish", [confirm(1)]),
    "amqp consume": (amqp.AmqpCodec, "consume", [delivery(1)]),
    "amqp publish while a message comes": (amqp.AmqpCodec, "publish", [delivery(1) + confirm(1)]),
}

each_conversation = for_each("make, what, answers", CONVERSATIONS.values())


def talk(one: codec.Codec, steps: codec.Steps, answers: Sequence[bytes], piece: int) -> list[bytes]:
    """Go through an operation with answers in pieces. What was sent."""
    sent, received, rest = [], b"", b"".join(answers)
    try:
        request = next(steps)
        while True:
            sent.append(request)
            while (found := one.parse(received)) is None:
                assert rest, "it waits for more than the server says"
                received, rest = received + rest[:piece], rest[piece:]
            received = received[found[1] :]
            request = steps.send(found[0])
    except StopIteration:
        assert not received + rest, "it has not heard all of it"
        return sent


@each_conversation
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_answers_may_be_cut_anywhere(make: type[codec.Codec], what: str, answers: list[bytes], piece: int) -> None:
    one = make("q", BODY)
    assert talk(one, getattr(one, what)(), answers, piece)


@for_each(
    "make, what, answer",
    [
        (http.HttpCodec, "publish", b"HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n"),
        (http.HttpCodec, "consume", b"HTTP/1.1 204 \r\n\r\n"),
        (http.HttpCodec, "consume", b"HTTP/1.1 200 \r\nx-message-id: a\r\ncontent-length: 1\r\n\r\nx"),
        (beanstalk.BeanstalkCodec, "publish", b"OUT_OF_MEMORY\r\n"),
        (beanstalk.BeanstalkCodec, "consume", b"TIMED_OUT\r\n"),
        (redis.RedisCodec, "publish", b"-MISCONF no disk\r\n"),
        (redis.RedisCodec, "consume", b"*-1\r\n"),
        (nats.NatsCodec, "publish", b'MSG i 1 11\r\n{"error":1}\r\n'),
        (nats.NatsCodec, "publish", b"-ERR 'no'\r\n"),
        (amqp.AmqpCodec, "publish", method((60, 120), bytes(8), b"\0")),
        (amqp.AmqpCodec, "publish", method((20, 40), bytes(7))),
    ],
)
def test_refusals_are_no_figures(make: type[codec.Codec], what: str, answer: bytes) -> None:
    one = make("q", BODY)
    with pytest.raises(codec.ServerError):
        talk(one, getattr(one, what)(), [answer], 1000)


@pytest.mark.parametrize(
    "confirms",
    [
        [confirm(3, multiple=True)],
        [confirm(1), confirm(2), confirm(3)],
        [confirm(2), confirm(1), confirm(3)],
        [confirm(3), confirm(2, multiple=True)],
    ],
)
def test_amqp_window_ends_with_its_last_confirm(confirms: list[bytes]) -> None:
    one = amqp.AmqpCodec("q", BODY)
    talk(one, one.publish_many(3), confirms, 1000)
    talk(one, one.publish_many(2), [confirm(5, multiple=True)], 1000)
    talk(one, one.publish_many(3, outstanding=2), [confirm(7)], 1000)
    talk(one, one.publish_many(1, outstanding=1), [confirm(6), confirm(9)], 1000)
    with pytest.raises(AssertionError, match="waits for more"):
        talk(one, one.publish_many(2), [confirm(8), confirm(10)], 1000)
