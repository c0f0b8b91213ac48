"""A connection from its first byte to its last: who gets in, what is agreed on, what ends it."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import pytest
from pamqp import commands as methods

from mq.access import User
from mq.amqp.protocol.commands import Authenticate, Authenticated, Done, Leave, PublishMessages, Release
from mq.amqp.protocol.connection import MOST_BYTES_DROPPED, ConnectionState
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.frames import HEARTBEAT, PROTOCOL_HEADER
from tests.amqp.talking import Peer, content, publish, ready, words
from tests.cases import for_each

GOODBYE = methods.Connection.Close(200, "bye", 0, 0)


def closed_with(peer: Peer) -> tuple[int, str]:
    """The code and the text of the one connection.close, and nothing after it."""
    *_, (channel, close) = peer.heard()
    assert (channel, close.name) == (0, "Connection.Close")
    assert peer.connection.state is ConnectionState.CLOSING
    return close.reply_code, close.reply_text


# Beginning


def test_the_way_in() -> None:
    peer = Peer()
    peer.send(PROTOCOL_HEADER)
    [(_, start)] = peer.heard()
    assert (start.version_major, start.version_minor, start.mechanisms) == (0, 9, "PLAIN AMQPLAIN")
    assert start.server_properties["capabilities"]["publisher_confirms"] is True
    peer.log_in()
    [(_, tune)] = peer.heard()
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)
    peer.say(methods.Connection.TuneOk(10, 4096, 30), methods.Connection.Open("blue"), channel=0)
    assert peer.names() == ["Connection.OpenOk"]
    assert (peer.connection.state, peer.connection.session.vhost) == (ConnectionState.OPEN, "blue")


def test_one_byte_at_a_time() -> None:
    peer = Peer()
    for byte in PROTOCOL_HEADER + words(methods.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0):
        peer.send(bytes([byte]))
    assert peer.names() == ["Connection.Start", "Connection.Tune"]


@pytest.mark.parametrize("data", [b"HELO example\r\n", b"AMQP\x03\x01\0\0", b"\x16\x03\x01\x02\x00\x01"])
def test_another_protocol_is_told_which_one_this_is(data: bytes) -> None:
    peer = Peer()
    peer.connection.receive(data)
    assert peer.connection.next_command() is None
    assert peer.connection.outgoing() == PROTOCOL_HEADER
    assert peer.connection.is_over
    peer.connection.receive(data * 1000)  # nothing is kept of what comes now
    assert peer.connection.next_command() is None


@pytest.mark.parametrize(
    ("mechanism", "response", "who"),
    [
        ("PLAIN", "\0shop\0secret", ("shop", "secret")),
        ("PLAIN", "else\0shop\0secret", ("shop", "secret")),
        ("PLAIN", "\0ü\0\0".rstrip("\0") + "\0p", ("ü", "p")),
        ("AMQPLAIN", "\x05LOGINS\0\0\0\x04shop\x08PASSWORDS\0\0\0\x06secret", ("shop", "secret")),
    ],
)
def test_mechanisms(mechanism: str, response: str, who: tuple[str, str]) -> None:
    user = User(who[0], {})
    peer = Peer(users={who: user})
    peer.begin()
    peer.log_in(response, mechanism)
    assert peer.names() == ["Connection.Tune"]
    assert peer.connection.session.user is user


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("EXTERNAL", ""), ("PLAIN", "guest"), ("PLAIN", "\0a\0b\0c"), ("AMQPLAIN", "\x05LOGINS"), ("AMQPLAIN", "")],
)
def test_who_makes_no_sense_is_dropped_without_a_word(mechanism: str, response: str) -> None:
    peer = Peer()
    peer.begin()
    peer.log_in(response, mechanism)
    assert peer.heard() == []
    assert peer.connection.is_over
    assert "guest" not in peer.connection.why


def test_strangers() -> None:
    peer = Peer()
    peer.begin()
    peer.log_in("\0guest\0wrong")
    [(_, close)] = peer.heard()
    assert (close.name, close.reply_code) == ("Connection.Close", Code.ACCESS_REFUSED)
    assert peer.connection.is_over
    assert "wrong" not in close.reply_text
    old = Peer()
    old.begin()
    old.log_in("\0guest\0wrong", capabilities={})
    assert old.heard() == []
    assert old.connection.is_over


@pytest.mark.parametrize(
    ("tune", "wrong"),
    [
        ((2047, 131_072, 0), ""),
        ((1, 4096, 65_535), ""),
        ((0, 131_072, 60), "channel_max"),
        ((2048, 131_072, 60), "channel_max"),
        ((10, 0, 60), "frame_max"),
        ((10, 4095, 60), "frame_max"),
        ((10, 131_073, 60), "frame_max"),
    ],
)
def test_tuning(tune: tuple[int, int, int], wrong: str) -> None:
    peer = Peer()
    peer.begin()
    peer.log_in()
    peer.heard()
    peer.say(methods.Connection.TuneOk(*tune), channel=0)
    if wrong:
        code, text = closed_with(peer)
        assert code == Code.NOT_ALLOWED
        assert wrong in text
    else:
        assert peer.connection.state is ConnectionState.OPENING


def test_as_many_channels_as_were_agreed_on() -> None:
    peer = Peer(channel_max=65_535)
    peer.begin()
    peer.log_in()
    (_, tune) = peer.heard()[-1]
    assert tune.channel_max == 65_535
    peer.say(methods.Connection.TuneOk(60_000, 131_072, 0), methods.Connection.Open("/"), channel=0)
    for number in (2048, 60_000):
        peer.say(methods.Channel.Open(), channel=number)
    assert peer.names() == ["Connection.OpenOk", "Channel.OpenOk", "Channel.OpenOk"]
    peer.say(methods.Channel.Open(), channel=60_001)
    assert closed_with(peer)[0] == Code.CHANNEL_ERROR


def test_an_unknown_vhost() -> None:
    peer = Peer()
    peer.begin()
    peer.log_in()
    peer.say(methods.Connection.TuneOk(10, 4096, 0), methods.Connection.Open("red"), channel=0)
    assert closed_with(peer) == (Code.NOT_ALLOWED, "NOT_ALLOWED - vhost 'red' not found")


@pytest.mark.parametrize("spoken", [methods.Connection.Open("/"), methods.Channel.Open(), GOODBYE])
def test_nothing_comes_before_its_time(spoken: Any) -> None:
    peer = Peer()
    peer.begin()
    peer.send(words(spoken, 0 if spoken.name.startswith("Connection") else 1))
    assert peer.heard() == []
    assert peer.connection.is_over


def test_who_takes_too_long() -> None:
    peer = Peer(handshake_seconds=10.0)
    peer.begin()
    assert peer.connection.wake_at() == 110.0
    peer.clock.now = 109.9
    peer.connection.tick()
    assert not peer.connection.is_over
    peer.clock.now = 110.0
    peer.connection.tick()
    assert peer.connection.is_over
    assert "timed out" in peer.connection.why


def test_frames_are_as_large_as_agreed_on() -> None:
    small, large = Peer().open(frame_max=4096), Peer().open(frame_max=131_072)
    for peer in (small, large):
        peer.call(methods.Queue.Declare(queue="q"))
        peer.send(words(methods.Basic.Publish(routing_key="q")), content(1, b"x" * 4088 * 2, most=4088))
    large.send(words(methods.Basic.Publish(routing_key="q")), content(1, b"x" * 100_000, most=100_000))
    assert large.heard() == []
    for peer, sizes in ((small, [4088, 4088]), (large, [8176])):
        peer.say(methods.Basic.Get(queue="q"))
        _, _, *parts = peer.heard()
        assert [len(part.value) for _, part in parts] == sizes
    small.send(words(methods.Basic.Publish(routing_key="q")), content(1, b"x" * 4089, most=4089))
    assert closed_with(small)[0] == Code.FRAME_ERROR


# Heartbeats


def test_heartbeats_both_ways() -> None:
    peer = Peer().open(heartbeat=10)
    assert peer.connection.wake_at() == 105.0
    peer.clock.now = 105.0
    peer.connection.tick()
    assert peer.connection.outgoing() == HEARTBEAT
    assert peer.connection.wake_at() == 110.0
    peer.clock.now = 119.0
    peer.send(HEARTBEAT)
    assert peer.heard() == []
    peer.connection.tick()
    assert peer.connection.outgoing() == HEARTBEAT
    peer.clock.now = 138.9  # it would be dead without the one that came
    peer.connection.tick()
    assert not peer.connection.is_over
    peer.clock.now = 139.0
    peer.connection.tick()
    assert peer.connection.is_over
    assert "heartbeat" in peer.connection.why


def test_no_heartbeats() -> None:
    peer = Peer().open(heartbeat=0)
    assert peer.connection.wake_at() == float("inf")
    peer.clock.now = 1e9
    peer.connection.tick()
    assert peer.connection.outgoing() == b""


# Channels


@for_each(
    "data, code",
    [
        (words(methods.Basic.Qos(), 5), Code.CHANNEL_ERROR),
        (words(methods.Channel.Open(), 1), Code.CHANNEL_ERROR),
        (words(methods.Channel.Open(), 2048), Code.CHANNEL_ERROR),
        (words(methods.Channel.Open(), 0), Code.CHANNEL_ERROR),
        (words(methods.Connection.StartOk({}, "PLAIN", ""), 0), Code.CHANNEL_ERROR),
        (words(methods.Connection.Open(), 1), Code.COMMAND_INVALID),
        (words(methods.Basic.QosOk(), 1), Code.COMMAND_INVALID),
        (words(methods.Queue.DeclareOk(queue="q", message_count=0, consumer_count=0), 1), Code.COMMAND_INVALID),
        (content(0, b""), Code.UNEXPECTED_FRAME),
        (content(1, b""), Code.UNEXPECTED_FRAME),
        (content(7, b""), Code.CHANNEL_ERROR),
        (words(methods.Basic.Publish()) + words(methods.Basic.Qos()), Code.UNEXPECTED_FRAME),
        (words(methods.Basic.Publish()) + content(1, b"x")[22:], Code.UNEXPECTED_FRAME),
        (words(methods.Basic.Publish()) + content(1, b"xy")[:22] * 2, Code.UNEXPECTED_FRAME),
        (words(methods.Basic.Publish()) + content(1, b"x")[:22] + content(1, b"xy")[22:], Code.FRAME_ERROR),
        (publish("q", immediate=True), Code.NOT_IMPLEMENTED),
        (words(methods.Basic.Qos(prefetch_size=1)), Code.NOT_IMPLEMENTED),
        (words(methods.Basic.Recover(requeue=False)), Code.NOT_IMPLEMENTED),
        (words(methods.Exchange.Declare(exchange="x", exchange_type="odd")), Code.COMMAND_INVALID),
        (words(methods.Exchange.Declare(exchange="x", exchange_type="direct"))[:-1] + b"\0", Code.FRAME_ERROR),
        (struct.pack(">BHI", 1, 1, 200_000), Code.FRAME_ERROR),
        (struct.pack(">BHI", 9, 1, 0) + b"\xce", Code.FRAME_ERROR),
        (struct.pack(">BHI", 8, 1, 0) + b"\xce", Code.UNEXPECTED_FRAME),
    ],
)
def test_what_ends_a_connection(data: bytes, code: Code) -> None:
    peer = Peer().open()
    peer.send(data)
    got, text = closed_with(peer)
    assert got == code
    assert text.startswith(code.name + " - ")
    assert isinstance(peer.done[-1], Release)
    peer.send(words(methods.Channel.Open(), 2), publish("q"), words(methods.Connection.CloseOk(), 0))
    assert peer.heard() == []
    assert peer.connection.is_over


def test_a_close_tells_which_method_was_wrong() -> None:
    peer = Peer().open()
    peer.say(methods.Basic.Qos(prefetch_size=1))
    [(_, close)] = peer.heard()
    assert (close.class_id, close.method_id) == (60, 10)


def test_who_never_answers_a_close_is_dropped() -> None:
    peer = Peer(handshake_seconds=10.0).open()
    peer.connection.close()
    peer.flush()
    assert closed_with(peer)[0] == Code.CONNECTION_FORCED
    peer.send(words(methods.Channel.Open(), 2))
    assert (peer.heard(), peer.connection.is_over) == ([], False)
    peer.clock.now += 10
    peer.connection.tick()
    assert peer.connection.is_over


def test_both_close_at_once() -> None:
    peer = Peer().open()
    peer.connection.close()
    peer.say(GOODBYE, channel=0)
    assert peer.names() == ["Connection.Close", "Connection.CloseOk"]
    assert peer.connection.state is ConnectionState.LEFT


def test_a_client_says_goodbye() -> None:
    peer = Peer().open(channels=2)
    peer.say(GOODBYE, channel=0)
    assert peer.names() == ["Connection.CloseOk"]
    assert (peer.connection.state, peer.connection.why) == (ConnectionState.LEFT, "")
    assert [command.channel.number for command in peer.done if isinstance(command, Release)] == [1, 2]
    assert peer.done[-1] == Leave(None)


def test_what_comes_after_a_goodbye_is_dropped_within_limits() -> None:
    peer = Peer(handshake_seconds=10.0).open(heartbeat=4)
    peer.call(methods.Queue.Declare(queue="q"))
    peer.send(words(GOODBYE, 0), publish("q"), b"no frame at all")
    assert peer.names() == ["Connection.CloseOk"]
    peer.clock.now += 9
    peer.connection.tick()
    peer.send(publish("q", bytes(1000)))
    assert (peer.heard(), peer.queues["q"], peer.connection.is_over) == ([], deque(), False)
    peer.clock.now += 1
    peer.connection.tick()
    assert (peer.connection.is_over, peer.connection.why) == (True, "")


def test_a_connection_that_is_over_knows_no_time() -> None:
    """What is still sent of it may take a while: that is no news of the client's."""
    peer = Peer(handshake_seconds=10.0).open(heartbeat=4)
    peer.say(GOODBYE, channel=0)
    for _ in range(2):
        peer.clock.now += 60
        peer.connection.tick()
        assert (peer.connection.is_over, peer.connection.why) == (True, "")


def test_a_client_that_sends_without_end_after_its_goodbye_is_cut_off() -> None:
    peer = Peer().open()
    peer.say(GOODBYE, channel=0)
    piece = bytes(1 << 20)
    for _ in range(MOST_BYTES_DROPPED >> 20):
        peer.send(piece)
    assert not peer.connection.is_over
    peer.send(b"x")
    assert peer.connection.is_over


@pytest.mark.parametrize("what", ["connection", "channel"])
def test_confirms_come_before_the_goodbye_is_answered(what: str) -> None:
    peer = ready()
    peer.call(methods.Confirm.Select())
    peer.stores = False
    goodbye = words(GOODBYE, 0) if what == "connection" else words(methods.Channel.Close(200, "", 0, 0))
    peer.connection.receive(publish("q") + publish("q") + goodbye)
    asked = []
    while (command := peer.connection.next_command()) is not None:
        asked.append(command)
        if isinstance(command, PublishMessages):
            stored = command.messages
        elif isinstance(command, Release):
            peer.connection.answer(command, Done())
    assert peer.connection.outgoing() == b""
    peer.connection.published(stored, is_stored=True)
    assert isinstance(asked[-1], Leave)
    peer.connection.answer(asked[-1], Done())
    peer.flush()
    assert peer.names() == ["Basic.Ack", "Connection.CloseOk" if what == "connection" else "Channel.CloseOk"]


@pytest.mark.parametrize("channel", [0, 1])
def test_a_goodbye_whose_publishes_are_not_stored_is_answered_by_the_reason(channel: int) -> None:
    peer = ready()
    method = methods.Channel.Close if channel else methods.Connection.Close
    peer.connection.receive(words(method(200, "", 0, 0), channel))
    while not isinstance(command := peer.connection.next_command(), Leave):
        assert isinstance(command, Release)
        peer.connection.answer(command, Done())
    peer.connection.answer(command, Refusal(Code.INTERNAL_ERROR, "the store has failed"))
    peer.flush()
    assert closed_with(peer) == (Code.INTERNAL_ERROR, "INTERNAL_ERROR - the store has failed")
    peer.say(methods.Connection.CloseOk(), channel=0)
    assert peer.connection.is_over


def test_a_connection_that_breaks_gives_back_everything() -> None:
    peer = Peer().open()
    peer.call(methods.Queue.Declare(queue="q"))
    peer.send(publish("q", b"a"), publish("q", b"b"))
    peer.say(methods.Basic.Get(queue="q"), methods.Basic.Get(queue="q", no_ack=True))
    peer.send(publish("q", b"half")[:-1])
    peer.connection.end()
    peer.work()
    last = peer.done[-1]
    assert isinstance(last, Release)
    assert [delivery.token[0] for delivery in last.deliveries] == [b"a"]
    assert [arrival.redelivered for arrival in peer.queues["q"]] == [True]
    assert peer.connection.session.buffered == peer.connection.session.unsettled == 0


def test_a_number_may_be_used_again() -> None:
    peer = Peer().open()
    peer.call(methods.Queue.Declare(queue="q"))
    peer.stores = False
    peer.call(methods.Confirm.Select())
    peer.send(publish("q"))
    waiting = peer.done[-1]
    assert peer.call(methods.Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
    assert peer.call(methods.Channel.Open()).name == "Channel.OpenOk"
    peer.call(methods.Confirm.Select())
    peer.send(publish("q"))
    peer.connection.published(waiting.messages, is_stored=True)  # of the channel that is gone
    peer.flush()
    assert peer.heard() == []
    peer.connection.published(peer.done[-1].messages, is_stored=True)
    peer.flush()
    assert peer.names() == ["Basic.Ack"]


def test_errors_of_one_channel_leave_the_others_alone() -> None:
    peer = Peer().open(channels=2)
    answer = peer.call(methods.Queue.Declare(queue="none", passive=True), channel=2)
    assert (answer.name, answer.reply_code, answer.class_id, answer.method_id) == ("Channel.Close", 404, 50, 10)
    peer.say(methods.Queue.Declare(queue="x"), channel=2)  # not heard until the client has said close-ok
    peer.send(publish("x", channel=2))
    assert peer.heard() == []
    assert peer.call(methods.Queue.Declare(queue="q"), channel=1).name == "Queue.DeclareOk"
    peer.say(methods.Channel.CloseOk(), channel=2)
    assert peer.call(methods.Channel.Open(), channel=2).name == "Channel.OpenOk"


# What the server says by itself


def test_blocked_and_unblocked() -> None:
    peer = Peer().open()
    peer.connection.block("the disk is full")
    peer.connection.block("the disk is full")
    peer.connection.unblock()
    peer.connection.unblock()
    peer.flush()
    assert peer.names() == ["Connection.Blocked", "Connection.Unblocked"]
    old = Peer()
    old.begin()
    old.log_in(capabilities={})
    old.say(methods.Connection.TuneOk(10, 4096, 0), methods.Connection.Open("/"), channel=0)
    old.heard()
    old.connection.block("the disk is full")
    old.flush()
    assert old.heard() == []


def test_a_new_secret() -> None:
    user = User("shop", {})
    peer = Peer(users={("shop", "old"): User("shop", {}), ("shop", "new"): user}).open(response="\0shop\0old")
    assert peer.call(methods.Connection.UpdateSecret("new", "why"), channel=0).name == "Connection.UpdateSecretOk"
    assert peer.done[-1] == Authenticate("shop", "new")
    assert peer.connection.session.user is user
    peer.say(methods.Connection.UpdateSecret("wrong", "why"), channel=0)
    assert closed_with(peer)[0] == Code.NOT_ALLOWED


def test_an_answer_that_comes_after_the_end_is_not_heard() -> None:
    peer = Peer()
    peer.begin()
    peer.connection.receive(words(methods.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0))
    command = peer.connection.next_command()
    assert isinstance(command, Authenticate)
    peer.connection.end()
    peer.connection.answer(command, Authenticated(None))
    assert peer.connection.outgoing() == b""


# Memory


def test_unfinished_messages_on_many_channels_are_bounded() -> None:
    peer = Peer(buffered_max=100_000).open(channels=20)
    for number in range(1, 21):
        four_of_five_frames = content(number, b"x" * 20_000)[: 22 + 4 * 4104]
        peer.send(words(methods.Basic.Publish(routing_key="q"), number), four_of_five_frames)
        if peer.connection.state is ConnectionState.CLOSING:
            break
    assert closed_with(peer)[0] == Code.RESOURCE_ERROR
    assert number < 10
    assert peer.connection.session.buffered == 0


def test_uncommitted_messages_are_bounded_even_without_bodies() -> None:
    peer = Peer(buffered_max=100_000).open()
    peer.call(methods.Queue.Declare(queue="q"))
    peer.call(methods.Tx.Select())
    peer.send(publish("q", b"") * 200)
    assert closed_with(peer)[0] == Code.RESOURCE_ERROR


def test_once_frames_cannot_be_told_apart_nothing_is_kept() -> None:
    peer = Peer().open()
    peer.send(struct.pack(">BHI", 9, 1, 0) + b"\xce")
    assert closed_with(peer)[0] == Code.FRAME_ERROR
    for _ in range(100):
        peer.send(b"x" * 100_000)
    assert len(peer.connection._reader._held) < 200
    done = words(methods.Connection.CloseOk(), 0)
    peer.send(done[:5])
    peer.send(done[5:])
    assert peer.connection.is_over
