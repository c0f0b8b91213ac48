"""What other doors show of what is declared over AMQP."""

from __future__ import annotations

from mq.amqp.model.arguments import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from mq.amqp.model.declared import Binding, Destination, Exchange, ExchangeType, Queue
from mq.amqp.model.topology import Topology
from mq.amqp.server.exchanges import declared
from mq.doors.exchanges import DeadLetterWay, Declared, DeclaredBinding, DeclaredExchange, Exchanges


def made() -> Topology:
    topology = Topology()
    for name, kind in (("in", ExchangeType.TOPIC), ("dead", ExchangeType.FANOUT), ("further", ExchangeType.DIRECT)):
        topology.apply(topology.declare_exchange(Exchange("/", name, kind, durable=True)))
    ways = {
        "plain": {},
        "by-exchange": {DEAD_LETTER_EXCHANGE: "dead"},
        "by-name": {DEAD_LETTER_EXCHANGE: "", DEAD_LETTER_ROUTING_KEY: "plain"},
        "nowhere": {DEAD_LETTER_EXCHANGE: "nonesuch"},
        "as-it-came": {DEAD_LETTER_EXCHANGE: ""},
    }
    for name, arguments in ways.items():
        topology.apply(topology.declare_queue(Queue("/", name, durable=True, arguments=arguments)))
    for source, to, key in (
        ("in", Destination(True, "plain"), "a.*"),
        ("dead", Destination(False, "further"), ""),
        ("further", Destination(False, "dead"), "round"),  # in a circle
        ("further", Destination(True, "plain"), "x"),
        ("dead", Destination(True, "by-name"), ""),
    ):
        topology.apply(topology.bind(Binding("/", source, to, key)))
    return topology


async def test_exchanges_and_bindings() -> None:
    shown = await declared(made())
    assert shown.exchanges == (
        DeclaredExchange("/", "dead", "fanout", True),
        DeclaredExchange("/", "further", "direct", True),
        DeclaredExchange("/", "in", "topic", True),
    )  # those that are there by themselves are not, as nothing is bound to them
    assert DeclaredBinding("/", "in", None, "plain", "a.*") in shown.bindings
    assert DeclaredBinding("/", "dead", "further", None, "") in shown.bindings
    assert len(shown.bindings) == 5


async def test_where_dead_letters_may_come_to() -> None:
    assert (await declared(made())).dead_letters == (
        DeadLetterWay("as-it-came", "/", "", None, ()),
        DeadLetterWay("by-exchange", "/", "dead", None, ("by-name", "plain")),
        DeadLetterWay("by-name", "/", "", "plain", ("plain",)),
        DeadLetterWay("nowhere", "/", "nonesuch", None, ()),
    )


async def test_without_the_door_there_is_nothing() -> None:
    exchanges = Exchanges()
    assert await exchanges.now() == Declared()
    exchanges.told_by(lambda: declared(made()))
    assert (await exchanges.now()).exchanges
