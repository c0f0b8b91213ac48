"""A channel as a whole: what it declares, and that it does not matter how its bytes come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as methods

from mq.amqp.protocol.commands import PublishMessages
from mq.amqp.wire.errors import Code
from tests.amqp.talking import Peer, content, publish, ready, refusal, words

Basic = methods.Basic


# Queues and exchanges


def names(spoken: Iterable[Any], peer: Peer) -> list[str]:
    return [peer.call(method).name for method in spoken]


def test_declaring_binding_and_deleting() -> None:
    peer = ready(b"1", b"2")
    spoken = [
        methods.Exchange.Declare(exchange="x", exchange_type="topic", durable=True),
        methods.Exchange.Declare(exchange="x", passive=True),
        methods.Exchange.Declare(exchange="y", exchange_type="headers"),
        methods.Exchange.Bind(destination="y", source="x", routing_key="a.#"),
        methods.Queue.Bind(queue="q", exchange="y", arguments={"h": 1}),
        methods.Exchange.Unbind(destination="y", source="x", routing_key="a.#"),
        methods.Queue.Unbind(queue="q", exchange="y", arguments={"h": 1}),
        methods.Exchange.Delete(exchange="y"),
        methods.Exchange.Delete(exchange="y"),
    ]
    said = ["Declare", "Declare", "Declare", "Bind", "Bind", "Unbind", "Unbind", "Delete", "Delete"]
    rooms = ["Exchange"] * 4 + ["Queue", "Exchange", "Queue", "Exchange", "Exchange"]
    assert names(spoken, peer) == [f"{room}.{word}Ok" for room, word in zip(rooms, said, strict=True)]
    status = peer.call(methods.Queue.Declare(queue="q", passive=True))
    assert (status.message_count, status.consumer_count) == (2, 0)
    assert peer.call(methods.Queue.Purge(queue="q")).message_count == 2
    assert peer.call(methods.Queue.Delete(queue="q")).message_count == 0
    assert peer.call(methods.Queue.Delete(queue="q")).message_count == 0


@pytest.mark.parametrize("passive", [True, False])
def test_the_default_exchange_is_not_declared(passive: bool) -> None:
    spoken = methods.Exchange.Declare(exchange="", exchange_type="direct", passive=passive)
    assert refusal(ready(), spoken)[0] == Code.ACCESS_REFUSED


def test_nowait_means_no_answer() -> None:
    peer = ready()
    peer.say(
        methods.Exchange.Declare(exchange="x", exchange_type="direct", nowait=True),
        methods.Queue.Declare(queue="r", nowait=True),
        methods.Queue.Bind(queue="r", exchange="x", routing_key="k", nowait=True),
        methods.Queue.Purge(queue="r", nowait=True),
        Basic.Consume(queue="r", consumer_tag="t", nowait=True),
        Basic.Cancel(consumer_tag="t", nowait=True),
        methods.Queue.Delete(queue="r", nowait=True),
        methods.Exchange.Delete(exchange="x", nowait=True),
    )
    assert peer.heard() == []
    assert refusal(peer, methods.Queue.Bind(queue="none", exchange="amq.topic", nowait=True))[0] == Code.NOT_FOUND


def test_the_last_queue_is_meant_where_none_is_named() -> None:
    peer = Peer().open()
    name = peer.call(methods.Queue.Declare(exclusive=True)).queue
    assert name.startswith("amq.gen-")
    peer.call(methods.Queue.Bind(exchange="amq.direct"))
    peer.send(publish(name, exchange="amq.direct"))
    assert peer.call(methods.Queue.Declare(passive=True)).message_count == 1
    assert peer.call(methods.Queue.Purge()).message_count == 1
    assert peer.call(Basic.Get()).name == "Basic.GetEmpty"
    other = Peer().open()
    assert refusal(other, Basic.Get()) == (
        404,
        "NOT_FOUND - an empty queue name refers to the last queue declared on this channel, but none has been declared",
    )


def test_an_exclusive_queue_is_of_the_connection() -> None:
    peer = ready()
    own = peer.call(methods.Queue.Declare(queue="own", exclusive=True)).queue
    other = Peer(peer.topology, owner="c2").open(channels=6)
    for number, spoken in enumerate(
        [
            methods.Queue.Declare(queue=own),
            methods.Queue.Declare(queue=own, passive=True),
            methods.Queue.Bind(queue=own, exchange="amq.topic"),
            methods.Queue.Delete(queue=own),
            Basic.Consume(queue=own),
            Basic.Get(queue=own),
        ],
        1,
    ):
        assert other.call(spoken, channel=number).reply_code == Code.RESOURCE_LOCKED
    assert peer.call(Basic.Get(queue=own)).name == "Basic.GetEmpty"


@given(st.data())
def test_however_the_bytes_are_cut_the_same_is_done(data: Any) -> None:
    spoken = b"".join(
        [
            words(methods.Confirm.Select()),
            words(methods.Queue.Declare(queue="r")),
            publish("r", b"x" * 9000),
            publish("q", b""),
            words(Basic.Consume(queue="q", consumer_tag="t")),
            words(Basic.Ack(1)),
            publish("none", mandatory=True),
            words(Basic.Ack(99)),
            content(1, b"not heard"),
        ]
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(spoken)), max_size=10)))
    whole, pieces = ready(), ready()
    whole.send(spoken)
    for start, end in zip([0, *cuts], [*cuts, len(spoken)], strict=True):
        pieces.send(spoken[start:end])

    def messages(peer: Peer) -> list[Any]:
        return [message.body for done in peer.done if isinstance(done, PublishMessages) for message in done.messages]

    def answers(peer: Peer) -> list[str]:
        return sorted(name for name in peer.names() if name != "Basic.Ack")

    assert messages(whole) == messages(pieces)
    assert answers(whole) == answers(pieces)
