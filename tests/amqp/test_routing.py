"""Each type of exchange against a model that is too simple to be wrong."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mq.amqp.model.declared import Binding, Destination, ExchangeType
from mq.amqp.model.routing import check_binding, fits, matcher, words
from mq.amqp.wire.errors import Code, Refusal
from tests.cases import for_each

patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


def binding(key: str = "", to: str = "q", **arguments: Any) -> Binding:
    return Binding("/", "x", Destination(True, to), key, arguments)


def nothing() -> Mapping[str, Any]:
    raise AssertionError("nobody has to know the headers")


@functools.cache
def model(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """Section 3.1.3.3 of the specification, read aloud."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return model(pattern[1:], key) or (bool(key) and model(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and model(pattern[1:], key[1:])


@given(st.lists(patterns, max_size=8), st.data(), keys)
@example(["#.#.a", "a.#", "#"], None, "a.b.a")
def test_topics(bound: list[str], data: Any, key: str) -> None:
    topic = matcher(ExchangeType.TOPIC)
    for pattern in bound:
        topic.add(binding(pattern))
    gone = set(data.draw(st.lists(st.sampled_from(bound), max_size=4))) if data is not None and bound else set()
    for pattern in gone:
        topic.remove(binding(pattern))
    wanted = {one for one in set(bound) - gone if model(tuple(words(one)), tuple(words(key)))}
    assert {one.routing_key for one in topic.match(key, nothing)} == wanted


@for_each(
    "pattern, key, does",
    [
        ("*.stock.#", "usd.stock", True),
        ("*.stock.#", "eur.stock.db", True),
        ("*.stock.#", "stock.nasdaq", False),
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("a.*", "a.", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("*", "a.b", False),
    ],
)
def test_topics_by_example(pattern: str, key: str, does: bool) -> None:
    topic = matcher(ExchangeType.TOPIC)
    topic.add(binding(pattern))
    assert bool(topic.match(key, nothing)) is does


def test_a_trie_without_bindings_is_empty() -> None:
    topic = matcher(ExchangeType.TOPIC)
    topic.add(binding("a.b"))
    topic.add(binding("a.b.c"))
    topic.remove(binding("a.b.c"))
    topic.remove(binding("a.b"))
    topic.remove(binding("never.there"))
    assert topic._root.following == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("gone", "stays"), [("a", "a.b"), ("a.b", "a"), ("#", "#.a"), ("", "a")])
def test_what_is_removed_takes_nothing_else_along(gone: str, stays: str) -> None:
    topic = matcher(ExchangeType.TOPIC)
    topic.add(binding(gone))
    topic.add(binding(stays))
    topic.remove(binding(gone))
    assert topic.match(stays, nothing) == {binding(stays)}


def test_many_hashes_cost_no_more_than_the_trie_is_large() -> None:
    topic = matcher(ExchangeType.TOPIC)
    topic.add(binding(".".join(["#", "a"] * 40 + ["b"])))
    began = time.perf_counter()
    assert not topic.match(".".join(["a"] * 120), nothing)
    assert time.perf_counter() - began < 5  # it would take longer than the sun shines


@given(st.lists(keys, max_size=6), st.lists(keys, max_size=3), keys)
def test_direct(bound: list[str], gone: list[str], key: str) -> None:
    direct = matcher(ExchangeType.DIRECT)
    for one in bound:
        direct.add(binding(one))
        direct.add(binding(one, "other", a=1))
    for one in gone:
        direct.remove(binding(one))
    found = {(one.routing_key, one.to.name) for one in direct.match(key, nothing)}
    assert found == {(key, name) for name in ("q", "other") if key in bound and (name == "other" or key not in gone)}


def test_fanout() -> None:
    fanout = matcher(ExchangeType.FANOUT)
    for key in ("a", "b", "b"):
        fanout.add(binding(key))
    fanout.remove(binding("a"))
    assert {one.routing_key for one in fanout.match("anything", nothing)} == {"b"}


@for_each(
    "arguments, headers, does",
    [
        ({}, {}, True),  # all of nothing
        ({"x-match": "any"}, {"a": 1}, False),  # any of nothing
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": 2}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"a": None}, {"a": "whatever"}, True),  # it only has to be there
        ({"a": None}, {}, False),
        ({"x-match": "any", "a": None}, {"a": None}, True),
        ({"a": 1}, {"a": True}, False),  # other types
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": "x"}, {"a": b"x"}, False),
        ({"x-match": "all", "x-a": 1}, {}, True),  # keys with x- do not count
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1, "a": 2}, {"x-a": 1, "a": 2}, True),
        ({"x-match": "any-with-x", "x-a": 1, "a": 2}, {"x-a": 1}, True),
    ],
)
def test_headers(arguments: dict[str, Any], headers: dict[str, Any], does: bool) -> None:
    assert fits(arguments, headers) is does
    by_headers = matcher(ExchangeType.HEADERS)
    by_headers.add(binding(**arguments))
    assert bool(by_headers.match("any key", lambda: headers)) is does


def test_headers_are_not_decoded_where_nothing_is_bound() -> None:
    assert matcher(ExchangeType.HEADERS).match("", nothing) == set()


@pytest.mark.parametrize("given", ["both", "", 1, None, b"all", ["all"]])
def test_x_match_is_one_of_four(given: Any) -> None:
    with pytest.raises(Refusal) as refused:
        check_binding(ExchangeType.HEADERS, {"x-match": given})
    assert refused.value.code is Code.PRECONDITION_FAILED
    check_binding(ExchangeType.DIRECT, {"x-match": given})


def test_bindings_are_told_apart_by_their_arguments() -> None:
    assert len({binding("k", a=1), binding("k", a=True), binding("k", a=1.0), binding("k"), binding("k", a=1)}) == 4


VALUES = (1, 1.0, True, "1", b"1", None, [1], {"a": 1})


@pytest.mark.parametrize("mode", ["all", "any"])
def test_headers_match_as_by_a_look_at_each_binding(mode: str) -> None:
    bound = [binding(**{"x-match": mode, "a": first, "b": second}) for first in VALUES for second in VALUES]
    by_headers = matcher(ExchangeType.HEADERS)
    for each in bound:
        by_headers.add(each)
    for gone in bound[::3]:
        by_headers.remove(gone)
    left = [each for number, each in enumerate(bound) if number % 3]
    for headers in ({"a": first, "b": second} for first in VALUES for second in VALUES):
        found = by_headers.match("", lambda headers=headers: headers)  # type: ignore[misc]
        assert found == {each for each in left if fits(each.arguments, headers)}


def test_headers_exchange_looks_at_bindings_with_an_equal_header_alone() -> None:
    by_headers = matcher(ExchangeType.HEADERS)
    for number in range(1000):
        by_headers.add(binding(number=number, kind="order"))
        by_headers.add(binding(**{"x-match": "any", "number": number}))
    assert len(by_headers.match("", lambda: {"number": 7, "kind": "order"})) == 2
    assert by_headers.looked_at == 2
