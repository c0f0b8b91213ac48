"""What users may do over AMQP."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands as methods

from mq.access import Right, User
from mq.amqp.wire.errors import Code
from tests.amqp.talking import Peer, publish
from tests.cases import for_each

ALTERNATE = {"alternate-exchange": "r"}
RIGHTS = {Right.PUBLISH: ("q",), Right.CONSUME: ("q", "amq.*", "own"), Right.CONFIGURE: ("q", "own*")}


@for_each(
    "spoken, fine",
    [
        (methods.Queue.Declare(queue="q"), True),
        (methods.Queue.Declare(queue="r"), False),
        (methods.Queue.Declare(), False),
        (methods.Queue.Declare(queue="r", passive=True), False),
        (methods.Queue.Declare(queue="own", arguments={"x-dead-letter-exchange": "q"}), True),
        (methods.Queue.Declare(queue="own", arguments={"x-dead-letter-exchange": "r"}), False),
        (methods.Queue.Declare(queue="own", arguments={"x-dead-letter-exchange": ""}), False),
        (
            methods.Queue.Declare(
                queue="own", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
            ),
            True,
        ),
        (methods.Queue.Declare(queue="own3", arguments={"x-dead-letter-exchange": "q"}), False),
        (methods.Exchange.Declare(exchange="own", exchange_type="fanout", arguments={"alternate-exchange": "q"}), True),
        (
            methods.Exchange.Declare(exchange="own3", exchange_type="fanout", arguments={"alternate-exchange": "q"}),
            False,
        ),
        (methods.Exchange.Declare(exchange="own", exchange_type="fanout"), True),
        (methods.Exchange.Declare(exchange="else", exchange_type="fanout"), False),
        (
            methods.Exchange.Declare(exchange="own", exchange_type="fanout", arguments={"alternate-exchange": "r"}),
            False,
        ),
        (methods.Exchange.Declare(exchange="r", passive=True), False),
        (methods.Queue.Bind(queue="q", exchange="amq.topic"), True),
        (methods.Queue.Bind(queue="own2", exchange="amq.topic"), False),
        (methods.Queue.Bind(queue="q", exchange="other"), False),
        (methods.Queue.Delete(queue="r"), False),
        (methods.Queue.Purge(queue="r"), False),
        (methods.Basic.Get(queue="q"), True),
        (methods.Basic.Get(queue="own2"), False),
        (methods.Basic.Consume(queue="own2"), False),
    ],
)
def test_rights(spoken: Any, fine: bool) -> None:
    peer = Peer(users={("shop", "s"): User("shop", RIGHTS)}).open(response="\0shop\0s")
    peer.call(methods.Queue.Declare(queue="q"))
    peer.call(methods.Queue.Declare(queue="own2"))
    answer = peer.call(spoken)
    if fine:
        assert answer.name != "Channel.Close"
    else:
        assert (answer.name, answer.reply_code) == ("Channel.Close", Code.ACCESS_REFUSED)


@pytest.mark.parametrize(("exchange", "key", "fine"), [("", "q", True), ("", "r", False), ("amq.topic", "q", False)])
def test_the_right_to_publish(exchange: str, key: str, fine: bool) -> None:
    peer = Peer(users={("shop", "s"): User("shop", RIGHTS)}).open(response="\0shop\0s")
    peer.send(publish(key, exchange=exchange))
    assert peer.names() == ([] if fine else ["Channel.Close"])


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(
    ("exchange", "keys", "fine"), [("", ["q"], True), ("", ["q", "r"], False), ("amq.topic", ["r"], True)]
)
def test_more_keys_take_the_right_to_publish_there(header: str, exchange: str, keys: list[str], fine: bool) -> None:
    rights = {Right.PUBLISH: ("q", "amq.topic")}
    peer = Peer(users={("shop", "s"): User("shop", rights)}).open(response="\0shop\0s")
    peer.send(publish("q", exchange=exchange, properties=methods.Basic.Properties(headers={header: keys})))
    assert peer.names() == ([] if fine else ["Channel.Close"])


def test_nobody_publishes_as_somebody_else() -> None:
    everything = dict.fromkeys(Right, ("*",))
    peer = Peer(users={("shop", "s"): User("shop", everything)}).open(response="\0shop\0s", channels=2)
    peer.send(publish("q", properties=methods.Basic.Properties(user_id="shop")))
    assert peer.heard() == []
    peer.send(publish("q", properties=methods.Basic.Properties(user_id="anna")))
    [(_, close)] = peer.heard()
    assert close.reply_code == Code.PRECONDITION_FAILED


@pytest.mark.parametrize(("pattern", "fine"), [("*", True), ("?*", False)])
def test_dead_letters_whose_key_their_publisher_chose_may_go_anywhere(pattern: str, fine: bool) -> None:
    rights = {Right.PUBLISH: (pattern,), Right.CONSUME: ("q",), Right.CONFIGURE: ("*",)}
    peer = Peer(users={("shop", "s"): User("shop", rights)}).open(response="\0shop\0s")
    answer = peer.call(methods.Queue.Declare(queue="q", arguments={"x-dead-letter-exchange": ""}))
    assert answer.name == ("Queue.DeclareOk" if fine else "Channel.Close")
