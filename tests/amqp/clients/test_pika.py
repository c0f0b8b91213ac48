"""pika, blocking and with callbacks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exchange_type import ExchangeType

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

PERSISTENT = pika.BasicProperties(delivery_mode=2)
WAIT_SECONDS = 60


def parameters(server: Server) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", server.port, blocked_connection_timeout=WAIT_SECONDS)


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[[], BlockingConnection]]:
    opened: list[BlockingConnection] = []

    def open_one() -> BlockingConnection:
        opened.append(pika.BlockingConnection(parameters(server)))
        return opened[-1]

    yield open_one
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[[], BlockingConnection]) -> BlockingChannel:
    opened = connect().channel()
    opened.confirm_delivery()
    return opened


def wait_for(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message, which has to come."""
    method, properties, body = next(channel.consume(queue, inactivity_timeout=WAIT_SECONDS))
    assert method is not None, "no message came"
    channel.cancel()
    return method, properties, body


def consume(channel: BlockingChannel, queue: str, priority: object, prefetch: int = 0) -> list[tuple[int, bytes]]:
    """Consume with a priority. What comes is put into the list: tag and body."""
    got: list[tuple[int, bytes]] = []
    channel.basic_qos(prefetch_count=prefetch)
    arguments = {} if priority is None else {"x-priority": priority}
    channel.basic_consume(
        queue, lambda _channel, method, _properties, body: got.append((method.delivery_tag, body)), arguments=arguments
    )
    return got


def until(is_so: Callable[[], bool], *channels: BlockingChannel) -> None:
    """Work on the channels' connections until something is so."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        for channel in channels:
            channel.connection.process_data_events(0.02)


def test_higher_consumers_get_what_they_can_take_and_equal_ones_take_turns(
    connect: Callable[[], BlockingConnection], channel: BlockingChannel, queue: str
) -> None:
    channel.queue_declare(queue, durable=True)
    low, none, high, other = channels = [connect().channel() for _ in range(4)]
    of_low = consume(low, queue, -3)
    of_none = consume(none, queue, None, prefetch=1)
    of_high, of_other = consume(high, queue, 10, prefetch=2), consume(other, queue, 10, prefetch=2)
    for number in range(7):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    until(lambda: len(of_high + of_other + of_none + of_low) == 7, *channels)
    assert sorted(body for _, body in of_high + of_other) == [b"0", b"1", b"2", b"3"]
    assert (len(of_high), len(of_other)) == (2, 2)
    assert [body for _, body in of_none] == [b"4"]
    assert [body for _, body in of_low] == [b"5", b"6"]
    other.basic_ack(of_other[-1][0], multiple=True)
    other.connection.process_data_events(0.02)
    other.queue_declare(queue, passive=True)  # then the server knows of the acknowledgement
    for number in range(7, 9):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    until(lambda: len(of_other) == 4, *channels)
    assert [body for _, body in of_other[2:]] == [b"7", b"8"]
    assert len(of_low) == 2


def test_one_that_can_take_it_all_leaves_nothing_to_a_lower_one(
    connect: Callable[[], BlockingConnection], channel: BlockingChannel, queue: str
) -> None:
    """Also while it is just being sent others."""
    channel.queue_declare(queue, durable=True)
    publisher = connect().channel()
    channels = [connect().channel() for _ in range(2)]
    of_low, of_high = consume(channels[0], queue, 0), consume(channels[1], queue, 1)
    for number in range(1000):
        publisher.basic_publish("", queue, b"%d" % number, PERSISTENT)
    until(lambda: len(of_high) == 1000, publisher, *channels)
    channels[1].connection.close()
    until(lambda: len(of_low) == 1000, channels[0])


def test_a_consumer_priority_is_a_whole_number(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        consume(channel, queue, "high")
    assert caught.value.reply_code == 406
    assert "x-priority" in caught.value.reply_text


def test_of_one_active_consumer_the_highest_is_next(
    connect: Callable[[], BlockingConnection], channel: BlockingChannel, queue: str
) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    first, second, third = channels = [connect().channel() for _ in range(3)]
    of_first, of_second, of_third = (consume(each, queue, n) for each, n in zip(channels, (0, 1, 7), strict=True))
    channel.basic_publish("", queue, b"1", PERSISTENT)
    until(lambda: bool(of_first), *channels)  # a higher one that comes later does not take over
    first.basic_ack(of_first[0][0])
    first.connection.close()
    channel.basic_publish("", queue, b"2", PERSISTENT)
    until(lambda: bool(of_second or of_third), second, third)
    assert (of_second, [body for _, body in of_third]) == ([], [b"2"])


def test_publish_get_ack(channel: BlockingChannel, queue: str) -> None:
    assert channel.queue_declare(queue, durable=True).method.queue == queue
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    assert channel.queue_declare(queue, passive=True).method.message_count == 5
    for number in range(5):
        method, _, body = channel.basic_get(queue)
        assert (body, method.message_count) == (b"%d" % number, 4 - number)
        channel.basic_ack(method.delivery_tag)
    assert channel.basic_get(queue) == (None, None, None)


def headers_of(channel: BlockingChannel, queue: str) -> dict[str, Any]:
    """The headers of the queue's first message."""
    method, properties, _ = channel.basic_get(queue, auto_ack=True)
    assert method is not None, f"nothing in {queue}"
    return dict(properties.headers)


def test_more_keys_in_cc_and_bcc(channel: BlockingChannel, queue: str) -> None:
    names = [f"{queue}.{letter}" for letter in "abc"]
    channel.queue_declare(queue)
    for name in names:
        channel.queue_declare(name)
    headers = {"CC": [names[0], "nobody's"], "BCC": [names[1]], "mine": 1}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers))
    seen = {"CC": headers["CC"], "mine": 1}
    assert [headers_of(channel, name) for name in (queue, *names[:2])] == [seen] * 3
    assert channel.basic_get(names[2])[0] is None
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": names[0]}))
    assert caught.value.reply_code == 406


@pytest.mark.parametrize("has_key", [False, True])
def test_a_dead_letter_goes_by_all_of_its_keys_unless_it_gets_another(
    channel: BlockingChannel, queue: str, has_key: bool
) -> None:
    shown, hidden, other = (f"{queue}.{name}" for name in ("shown", "hidden", "other"))
    exchange = f"{queue}.x"
    channel.exchange_declare(exchange, "direct")
    for name in (shown, hidden, other):
        channel.queue_declare(name)
        channel.queue_bind(name, exchange, f"{name} once dead")
    key = {"x-dead-letter-routing-key": f"{other} once dead"} if has_key else {}
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": exchange, "x-message-ttl": 1, **key})
    copies = {"CC": [f"{shown} once dead"], "BCC": [f"{hidden} once dead"]}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=copies))
    wanted: dict[str, list[str]] = {other: []} if has_key else dict.fromkeys((shown, hidden), copies["CC"])
    until(lambda: all(channel.queue_declare(name, passive=True).method.message_count for name in wanted), channel)
    for name, copied_to in wanted.items():
        headers = headers_of(channel, name)
        assert headers.get("CC", []) == copied_to
        assert "BCC" not in headers
        assert headers["x-death"][0]["routing-keys"] == [queue, *copies["CC"]]


def test_a_flow_is_never_stopped(channel: BlockingChannel) -> None:
    assert channel.flow(True) is True
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        channel.flow(False)
    assert caught.value.reply_code == 540


def test_properties_come_back_as_they_went(channel: BlockingChannel, queue: str) -> None:
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"number": 7, "list": [1, "b"], "table": {"x": True}, "none": None},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"", sent)
    _, got, body = channel.basic_get(queue, auto_ack=True)
    assert (vars(got), body) == (vars(sent), b"")


@pytest.mark.parametrize("size", [1, 131_064, 131_065, 1_000_000])
def test_bodies_of_many_frames(channel: BlockingChannel, queue: str, size: int) -> None:
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"ab" * (size // 2) + b"c" * (size % 2))
    _, _, body = channel.basic_get(queue, auto_ack=True)
    assert len(body) == size


def test_a_mandatory_message_without_a_queue(channel: BlockingChannel, queue: str) -> None:
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", queue, b"x", mandatory=True)
    channel.basic_publish("", queue, b"x")


def test_a_full_queue_says_no(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue, b"2")


@pytest.mark.parametrize(
    ("kind", "bindings", "published"),
    [
        (ExchangeType.direct, [("a", None)], [("a", None, True), ("b", None, False)]),
        (ExchangeType.fanout, [("", None)], [("a", None, True), ("b", None, True)]),
        (
            ExchangeType.topic,
            [("*.stock.#", None)],
            [
                ("eu.stock", None, True),
                ("us.stock.x.y", None, True),
                ("stock", None, False),
                ("a.b.stock", None, False),
            ],
        ),
        (
            ExchangeType.headers,
            [("", {"x-match": "all", "a": 1, "b": "x"})],
            [("", {"a": 1, "b": "x", "c": 2}, True), ("", {"a": 1}, False)],
        ),
    ],
)
def test_exchanges(
    channel: BlockingChannel, queue: str, kind: ExchangeType, bindings: list[Any], published: list[Any]
) -> None:
    channel.exchange_declare(f"x-{queue}", kind, durable=True)
    channel.queue_declare(queue)
    for key, arguments in bindings:
        channel.queue_bind(queue, f"x-{queue}", key, arguments)
    for number, (key, headers, _) in enumerate(published):
        channel.basic_publish(f"x-{queue}", key, b"%d" % number, pika.BasicProperties(headers=headers))
    got = [int(body) for _, _, body in iter(lambda: channel.basic_get(queue, auto_ack=True), (None, None, None))]
    assert got == [number for number, (_, _, fits) in enumerate(published) if fits]
    channel.exchange_delete(f"x-{queue}")


def test_exchanges_behind_exchanges(channel: BlockingChannel, queue: str) -> None:
    for name in ("front", "back"):
        channel.exchange_declare(f"{name}-{queue}", ExchangeType.fanout, auto_delete=name == "back")
    channel.queue_declare(queue)
    channel.queue_bind(queue, f"back-{queue}")
    channel.exchange_bind(f"back-{queue}", f"front-{queue}")
    channel.basic_publish(f"front-{queue}", "", b"x")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"x"
    channel.queue_unbind(queue, f"back-{queue}")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.exchange_declare(f"back-{queue}", passive=True)
    assert caught.value.reply_code == 404


def test_consuming_with_callbacks(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number)
    got: list[int] = []

    def handle(consumer: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        got.append(int(body))
        consumer.basic_ack(method.delivery_tag)
        if len(got) == 20:
            consumer.stop_consuming()

    channel.basic_qos(prefetch_count=3)
    channel.basic_consume(queue, handle)
    channel.start_consuming()
    assert got == list(range(20))


def test_ack_of_many_and_nack_and_reject(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(6):
        channel.basic_publish("", queue, b"%d" % number)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(6)]
    channel.basic_ack(tags[1], multiple=True)
    channel.basic_reject(tags[2], requeue=False)
    channel.basic_nack(tags[4], multiple=True, requeue=True)
    channel.basic_nack(tags[5], requeue=False)
    again = [channel.basic_get(queue, auto_ack=True) for _ in range(2)]
    assert [(body, method.redelivered) for method, _, body in again] == [(b"3", True), (b"4", True)]
    assert channel.basic_get(queue)[0] is None


def test_recover_brings_back(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    assert channel.basic_get(queue)[0].redelivered is False
    channel.basic_recover(requeue=True)
    method, _, body = wait_for(channel, queue)
    assert (method.redelivered, body) == (True, b"x")


def test_a_transaction(connect: Callable[[], BlockingConnection], queue: str) -> None:
    channel, other = connect().channel(), connect().channel()
    channel.queue_declare(queue)
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    assert other.basic_get(queue)[0] is None
    channel.tx_commit()
    assert other.basic_get(queue, auto_ack=True)[2] == b"committed"
    assert other.basic_get(queue)[0] is None


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        (404, lambda channel, queue: channel.queue_declare(f"{queue}-none", passive=True)),
        (404, lambda channel, queue: channel.basic_get(f"{queue}-none")),
        (404, lambda channel, queue: channel.queue_bind(queue, f"{queue}-none")),
        (406, lambda channel, queue: channel.queue_declare(queue, durable=True)),
        (406, lambda channel, queue: channel.queue_declare(f"{queue}-x", arguments={"x-max-length": -1})),
        (406, lambda channel, queue: channel.queue_delete(queue, if_empty=True)),
        (403, lambda channel, queue: channel.queue_declare("amq.mine")),
        (403, lambda channel, queue: channel.exchange_delete("amq.topic")),
    ],
)
def test_refusals_close_the_channel(
    connect: Callable[[], BlockingConnection], queue: str, code: int, wrong: Callable[[Any, str], None]
) -> None:
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=False)
    channel.basic_publish("", queue, b"x")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        wrong(channel, queue)
    assert caught.value.reply_code == code
    assert connection.channel().queue_declare(queue, passive=True).method.message_count == 1


def test_an_unknown_tag_closes_the_channel(connect: Callable[[], BlockingConnection], queue: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.basic_ack(17)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="unknown delivery tag 17") as caught:
        channel.queue_declare(queue)
    assert caught.value.reply_code == 406
    assert connection.channel().is_open


def test_a_queue_of_one_connection(connect: Callable[[], BlockingConnection], queue: str) -> None:
    owner, other = connect(), connect()
    owner.channel().queue_declare(queue, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.channel().queue_declare(queue, exclusive=True)
    assert caught.value.reply_code == 405
    owner.close()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.channel().queue_declare(queue, passive=True)
    assert caught.value.reply_code == 404


def test_the_server_names_a_queue_and_means_it_from_then_on(channel: BlockingChannel) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    channel.basic_publish("", name, b"x")
    assert channel.queue_purge(name).method.message_count == 1


def test_a_queue_that_goes_with_its_last_consumer(connect: Callable[[], BlockingConnection], queue: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    channel.basic_cancel(channel.basic_consume(queue, lambda *_: None))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare(queue, passive=True)


def test_a_consumer_is_told_that_its_queue_is_gone(connect: Callable[[], BlockingConnection], queue: str) -> None:
    channel, other = connect().channel(), connect().channel()
    channel.queue_declare(queue)
    told: list[str] = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    other.queue_delete(queue)
    channel.start_consuming()  # until there is no consumer left
    assert told == [tag]


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_dead_letters_tell_their_way(channel: BlockingChannel, queue: str, reason: str) -> None:
    dead = f"dead-{queue}"
    channel.queue_declare(dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    more = {"expired": {"x-message-ttl": 50}, "maxlen": {"x-max-length": 1}}.get(reason, {})
    channel.queue_declare(queue, arguments={**arguments, **more})
    channel.basic_publish("", queue, b"first", pika.BasicProperties(headers={"mine": 1}))
    if reason == "maxlen":
        channel.basic_publish("", queue, b"second")
    elif reason == "rejected":
        channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    _, properties, body = wait_for(channel, dead)
    (death,) = properties.headers["x-death"]
    assert body == b"first"
    assert properties.headers["mine"] == 1
    assert (death["queue"], death["reason"], death["count"], death["exchange"], death["routing-keys"]) == (
        queue,
        reason,
        1,
        "",
        [queue],
    )
    firsts = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
    assert [properties.headers[name] for name in firsts] == [queue, reason, ""]


def test_a_message_for_now_or_never(connect: Callable[[], BlockingConnection], queue: str) -> None:
    """Expiration 0: who is ready gets it, and nobody who comes later."""
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue)
    got: list[bytes] = []
    channel.basic_publish("", queue, b"never", pika.BasicProperties(expiration="0"))
    while channel.queue_declare(queue, passive=True).method.message_count:
        connection.sleep(0.01)  # at once for RabbitMQ, a millisecond for mq
    channel.basic_consume(queue, lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    for body in (b"now", b"end"):
        channel.basic_publish("", queue, body, pika.BasicProperties(expiration="0" if body == b"now" else None))
    for _ in itertools.takewhile(lambda _: b"end" not in got, range(100)):
        connection.process_data_events(0.1)
    assert got == [b"now", b"end"]


def test_priorities(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-max-priority": 5})
    for number, priority in enumerate((1, 5, 3, None, 5)):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(priority=priority))
    got = [int(channel.basic_get(queue, auto_ack=True)[2]) for _ in range(5)]
    assert got == [1, 4, 2, 0, 3]


def test_a_new_secret(connect: Callable[[], BlockingConnection], queue: str) -> None:
    connection = connect()
    connection.update_secret("guest", "because")
    assert connection.channel().queue_declare(queue).method.queue == queue


class Selecting:
    """SelectConnection: opens, declares, publishes many at once, and consumes them, all in callbacks."""

    def __init__(self, server: Server, queue: str, count: int) -> None:
        self.queue = queue
        self.count = count
        self.confirmed = 0
        self.got: list[int] = []
        self.failure: Any = None
        self.connection = pika.SelectConnection(
            parameters(server),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=self.failed,
            on_close_callback=lambda connection, _why: connection.ioloop.stop(),
        )

    def run(self) -> None:
        self.connection.ioloop.call_later(3 * WAIT_SECONDS, lambda: self.failed(self.connection, "too slow"))
        self.connection.ioloop.start()
        self.connection.ioloop.close()

    def failed(self, connection: Any, why: Any) -> None:
        self.failure = why
        connection.ioloop.stop()

    def opened(self, channel: Any) -> None:
        self.channel = channel
        channel.queue_declare(self.queue, durable=True, callback=self.declared)

    def declared(self, _frame: Any) -> None:
        self.channel.confirm_delivery(self.on_confirm)
        for number in range(self.count):
            self.channel.basic_publish("", self.queue, b"%d" % number, PERSISTENT)
        self.channel.basic_qos(prefetch_count=100)
        self.channel.basic_consume(self.queue, self.on_message)

    def on_confirm(self, frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack"
        tag = frame.method.delivery_tag
        self.confirmed = tag if frame.method.multiple else self.confirmed + 1
        self.end_when_done()

    def on_message(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self.got.append(int(body))
        if len(self.got) % 50 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        self.end_when_done()

    def end_when_done(self) -> None:
        if self.confirmed >= self.count and len(self.got) == self.count:
            self.connection.close()


def test_a_thousand_messages_in_callbacks(server: Server, queue: str) -> None:
    selecting = Selecting(server, queue, 1000)
    selecting.run()
    assert selecting.failure is None
    assert selecting.got == list(range(1000))
    with pika.BlockingConnection(parameters(server)) as connection:
        assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0


def test_round_robin(connect: Callable[[], BlockingConnection], channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    got: list[list[int]] = [[], [], []]
    connection = connect()
    consuming = connection.channel()
    for mine in got:
        consuming.basic_consume(queue, lambda _c, _m, _p, body, mine=mine: mine.append(int(body)), auto_ack=True)
    for number in range(9):
        channel.basic_publish("", queue, b"%d" % number)
    for _ in itertools.takewhile(lambda _: sum(map(len, got)) < 9, range(100)):
        connection.process_data_events(0.1)
    assert sorted(got) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
