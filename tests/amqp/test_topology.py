"""What is declared: the table of what RabbitMQ 3.10 does, plans and records, and messages' ways through it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.amqp.model import declared
from mq.amqp.model.declared import Binding, Destination, Exchange, ExchangeType, Queue
from mq.amqp.model.topology import PREDECLARED, Topology
from mq.amqp.model.vhost import NOTHING, TopologyChange
from mq.amqp.wire.errors import Code, Refusal
from tests.cases import for_each


def nothing() -> Mapping[str, Any]:
    return {}


def exchange(name: str, kind: ExchangeType = ExchangeType.FANOUT, **given: Any) -> Exchange:
    return Exchange("/", name, kind, **given)


def queue(name: str, **given: Any) -> Queue:
    return Queue("/", name, **given)


def to_queue(source: str, name: str, key: str = "", **arguments: Any) -> Binding:
    return Binding("/", source, Destination(True, name), key, arguments)


def to_exchange(source: str, name: str, key: str = "") -> Binding:
    return Binding("/", source, Destination(False, name), key)


class Store:
    """A topology with what a server would keep of it."""

    def __init__(self, **given: Any) -> None:
        self.topology = Topology(["blue"], **given)
        self.records: dict[tuple[str, str], str] = {}

    def do(self, change: TopologyChange) -> TopologyChange:
        for record in change.drops():
            self.records.pop((record.kind, record.key), None)
        for record in change.puts():
            self.records[record.kind, record.key] = json.dumps(record.value)
        self.topology.apply(change)
        return change

    def make(self, *things: Exchange | Queue | Binding) -> None:
        for thing in things:
            if isinstance(thing, Exchange):
                self.do(self.topology.declare_exchange(thing))
            elif isinstance(thing, Queue):
                self.do(self.topology.declare_queue(thing))
            else:
                self.do(self.topology.bind(thing))

    def restarted(self, **given: Any) -> Topology:
        topology = Topology(["blue"], **given)
        values: dict[str, list[Any]] = {}
        for (kind, _), value in self.records.items():
            values.setdefault(kind, []).append(json.loads(value))
        self.lost = topology.load(values)
        return topology

    def route(self, name: str, key: str = "", headers: Mapping[str, Any] | None = None) -> list[str]:
        return [found.name for found in self.topology.route("/", name, key, lambda: headers or {})]


def refusal(call: Any, *args: Any, **given: Any) -> Code:
    with pytest.raises(Refusal) as refused:
        call(*args, **given)
    return refused.value.code


def test_what_is_there_from_the_beginning() -> None:
    topology = Topology(["blue"])
    assert [topology.has_vhost(name) for name in ("/", "blue", "red", "")] == [True, True, False, False]
    for name, kind in PREDECLARED.items():
        assert topology.exchange("blue", name).kind is kind


def test_the_default_exchange_knows_every_queue() -> None:
    store = Store(has_queue=lambda name: name == "http")
    store.make(queue("q"))
    assert [store.route("", key) for key in ("q", "http", "none")] == [["q"], ["http"], []]
    assert store.topology.queue("/", "http").durable
    assert refusal(store.topology.queue, "blue", "http") is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "found"), [("direct", ["a", "b"]), ("topic", ["a", "b"]), ("fanout", ["a", "b", "c"])]
)
def test_a_message_goes_by_all_of_its_keys(kind: str, found: list[str]) -> None:
    store = Store()
    store.make(exchange("x", ExchangeType(kind), arguments={"alternate-exchange": "amq.fanout"}))
    for name in "abcd":
        store.make(queue(name), to_queue("x" if name != "d" else "amq.fanout", name, name))
    topology = store.topology
    assert [each.name for each in topology.route("/", "x", "b", nothing, ["none", "a"])] == found
    alone = topology.route("/", "x", "none", nothing, ["nothing"])  # the other exchange only where no key fits
    assert [each.name for each in alone] == (["d"] if kind != "fanout" else found)
    assert [each.name for each in topology.route("/", "", "none", nothing, ["c", "b", "c"])] == ["b", "c"]


def test_declaring_again_changes_nothing() -> None:
    store = Store()
    one, other = exchange("x", durable=True), queue("q", durable=True, arguments={"x-max-length": 5, "x-mine": 1})
    store.make(one, other, to_queue("x", "q"))
    before = dict(store.records)
    assert store.do(store.topology.declare_exchange(one)) is NOTHING
    assert store.do(store.topology.declare_queue(queue("q", durable=True, arguments={"x-max-length": 5}))) is NOTHING
    assert store.do(store.topology.bind(to_queue("x", "q"))) is NOTHING
    assert store.do(store.topology.declare_exchange(exchange("amq.topic", ExchangeType.TOPIC, durable=True))) is NOTHING
    assert store.records == before


@for_each(
    "thing, code",
    [
        (exchange("x", ExchangeType.DIRECT, durable=True), Code.PRECONDITION_FAILED),
        (exchange("x"), Code.PRECONDITION_FAILED),
        (exchange("x", durable=True, auto_delete=True), Code.PRECONDITION_FAILED),
        (exchange("x", durable=True, internal=True), Code.PRECONDITION_FAILED),
        (exchange("x", durable=True, arguments={"alternate-exchange": "y"}), Code.PRECONDITION_FAILED),
        (exchange("new", arguments={"alternate-exchange": 7}), Code.PRECONDITION_FAILED),
        (exchange("amq.new"), Code.ACCESS_REFUSED),
        (exchange("amq.topic", ExchangeType.DIRECT, durable=True), Code.PRECONDITION_FAILED),
        (exchange(""), Code.ACCESS_REFUSED),
        (queue("q"), Code.PRECONDITION_FAILED),
        (queue("q", durable=True, auto_delete=True), Code.PRECONDITION_FAILED),
        (queue("q", durable=True, owner="c1"), Code.RESOURCE_LOCKED),
        (queue("q", durable=True, arguments={"x-message-ttl": 1}), Code.PRECONDITION_FAILED),
        (queue("own"), Code.RESOURCE_LOCKED),
        (queue("own", owner="c2"), Code.RESOURCE_LOCKED),
        (queue("amq.gen-mine"), Code.ACCESS_REFUSED),
        (to_queue("x", "own"), Code.RESOURCE_LOCKED),
        (to_queue("x", "none"), Code.NOT_FOUND),
        (to_queue("none", "q"), Code.NOT_FOUND),
        (to_queue("", "q"), Code.ACCESS_REFUSED),
        (to_exchange("x", ""), Code.ACCESS_REFUSED),
        (to_exchange("x", "none"), Code.NOT_FOUND),
        (to_queue("amq.headers", "q", **{"x-match": "some"}), Code.PRECONDITION_FAILED),
    ],
)
def test_what_is_refused(thing: Exchange | Queue | Binding, code: Code) -> None:
    store = Store()
    store.make(exchange("x", durable=True), queue("q", durable=True), queue("own", owner="c1"))
    before = dict(store.records)
    assert refusal(store.make, thing) is code
    assert store.records == before


def test_the_text_says_which_argument_is_another() -> None:
    store = Store()
    store.make(queue("q", durable=True))
    with pytest.raises(Refusal) as refused:
        store.make(queue("q"))
    text = "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
    assert refused.value.text == text + "received 'false' but current is 'true'"


@for_each(
    "name, fine, wrong",
    [
        ("x-expires", [1, 315_576_000_000], [0, -1, "1", 1.5, True, None, 315_576_000_001]),
        ("x-message-ttl", [0, 1], [-1, "1"]),
        ("x-max-length", [0, 10], [-1, "10"]),
        ("x-max-length-bytes", [0, 10], [-1]),
        ("x-overflow", ["drop-head", "reject-publish", "reject-publish-dlx"], ["drop", 1]),
        ("x-dead-letter-exchange", ["", "x"], [1, "x" * 256, b"\xff"]),
        ("x-max-priority", [0, 255], [-1, 256]),
        ("x-queue-type", ["classic"], ["stream", "quorum", 1]),
        ("x-queue-mode", ["default", "lazy"], ["eager"]),
        ("x-queue-version", [1, 2], [0, 3, "1", True]),
        ("x-requeue", ["front", "back"], ["middle", True]),
        ("x-single-active-consumer", [False, True], ["yes", 1]),
        ("x-delivery-limit", [0, 999_999], [-1, 10**6, True]),
        ("x-groups", [False, True], ["yes", 1]),
        ("x-unheard-of", [1, "x", {"y": []}], []),
    ],
)
def test_arguments_of_queues(name: str, fine: list[Any], wrong: list[Any]) -> None:
    topology = Topology()
    for value in fine:
        assert topology.declare_queue(queue("q", arguments={name: value})).queues
    for value in wrong:
        assert refusal(topology.declare_queue, queue("q", arguments={name: value})) is Code.PRECONDITION_FAILED


CLASSIC = {"x-queue-type": "classic"}


@for_each("order", [1, -1])
@for_each(
    "pair",
    [
        ({}, {"x-queue-mode": "default"}),
        ({}, {"x-queue-version": 1}),
        ({}, {"x-max-priority": 0}),
        ({}, {"x-single-active-consumer": False}),
        ({"x-max-length": 5}, {"x-max-length": 5, "x-overflow": "drop-head"}),
        (CLASSIC, {"x-queue-type": "quorum"}),
        ({"x-delivery-limit": 1}, {"x-delivery-limit": 2}),
    ],
)
def test_other_defaults_are_not_the_same_as_no_argument(pair: tuple[dict[str, Any], ...], order: int) -> None:
    first, second = pair[::order]
    store = Store()
    store.do(store.topology.declare_queue(queue("q", durable=True, arguments=first)))
    again = queue("q", durable=True, arguments=second)
    assert refusal(store.topology.declare_queue, again) is Code.PRECONDITION_FAILED


def test_true_is_not_the_same_argument_as_1() -> None:
    store = Store()
    store.do(store.topology.declare_queue(queue("q", arguments={"x-max-length": 1})))
    assert refusal(store.topology.declare_queue, queue("q", arguments={"x-max-length": True})) is (
        Code.PRECONDITION_FAILED
    )


def test_arguments_that_need_each_other() -> None:
    declare = Topology().declare_queue
    assert refusal(declare, queue("q", arguments={"x-dead-letter-routing-key": "k"})) is Code.PRECONDITION_FAILED
    assert declare(queue("q", arguments={"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": ""})).queues
    assert refusal(declare, queue("g", arguments={"x-groups": True, "x-max-priority": 1})) is Code.PRECONDITION_FAILED
    quorum = {"x-queue-type": "quorum"}
    assert declare(queue("q", durable=True, arguments=quorum)).queues
    assert refusal(declare, queue("q", durable=True, owner="c", arguments=quorum)) is Code.PRECONDITION_FAILED
    assert refusal(declare, queue("", durable=True, arguments=quorum)) is Code.PRECONDITION_FAILED


def test_a_name_that_may_be_there_is_where_messages_go_and_nothing_else() -> None:
    topology = Topology(["blue"], has_queue=lambda name: name == "http", may_have=lambda name: "may" in name)
    topology.apply(topology.declare_queue(queue("maybe", durable=True)))

    def routed(source: str, key: str, vhost: str = "/") -> list[tuple[str, bool]]:
        return [(found.name, found.is_unsure) for found in topology.route(vhost, source, key, nothing)]

    assert routed("", "may") == [("may", True)]
    assert routed("", "may", vhost="blue") == [("may", True)]
    assert routed("", "maybe") == [("maybe", False)]
    assert routed("", "http") == [("http", False)]
    assert routed("", "no") == routed("", "") == []
    topology.apply(topology.declare_exchange(exchange("x", ExchangeType.DIRECT, arguments={"alternate-exchange": ""})))
    assert routed("x", "may") == [("may", True)]
    with pytest.raises(Refusal, match="no queue 'may'"):
        topology.queue("/", "may")
    assert refusal(topology.bind, to_queue("x", "may")) is Code.NOT_FOUND


def test_a_queue_without_a_name_gets_one() -> None:
    store = Store()
    names = [store.do(store.topology.declare_queue(queue(""))).queues[0].name for _ in range(2)]
    assert len(set(names)) == 2
    assert all(name.startswith("amq.gen-") for name in names)
    store.make(queue(names[0]))  # it is there, so it may be declared


def test_an_exclusive_queue_goes_with_its_connection() -> None:
    store = Store()
    store.make(exchange("x", durable=True), queue("own", owner="c1", durable=True), queue("other", owner="c2"))
    store.do(store.topology.bind(to_queue("x", "own"), "c1"))
    assert [kind for kind, _ in store.records] == [declared.EXCHANGE]
    assert refusal(store.topology.queue, "/", "own", "c2") is Code.RESOURCE_LOCKED
    assert refusal(store.topology.delete_queue, "/", "own", "c2") is Code.RESOURCE_LOCKED
    assert refusal(store.topology.unbind, to_queue("x", "own"), "c2") is Code.RESOURCE_LOCKED
    assert store.topology.has_exclusive_queues("c1")
    change = store.do(store.topology.disconnect("/", "c1"))
    assert [one.name for one in change.lost_queues] == ["own"]
    assert not store.topology.has_exclusive_queues("c1")
    assert store.topology.has_exclusive_queues("c2")
    assert store.route("x") == []
    assert [one.name for one in store.topology.queues()] == ["other"]


def test_deleting_what_is_not_there_is_fine() -> None:
    topology = Topology()
    assert topology.delete_queue("/", "q") is NOTHING
    assert topology.delete_exchange("/", "x") is NOTHING
    assert topology.unbind(to_queue("amq.topic", "q")) is NOTHING
    assert topology.unbind(to_queue("none", "q")) is NOTHING


def test_deleting_on_conditions() -> None:
    store = Store()
    store.make(exchange("x"), queue("q"), to_queue("x", "q"))
    assert refusal(store.topology.delete_exchange, "/", "x", if_unused=True) is Code.PRECONDITION_FAILED
    assert refusal(store.topology.delete_exchange, "/", "amq.topic") is Code.ACCESS_REFUSED
    assert refusal(store.topology.delete_exchange, "/", "") is Code.ACCESS_REFUSED
    there = store.topology.queue("/", "q")
    store.topology.consumers.add(there, "c")
    assert refusal(store.topology.delete_queue, "/", "q", if_unused=True) is Code.PRECONDITION_FAILED
    store.topology.consumers.remove(there.key, "c")
    assert store.do(store.topology.delete_queue("/", "q", if_unused=True)).lost_queues
    assert store.do(store.topology.delete_exchange("/", "x", if_unused=True)).lost_exchanges


def test_an_auto_delete_exchange_goes_with_its_last_binding_and_takes_others_along() -> None:
    store = Store()
    store.make(exchange("a"), exchange("b", auto_delete=True), exchange("c", auto_delete=True), queue("q"), queue("r"))
    store.make(to_exchange("a", "b"), to_exchange("b", "c"), to_queue("c", "q"), to_queue("c", "r"))
    assert store.do(store.topology.unbind(to_queue("c", "r"))).lost_exchanges == ()
    change = store.do(store.topology.delete_queue("/", "q"))
    assert {one.name for one in change.lost_exchanges} == {"b", "c"}
    assert len(change.lost_bindings) == 3
    assert store.route("a") == []


def test_a_chain_of_exchanges_may_be_long() -> None:
    store = Store()
    store.make(queue("q"), *(exchange(f"x{n}", auto_delete=n > 0) for n in range(3000)))
    store.make(*(to_exchange(f"x{n}", f"x{n + 1}") for n in range(2999)), to_queue("x2999", "q"))
    assert store.route("x0") == ["q"]
    assert len(store.do(store.topology.delete_queue("/", "q")).lost_exchanges) == 2999


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    store = Store()
    store.make(queue("q", auto_delete=True), queue("r"))
    there, consumers = store.topology.queue("/", "q"), store.topology.consumers
    consumers.add(there, "c1")
    consumers.add(there, "c2")
    consumers.remove(there.key, "c1")
    assert store.topology.left("/", "q") is NOTHING
    consumers.remove(there.key, "c2")
    assert store.do(store.topology.left("/", "q")).lost_queues == (there,)
    assert store.topology.left("/", "r") is NOTHING
    assert store.topology.left("/", "q") is NOTHING


def test_exclusive_consumers() -> None:
    topology = Topology(has_queue=lambda name: True)
    one, other, consumers = topology.queue("/", "q"), topology.queue("/", "r"), topology.consumers
    consumers.add(one, "a", exclusive=True)
    assert refusal(consumers.add, one, "b") is Code.ACCESS_REFUSED
    consumers.add(other, "a")
    assert refusal(consumers.add, other, "b", exclusive=True) is Code.ACCESS_REFUSED
    consumers.remove(one.key, "a")
    consumers.add(one, "b")
    assert consumers.of(one.key) == ["b"]


def test_the_first_consumer_is_active_and_then_the_highest() -> None:
    topology = Topology(has_queue=lambda name: True)
    queue, consumers = topology.queue("/", "q"), topology.consumers
    assert consumers.active(queue.key) is None
    for name, priority in (("low", -1), ("first", 5), ("second", 5), ("none", 0)):
        consumers.add(queue, name, priority=priority)
    order = []
    while (active := consumers.active(queue.key)) is not None:
        order.append(active)
        consumers.remove(queue.key, active)
    assert order == ["low", "first", "second", "none"]


def test_what_survives_a_restart() -> None:
    store = Store()
    arguments = {"x-max-length": 5, "x-dead-letter-exchange": "", "x-y": {"z": [b"\xff", None]}}
    store.make(exchange("x", ExchangeType.TOPIC, durable=True, auto_delete=True, arguments={"alternate-exchange": "y"}))
    store.make(exchange("y", ExchangeType.HEADERS, durable=True, internal=True), exchange("gone"))
    store.make(queue("a b", durable=True, auto_delete=True, arguments=arguments), queue("transient"))
    store.make(to_queue("x", "a b", "k.#"), to_queue("x", "transient"), to_queue("gone", "a b"), to_exchange("x", "y"))
    store.make(to_queue("y", "a b", "", a=1))
    again = store.restarted()
    assert store.lost == []
    for name in ("x", "y"):
        assert again.exchange("/", name) == store.topology.exchange("/", name)
    assert list(again.queues()) == [store.topology.queue("/", "a b")]
    assert [found.name for found in again.route("/", "x", "k.1", nothing)] == ["a b"]
    assert [found.name for found in again.route("/", "x", "z", lambda: {"a": 1})] == ["a b"]
    assert refusal(again.exchange, "/", "gone") is Code.NOT_FOUND
    assert len(store.records) == 6


def test_a_binding_that_lost_an_end_while_nobody_looked_is_to_be_dropped() -> None:
    store = Store(has_queue=lambda name: name == "http")
    store.make(exchange("x", durable=True), to_queue("x", "http"))
    assert [record.kind for record in store.topology.unbind(to_queue("x", "http")).drops()] == [declared.BINDING]
    store.restarted(has_queue=lambda name: True)
    assert store.lost == []
    store.restarted()
    assert [(record.kind, record.key) for record in store.lost] == [
        key for key in store.records if key[0] == declared.BINDING
    ]


@pytest.mark.parametrize("name", ["q", "http"])
def test_a_queue_that_is_deleted_over_http_leaves_nothing_behind(name: str) -> None:
    there = {"http"}
    store = Store(has_queue=there.__contains__)
    store.make(exchange("x", durable=True, auto_delete=True), queue("q", durable=True), to_queue("x", name))
    there.clear()
    change = store.do(store.topology.gone("/", name))
    assert [one.name for one in change.lost_queues] == [name]
    assert refusal(store.topology.exchange, "/", "x") is Code.NOT_FOUND
    assert {kind for kind, _ in store.records} == ({declared.QUEUE} if name == "http" else set())


def test_alternate_exchanges_take_what_has_no_place() -> None:
    store = Store()
    store.make(exchange("x", ExchangeType.DIRECT, arguments={"alternate-exchange": "rest"}), exchange("rest"))
    store.make(queue("q"), queue("r"), to_queue("x", "q", "k"), to_queue("rest", "r"))
    assert (store.route("x", "k"), store.route("x", "else")) == (["q"], ["r"])
    store.make(exchange("nowhere", arguments={"alternate-exchange": "none"}))
    store.make(exchange("default", arguments={"alternate-exchange": ""}))
    assert (store.route("nowhere"), store.route("default", "q")) == ([], ["q"])
    assert refusal(store.route, "none") is Code.NOT_FOUND


class Malformed(Exception):
    pass


def test_headers_are_looked_into_only_where_they_count() -> None:
    def broken() -> Mapping[str, Any]:
        raise Malformed

    store = Store()
    store.make(queue("q"), to_queue("amq.fanout", "q"), to_queue("amq.headers", "q"))
    assert store.topology.route("/", "amq.fanout", "", broken)
    with pytest.raises(Malformed):
        store.topology.route("/", "amq.headers", "", broken)


EDGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=20)


@given(EDGES, EDGES, st.integers(0, 4))
def test_graphs_of_exchanges_with_cycles(edges: list[tuple[int, int]], cut: list[tuple[int, int]], start: int) -> None:
    """Fanouts 0 to 4 lead to each other and to queues 5 to 7; then some of these bindings go again."""
    store = Store()
    store.make(*(exchange(str(n)) for n in range(5)), *(queue(str(n)) for n in range(5, 8)))
    bindings = {pair: Binding("/", str(pair[0]), Destination(pair[1] > 4, str(pair[1])), "") for pair in edges + cut}
    store.make(*(bindings[pair] for pair in edges))
    for pair in cut:
        store.do(store.topology.unbind(bindings[pair]))
    left = set(edges) - set(cut)
    reached, before = {start}, set()
    while reached != before:
        before = set(reached)
        reached |= {target for source, target in left if source in before}
    assert store.route(str(start)) == [str(n) for n in sorted(reached) if n > 4]
