"""The publishing half of a channel: messages, confirms, transactions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as methods

from mq.amqp.protocol.commands import Commit, PublishMessages, Settle, Settlement
from mq.amqp.protocol.connection import ConnectionState
from mq.amqp.protocol.publishes import ALWAYS_KEPT, Confirm, PublisherConfirms
from mq.amqp.protocol.session import MESSAGE_OVERHEAD
from mq.amqp.wire.errors import Code
from tests.amqp.talking import confirms, deliveries, publish, ready, refusal, words

Basic = methods.Basic


# Publishing


def test_what_is_published_together_is_stored_together() -> None:
    peer = ready()
    peer.done.clear()
    peer.send(*(publish("q", bytes([n]) * n) for n in range(100)))
    [command] = peer.done
    assert isinstance(command, PublishMessages)
    assert [message.body for message in command.messages] == [bytes([n]) * n for n in range(100)]
    assert peer.heard() == []  # no confirms were asked for


def test_what_is_settled_and_published_by_turns_keeps_its_order() -> None:
    peer = ready(b"a", b"b")
    peer.say(Basic.Get(queue="q"), Basic.Get(queue="q"))
    peer.heard()
    peer.done.clear()
    peer.send(words(Basic.Ack(1)), publish("q", b"1"), words(Basic.Ack(2)), publish("q", b"2"), publish("q", b"3"))
    assert [type(command) for command in peer.done] == [Settle, PublishMessages, Settle, PublishMessages]
    assert [len(command.messages) for command in peer.done if isinstance(command, PublishMessages)] == [1, 2]


def test_a_message_is_what_was_sent() -> None:
    peer = ready()
    properties = Basic.Properties(delivery_mode=2, priority=3, expiration="500", headers={"a": [1, {"b": None}]})
    peer.send(publish("q", b"x" * 10_000, properties=properties))
    [message] = peer.done[-1].messages
    assert (message.exchange, message.routing_key, message.number, message.expiration_ms) == ("", "q", None, 500)
    assert [queue.name for queue in message.queues] == ["q"]
    assert message.properties.raw == properties.marshal()
    assert (message.properties.is_persistent, message.properties.priority) == (True, 3)
    assert message.body == b"x" * 10_000


def test_more_keys_are_routed_by_and_the_hidden_ones_not_told() -> None:
    peer = ready()
    for name in "rst":
        peer.call(methods.Queue.Declare(queue=name))
    headers = {"a": 1, "CC": ["r", "none", 7], "BCC": ["s", "q"], "cc": ["t"]}
    peer.send(publish("q", properties=Basic.Properties(headers=headers)))
    [message] = peer.done[-1].messages
    assert [queue.name for queue in message.queues] == ["q", "r", "s"]
    assert message.hidden_keys == ("s", "q")
    assert message.properties.headers() == {name: value for name, value in headers.items() if name != "BCC"}


def test_body_that_no_queue_can_hold_is_dropped_as_it_comes_and_refused() -> None:
    peer = ready()
    session = peer.connection.session
    session.longest_body = lambda queue: 1000
    peer.call(methods.Confirm.Select())
    frames = publish("q", bytes(ALWAYS_KEPT + 1))
    peer.send(frames[:-1000])
    assert session.buffered <= 2 * MESSAGE_OVERHEAD  # not the body
    peer.done.clear()
    peer.send(frames[-1000:], publish("q", b"x"))
    assert (confirms(peer)[0], session.buffered) == (("Nack", 1, False), 0)
    assert [message.body for command in peer.done for message in command.messages] == [b"x"]


@pytest.mark.parametrize("overflow", ["reject-publish-dlx", "reject-publish"])
def test_body_that_goes_to_dead_letters_is_kept(overflow: str) -> None:
    peer = ready()
    peer.call(methods.Queue.Declare(queue="r", arguments={"x-overflow": overflow}))
    peer.connection.session.longest_body = lambda queue: 1000
    peer.done.clear()
    peer.send(publish("r", bytes(ALWAYS_KEPT + 1)))
    assert len(peer.done) == (overflow == "reject-publish-dlx")


@pytest.mark.parametrize("headers", [{"CC": "r"}, {"BCC": {"r": 1}}, {"CC": ["r"] * 200, "BCC": ["s"] * 57}])
def test_keys_that_make_no_sense_or_are_too_many_are_refused(headers: Any) -> None:
    peer = ready()
    peer.send(publish("q", properties=Basic.Properties(headers=headers)))
    [(_, close)] = peer.heard()
    assert (close.name, close.reply_code) == ("Channel.Close", Code.PRECONDITION_FAILED)


def test_a_body_may_be_empty_and_come_in_empty_frames() -> None:
    peer = ready()
    peer.send(publish("q", b""), publish("q", b"ab")[:-10], b"\x03\0\x01\0\0\0\0\xce" * 3, publish("q", b"ab")[-10:])
    assert [message.body for message in peer.done[-1].messages] == [b"", b"ab"]


def test_a_body_over_the_limit() -> None:
    peer = ready(body_max=100)
    peer.send(publish("q", b"x" * 100))
    assert peer.heard() == []
    peer.send(publish("q", b"x" * 101), publish("q", b"y"))
    [(_, close)] = peer.heard()
    assert (close.reply_code, close.class_id, close.method_id) == (Code.PRECONDITION_FAILED, 60, 40)
    assert close.reply_text.endswith("the message size of 101 bytes exceeds the maximum of 100 bytes")
    assert len(peer.queues["q"]) == 1  # what came after the error was not heard


def test_an_exchange_that_is_not_there() -> None:
    peer = ready()
    peer.send(publish("q", b"1"), publish("q", b"2", exchange="none"), publish("q", b"3"))
    [(_, close)] = peer.heard()
    assert (close.reply_code, close.reply_text) == (404, "NOT_FOUND - no exchange 'none' in vhost '/'")
    assert [arrival.body for arrival in peer.queues["q"]] == [b"1"]


def test_an_internal_exchange_takes_nothing_from_clients() -> None:
    peer = ready()
    peer.call(methods.Exchange.Declare(exchange="x", exchange_type="fanout", internal=True))
    peer.send(publish("", exchange="x"))
    assert peer.heard()[0][1].reply_code == Code.ACCESS_REFUSED


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0\1", b"\x80\0\x09a", b"\0\0x"])
def test_malformed_properties(raw: bytes) -> None:
    peer = ready()
    payload = b"\0\x3c\0\0" + bytes(8) + raw
    peer.send(words(Basic.Publish(routing_key="q")), b"\x02\0\x01" + len(payload).to_bytes(4) + payload + b"\xce")
    [(_, close)] = peer.heard()
    assert close.reply_code in (Code.SYNTAX_ERROR, Code.FRAME_ERROR)
    assert peer.connection.state is ConnectionState.CLOSING


def test_an_expiration_that_is_no_number() -> None:
    peer = ready()
    peer.send(publish("q", properties=Basic.Properties(expiration="soon")))
    assert peer.heard()[0][1].reply_code == Code.PRECONDITION_FAILED


# Confirms


def test_confirms_are_told_together() -> None:
    peer = ready()
    peer.call(methods.Confirm.Select())
    peer.send(*[publish("q")] * 10)
    assert confirms(peer) == [("Ack", 10, True)]
    peer.send(publish("q"))
    assert confirms(peer) == [("Ack", 11, False)]


def test_confirms_out_of_order() -> None:
    peer = ready()
    peer.call(methods.Confirm.Select())
    peer.stores = False
    peer.send(*[publish("q")] * 6)
    messages = peer.done[-1].messages

    def stored(*numbers: int, is_stored: bool = True) -> list[tuple[str, int, bool]]:
        peer.connection.published([messages[number - 1] for number in numbers], is_stored=is_stored)
        peer.flush()
        return confirms(peer)

    assert stored(3, 5) == [("Ack", 3, False), ("Ack", 5, False)]
    assert stored(2, is_stored=False) == [("Nack", 2, False)]
    assert stored(5, 3, 2) == []  # they have been told
    assert stored(1, 4) == [("Ack", 4, True)]
    assert stored(6) == [("Ack", 6, False)]


def test_what_nobody_takes_is_returned_before_it_is_confirmed() -> None:
    peer = ready()
    peer.call(methods.Confirm.Select())
    properties = Basic.Properties(headers={"a": 1})
    peer.send(publish("q"), publish("none", b"body", mandatory=True, properties=properties), publish("none"))
    (_, returned), (_, head), (_, body), (_, ack) = peer.heard()
    assert (returned.name, returned.reply_code, returned.reply_text) == ("Basic.Return", 312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("", "none")
    assert (head.properties.headers, body.value) == ({"a": 1}, b"body")
    assert (ack.delivery_tag, ack.multiple) == (3, True)


def test_numbers_begin_with_the_first_message_after_confirms_were_asked_for() -> None:
    peer = ready(b"before")
    peer.say(methods.Confirm.Select(nowait=True))
    assert peer.heard() == []
    peer.send(publish("q"))
    assert confirms(peer) == [("Ack", 1, False)]
    assert peer.call(methods.Confirm.Select()).name == "Confirm.SelectOk"
    peer.send(publish("q"))
    assert confirms(peer) == [("Ack", 2, False)]


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=40))
def test_every_number_is_told_of_once(steps: list[tuple[int, bool, bool]]) -> None:
    """Against a publisher that keeps what is open in a set, and takes `multiple` at its word."""
    ours, count = PublisherConfirms(), 12
    assert [ours.next() for _ in range(count)] == list(range(1, count + 1))
    open_numbers, outcome, told = set(range(1, count + 1)), dict[int, bool](), dict[int, bool]()
    for number, is_stored, takes in [*steps, (1, True, True)]:
        ours.settle([number], is_stored=is_stored)
        outcome.setdefault(number, is_stored)
        for confirm in ours.take() if takes else ():
            covered = {one for one in open_numbers if one <= confirm.tag} if confirm.multiple else {confirm.tag}
            assert covered <= open_numbers
            told |= dict.fromkeys(covered, confirm.is_stored)
            open_numbers -= covered
    assert told == outcome


def test_multiple_is_only_said_of_more_than_one() -> None:
    ours = PublisherConfirms()
    numbers = [ours.next() for _ in range(3)]
    ours.settle(numbers[:1], is_stored=True)
    assert ours.take() == [Confirm(1, False, True)]
    ours.settle(numbers[1:], is_stored=True)
    assert ours.take() == [Confirm(3, True, True)]
    assert ours.take() == []


# Transactions


def test_a_commit_is_one_command() -> None:
    peer = ready(b"there")
    peer.call(methods.Tx.Select())
    peer.say(Basic.Get(queue="q"))
    [(_, tag, _)] = deliveries(peer)
    peer.send(publish("q", b"1"), publish("none", mandatory=True), publish("none"), words(Basic.Ack(tag)))
    peer.send(publish("q", b"2"))
    assert peer.heard() == []
    assert not peer.queues["q"]
    peer.say(methods.Tx.Commit())
    command = peer.done[-1]
    assert isinstance(command, Commit)
    assert [message.body for message in command.messages] == [b"1", b"2"]
    assert [(settle.outcome, settle.deliveries[0].tag) for settle in command.settled] == [
        (Settlement.ACKNOWLEDGED, tag)
    ]
    assert peer.names() == ["Basic.Return", "ContentHeader", "ContentBody", "Tx.CommitOk"]
    assert peer.connection.session.buffered == peer.connection.session.unsettled == 0


def test_a_rollback_takes_back_publishes_and_acknowledgements() -> None:
    peer = ready(b"a", b"b", b"c")
    peer.call(methods.Tx.Select())
    peer.say(*[Basic.Get(queue="q")] * 3)
    tags = [tag for _, tag, _ in deliveries(peer)]
    peer.send(publish("q"), words(Basic.Ack(tags[0])), words(Basic.Nack(tags[1], requeue=True)))
    assert peer.call(methods.Tx.Rollback()).name == "Tx.RollbackOk"
    assert not peer.queues["q"]
    peer.say(Basic.Ack(tags[2], multiple=True), methods.Tx.Commit())
    [settle] = peer.done[-1].settled
    assert [delivery.tag for delivery in settle.deliveries] == tags
    assert peer.names() == ["Tx.CommitOk"]


def test_a_channel_that_ends_rolls_back() -> None:
    peer = ready(b"a")
    peer.call(methods.Tx.Select())
    peer.say(Basic.Get(queue="q"), Basic.Ack(1))
    peer.send(publish("q", b"never"))
    peer.heard()
    assert peer.call(methods.Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
    assert [(arrival.body, arrival.redelivered) for arrival in peer.queues["q"]] == [(b"a", True)]


@pytest.mark.parametrize(
    "spoken",
    [
        [methods.Tx.Commit()],
        [methods.Tx.Rollback()],
        [methods.Confirm.Select(), methods.Tx.Select()],
        [methods.Tx.Select(), methods.Confirm.Select()],
    ],
)
def test_modes_exclude_each_other(spoken: list[Any]) -> None:
    assert refusal(ready(), *spoken)[0] == Code.PRECONDITION_FAILED
