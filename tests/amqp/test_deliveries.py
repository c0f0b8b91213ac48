"""The consuming half of a channel: settling, credit, consumers."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands as methods

from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import Arrival, Credit, Release, Settle, Settlement
from mq.amqp.wire.errors import Code
from tests.amqp.talking import Peer, deliveries, publish, ready, refusal, words

Basic = methods.Basic


# Settling


def test_tags_go_on_and_are_told_apart_by_nothing_else() -> None:
    peer = ready(b"a", b"b", b"c")
    peer.say(Basic.Get(queue="q"), Basic.Get(queue="q", no_ack=True), Basic.Get(queue="q"), Basic.Get(queue="q"))
    peer_said = peer.heard()
    assert peer_said.pop()[1].name == "Basic.GetEmpty"
    assert [found.delivery_tag for _, found in peer_said if found.name == "Basic.GetOk"] == [1, 2, 3]
    assert [found.message_count for _, found in peer_said if found.name == "Basic.GetOk"] == [2, 1, 0]
    assert refusal(peer, Basic.Ack(2)) == (406, "PRECONDITION_FAILED - unknown delivery tag 2")
    release = peer.done[-1]
    assert isinstance(release, Release)
    assert [delivery.tag for delivery in release.deliveries] == [1, 3]


@pytest.mark.parametrize(
    ("spoken", "outcome", "tags"),
    [
        (Basic.Ack(2), Settlement.ACKNOWLEDGED, [2]),
        (Basic.Ack(3, multiple=True), Settlement.ACKNOWLEDGED, [1, 2, 3]),
        (Basic.Ack(0, multiple=True), Settlement.ACKNOWLEDGED, [1, 2, 3, 4]),
        (Basic.Nack(2, multiple=True, requeue=True), Settlement.REQUEUED, [1, 2]),
        (Basic.Nack(2, requeue=False), Settlement.REJECTED, [2]),
        (Basic.Nack(0, multiple=True, requeue=False), Settlement.REJECTED, [1, 2, 3, 4]),
        (Basic.Reject(4, requeue=True), Settlement.REQUEUED, [4]),
        (Basic.Reject(4, requeue=False), Settlement.REJECTED, [4]),
    ],
)
def test_settling(spoken: Any, outcome: Settlement, tags: list[int]) -> None:
    peer = ready(b"a", b"b", b"c", b"d")
    peer.say(*[Basic.Get(queue="q")] * 4)
    peer.heard()
    peer.say(spoken)
    command = peer.done[-1]
    assert isinstance(command, Settle)
    assert (command.outcome, [delivery.tag for delivery in command.deliveries]) == (outcome, tags)
    assert peer.heard() == []
    assert peer.connection.session.unsettled == 4 - len(tags)


@pytest.mark.parametrize(
    "spoken",
    [
        Basic.Ack(9),
        Basic.Ack(0),
        Basic.Ack(9, multiple=True),
        Basic.Ack(1),
        Basic.Ack(1, multiple=True),
        Basic.Reject(9),
    ],
)
def test_unknown_tags(spoken: Any) -> None:
    peer = ready(b"a", b"b")
    peer.say(Basic.Get(queue="q"), Basic.Get(queue="q"), Basic.Ack(1))
    code, text = refusal(peer, spoken)
    assert code == Code.PRECONDITION_FAILED
    assert "unknown delivery tag" in text


def test_all_of_nothing_is_fine() -> None:
    peer = ready()
    peer.say(Basic.Ack(0, multiple=True), Basic.Nack(0, multiple=True))
    assert peer.heard() == []


def test_acknowledgements_that_follow_each_other_are_one_command() -> None:
    peer = ready(*[b"x"] * 5)
    peer.say(*[Basic.Get(queue="q")] * 5)
    peer.heard()
    peer.done.clear()
    peer.say(Basic.Ack(1), Basic.Ack(3, multiple=True), Basic.Reject(4, requeue=False), Basic.Ack(5))
    assert [[delivery.tag for delivery in command.deliveries] for command in peer.done] == [[1, 2, 3], [4], [5]]


def test_recover() -> None:
    peer = ready(b"a", b"b")
    peer.say(Basic.Get(queue="q"), Basic.Get(queue="q"))
    peer.heard()
    assert peer.call(Basic.Recover(requeue=True)).name == "Basic.RecoverOk"
    assert [(arrival.body, arrival.redelivered) for arrival in peer.queues["q"]] == [(b"a", True), (b"b", True)]


def test_gets_are_bounded_too() -> None:
    peer = ready(*[b"x"] * 4, unsettled_max=3)
    peer.say(*[Basic.Get(queue="q")] * 3)
    peer.heard()
    assert refusal(peer, Basic.Get(queue="q"))[0] == Code.PRECONDITION_FAILED


# Consuming


def test_a_consumer_gets_messages_as_they_come() -> None:
    peer = ready(b"a")
    peer.say(Basic.Consume(queue="q", consumer_tag="t"))
    (_, ok), *rest = peer.heard()
    assert (ok.name, ok.consumer_tag) == ("Basic.ConsumeOk", "t")
    peer.said.extend(rest)
    assert deliveries(peer) == [("t", 1, b"a")]
    peer.send(publish("q", b"b" * 200_000))
    peer.say(Basic.Qos(prefetch_count=0))
    *_, last = peer.heard()
    assert last[1].name == "Basic.QosOk"


def serve(peer: Peer) -> list[tuple[str, int, bytes]]:
    peer.serve()
    peer.flush()
    return deliveries(peer)


def consume(peer: Peer, *tags: str, channel: int = 1, **given: Any) -> None:
    peer.say(*(Basic.Consume(queue="q", consumer_tag=tag, nowait=True, **given) for tag in tags), channel=channel)


def test_prefetch_of_a_consumer() -> None:
    peer = ready(*[b"x"] * 10)
    peer.call(Basic.Qos(prefetch_count=2))
    consume(peer, "t")
    assert [tag for _, tag, _ in deliveries(peer)] == [1, 2]
    peer.say(Basic.Qos(prefetch_count=5))  # for consumers to come
    peer.heard()
    assert serve(peer) == []
    peer.say(Basic.Ack(2))
    assert [each.tag for each in peer.done if isinstance(each, Credit)] == ["t"]
    assert [tag for _, tag, _ in deliveries(peer)] == [3]
    consume(peer, "u")
    assert [consumer for consumer, _, _ in deliveries(peer)] == ["u"] * 5


def test_prefetch_of_those_who_go_by_the_text() -> None:
    peer = ready(*[b"x"] * 10, product="py-amqp")
    peer.call(Basic.Qos(prefetch_count=2))
    consume(peer, "t")
    assert [tag for _, tag, _ in deliveries(peer)] == [1, 2]
    peer.say(Basic.Qos(prefetch_count=5))  # for that consumer, too
    assert peer.names() == ["Basic.QosOk", *["Basic.Deliver", "ContentHeader", "ContentBody"] * 3]
    peer.say(Basic.Qos(prefetch_count=1), Basic.Ack(4, multiple=True))
    assert peer.names() == ["Basic.QosOk"]
    peer.say(Basic.Ack(5))
    assert [tag for _, tag, _ in deliveries(peer)] == [6]


def test_prefetch_of_a_channel() -> None:
    peer = ready(*[b"x"] * 10)
    peer.call(Basic.Qos(prefetch_count=3, global_=True))
    consume(peer, "t", "u")
    assert len(deliveries(peer)) == 3
    peer.say(Basic.Ack(2, multiple=True))
    assert [tag for _, tag, _ in deliveries(peer)] == [4, 5]
    peer.say(Basic.Qos(prefetch_count=4, global_=True))
    assert peer.names() == ["Basic.QosOk", "Basic.Deliver", "ContentHeader", "ContentBody"]
    assert peer.connection.session.unsettled == 4


def test_prefetch_of_both() -> None:
    peer = ready(*[b"x"] * 10)
    peer.say(Basic.Qos(prefetch_count=5, global_=True), Basic.Qos(prefetch_count=3))
    peer.heard()
    consume(peer, "t", "u")
    assert [consumer for consumer, _, _ in deliveries(peer)] == ["t"] * 3 + ["u"] * 2


def test_who_settles_as_it_is_sent_knows_no_prefetch() -> None:
    peer = ready(*[b"x"] * 10)
    peer.call(Basic.Qos(prefetch_count=1))
    consume(peer, "t", no_ack=True)
    assert len(deliveries(peer)) == 10
    assert peer.connection.session.unsettled == 0
    assert refusal(peer, Basic.Ack(1))[0] == Code.PRECONDITION_FAILED


def test_deliveries_beyond_the_credit_are_not_taken() -> None:
    peer = ready()
    peer.call(Basic.Qos(prefetch_count=2))
    consume(peer, "t")
    key = peer.done[-1].channel  # type: ignore[union-attr]
    arrivals = [Arrival(n, "", "q", b"\0\0", b"x") for n in range(5)]
    assert peer.connection.deliver(key, "t", arrivals) == 2
    assert peer.connection.deliver(key, "t", arrivals[2:]) == 0
    assert peer.connection.deliver(key, "unknown", arrivals) == 0
    [channel] = peer.connection.channels()
    assert channel.deliveries.credit("t") == 0
    assert [tag for _, tag, _ in (peer.flush() or deliveries(peer))] == [1, 2]


def test_credit_that_a_delivery_used_up_is_told_of_when_it_comes_back() -> None:
    peer = ready()
    peer.call(Basic.Qos(prefetch_count=1))
    consume(peer, "t")
    key = peer.done[-1].channel  # type: ignore[union-attr]
    assert peer.connection.deliver(key, "t", [Arrival("token", "", "q", b"\0\0", b"x")]) == 1
    peer.done.clear()
    peer.say(Basic.Ack(1))
    assert [type(command) for command in peer.done] == [Credit, Settle]


def test_a_connection_holds_only_so_much_whatever_the_prefetch() -> None:
    peer = ready(*[b"x"] * 10, unsettled_max=4)
    consume(peer, "t", "u")
    assert len(deliveries(peer)) == 4
    peer.say(Basic.Ack(4, multiple=True))
    assert len(deliveries(peer)) == 4


def test_a_consumer_that_is_cancelled() -> None:
    peer = ready(b"a", b"b")
    peer.call(Basic.Qos(prefetch_count=1))
    consume(peer, "t")
    assert len(deliveries(peer)) == 1
    answer = peer.call(Basic.Cancel(consumer_tag="t"))
    assert (answer.name, answer.consumer_tag) == ("Basic.CancelOk", "t")
    assert serve(peer) == []
    consume(peer, "t")  # the tag may be used again, and what it held before counts for nobody
    assert [tag for _, tag, _ in deliveries(peer)] == [2]
    peer.say(Basic.Ack(1))
    peer.send(publish("q", b"c"))
    assert serve(peer) == []
    assert peer.call(Basic.Cancel(consumer_tag="never")).name == "Basic.CancelOk"


def test_a_consumer_whose_queue_goes_away() -> None:
    peer = ready()
    consume(peer, "t")
    key = peer.done[-1].channel  # type: ignore[union-attr]
    peer.connection.cancelled(key, "t")
    peer.connection.cancelled(key, "t")
    peer.flush()
    [(_, cancel)] = peer.heard()
    assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "t")


def test_tags_of_consumers() -> None:
    peer = ready()
    tags = {peer.call(Basic.Consume(queue="q")).consumer_tag for _ in range(2)}
    assert len(tags) == 2
    assert all(tag.startswith("amq.ctag-") for tag in tags)
    peer.say(Basic.Consume(queue="q", consumer_tag=min(tags)))
    [(channel, close)] = peer.heard()
    assert (channel, close.reply_code) == (0, Code.NOT_ALLOWED)


def test_consumers_are_bounded_over_all_channels() -> None:
    peer = Peer(consumers_max=3).open(channels=2)
    peer.call(methods.Queue.Declare(queue="q"))
    consume(peer, "a", "b")
    consume(peer, "c", channel=2)
    peer.call(Basic.Cancel(consumer_tag="a"))
    consume(peer, "d", channel=2)
    peer.call(methods.Channel.Close(200, "", 0, 0), channel=2)
    consume(peer, "e", "f")
    assert peer.connection.session.consumers == 3
    peer.say(Basic.Consume(queue="q"))
    [(channel, close)] = peer.heard()
    assert (channel, close.reply_code) == (0, Code.NOT_ALLOWED)
    assert peer.connection.session.consumers == 0


def test_an_exclusive_consumer() -> None:
    peer = ready()
    consume(peer, "t", exclusive=True)
    code, text = refusal(peer, Basic.Consume(queue="q", consumer_tag="u"))
    assert (code, text) == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' is in exclusive use")
    assert peer.done[-1].consumers == (("t", "q"),)  # type: ignore[union-attr]
    assert peer.topology.consumers.count(peer.topology.queue("/", "q").key) == 0


def test_a_channel_gives_back_what_it_held_before_it_says_so() -> None:
    peer = ready(b"a", b"b", b"c")
    consume(peer, "t")
    assert len(deliveries(peer)) == 3
    peer.say(Basic.Ack(2))
    peer.connection.receive(words(methods.Channel.Close(200, "", 0, 0)))
    release = peer.connection.next_command()
    assert isinstance(release, Release)
    assert (release.consumers, [one.tag for one in release.deliveries]) == ((("t", "q"),), [1, 3])
    peer.connection.answer(release, commands.Done())
    assert peer.connection.outgoing() == b""
    leave = peer.connection.next_command()
    assert leave == commands.Leave(release.channel)
    peer.connection.answer(leave, commands.Done())
    peer.flush()
    assert peer.names() == ["Channel.CloseOk"]


def test_a_get_that_is_answered_too_late_goes_back() -> None:
    peer = ready(b"a")
    peer.connection.receive(words(Basic.Get(queue="q")))
    get = peer.connection.next_command()
    assert isinstance(get, commands.Get)
    held = peer.connection.channel(get.channel)
    assert held is not None
    peer.connection.close()
    held.answer(get, commands.Got(Arrival("token", "", "q", b"\0\0", b"a"), 0))
    left = list(iter(peer.connection.next_command, None))
    assert [delivery.token for release in left for delivery in release.deliveries] == ["token"]  # type: ignore[union-attr]
