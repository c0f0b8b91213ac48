"""When a request goes again, and when it must not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import httpx
import pytest

from mq.client import (
    ClientError,
    Head,
    Interrupted,
    NotFound,
    Outcome,
    Outgoing,
    Published,
    Retry,
    Unavailable,
    Unreachable,
)
from mq.client.calls import Again, Answer, Call, Source, nothing
from mq.client.retries import Tries
from tests.cases import for_each
from tests.client.scripted import ID, OTHER, Script, both, lines, message, read_lines, refused, unsure

BUSY = Answer(503, {})
HELD = Head(queue="q", id=ID, receipt="r1")


class Clock:
    """Stands still but for what a test adds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tries(again: Again = Again.ALWAYS, body: bytes | Source = b"", **options: Any) -> tuple[Tries, Clock]:
    clock = Clock()
    call = Call(method="POST", target="/q", again=again, body=body, read=nothing)
    retry = Retry(**{"patience": 60.0, "first": 1.0, "longest": 8.0, **options})
    return Tries(call, retry, clock=clock, random=Random(1), wall_clock=lambda: 784_111_777.0), clock


def test_pauses_grow_up_to_the_longest() -> None:
    pauses = []
    for seed in range(200):
        some, _ = tries(patience=1e9)
        some._random = Random(seed)
        pauses.append([some.after_answer(BUSY) for _ in range(6)])
    highest = [max(column) for column in zip(*pauses, strict=True)]
    assert [round(high) for high in highest] == [1, 2, 4, 8, 8, 8]
    assert min(map(min, pauses)) < 0.1  # spread from zero on


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), (" 0 ", 0), ("Sun, 06 Nov 1994 08:49:47 GMT", 10), ("Sun, 06 Nov 1994 08:49:00 GMT", 0)],
)
def test_retry_after_is_waited_for_and_a_little_longer(value: str, seconds: int) -> None:
    some, _ = tries()
    pause = some.after_answer(Answer(503, {"retry-after": value}))
    assert pause is not None
    assert seconds <= pause <= seconds + 1


@pytest.mark.parametrize("value", ["soon", "-1", "٣", "", "1.5"])
def test_a_retry_after_that_makes_no_sense_is_passed_over(value: str) -> None:
    some, _ = tries()
    pause = some.after_answer(Answer(503, {"retry-after": value}))
    assert pause is not None
    assert pause <= 1


def test_patience_ends() -> None:
    some, clock = tries(patience=10.0)
    assert some.after_answer(BUSY) is not None
    clock.now += 9.999
    assert some.after_answer(Answer(503, {"retry-after": "1"})) is None


def test_who_is_asked_to_wait_longer_than_their_patience_gives_up_at_once() -> None:
    some, _ = tries(patience=5.0)
    assert some.after_answer(Answer(429, {"retry-after": "6"})) is None


def test_no_patience_is_one_try() -> None:
    some, _ = tries(patience=0.0)
    assert some.after_failure(is_sent=False) is None


@pytest.mark.parametrize(
    ("again", "unsent", "sent", "full", "busy"),
    [
        (Again.NEVER, False, False, False, False),
        (Again.UNSERVED, True, False, True, False),
        (Again.ALWAYS, True, True, True, True),
    ],
)
def test_what_may_go_again(again: Again, unsent: bool, sent: bool, full: bool, busy: bool) -> None:
    assert (tries(again)[0].after_failure(is_sent=False) is not None) == unsent
    assert (tries(again)[0].after_failure(is_sent=True) is not None) == sent
    assert (tries(again)[0].after_answer(Answer(429, {})) is not None) == full
    for status in (502, 503, 504):
        assert (tries(again)[0].after_answer(Answer(status, {})) is not None) == busy
    for status in (200, 404, 409, 412, 500):
        assert tries(again)[0].after_answer(Answer(status, {})) is None


def test_chunks_that_are_used_up_do_not_go_again() -> None:
    once = Source(lambda: [b"x"], is_repeatable=False)
    assert tries(body=once)[0].after_failure(is_sent=True) is None
    assert tries(body=once)[0].after_answer(BUSY) is None
    assert tries(body=once)[0].after_failure(is_sent=False) is not None


def test_it_is_noted_when_an_earlier_try_may_have_been_served() -> None:
    some, _ = tries()
    some.after_failure(is_sent=False)
    some.after_answer(Answer(429, {}))
    assert not some.perhaps_served
    some.after_failure(is_sent=True)
    assert some.perhaps_served


# The verbs


def lost() -> Exception:
    return httpx.ReadError("reset")


def stored() -> httpx.Response:
    return httpx.Response(201, headers={"x-message-id": ID})


REPEATED: dict[str, tuple[Callable[[Any], Any], Callable[[], httpx.Response]]] = {
    "create": (lambda c: c.create_queue("q"), lambda: httpx.Response(200)),
    "configure": (lambda c: c.configure("q", paused=True), lambda: httpx.Response(200)),
    "publish": (lambda c: c.publish("q", b""), stored),
    "publish many": (lambda c: c.publish_many("q", [b""] * 2), lambda: lines(*[{"status": 200, "id": ID}] * 2)),
    "fetch": (lambda c: c.fetch("q"), message),
    "remove": (lambda c: c.remove(HELD), lambda: httpx.Response(202)),
    "remove many": (lambda c: c.remove_many("q", [ID]), lambda: lines({"status": 404})),
    "extend": (lambda c: c.extend(HELD, 9), lambda: httpx.Response(200)),
    "contains": (lambda c: c.contains("q", b""), lambda: httpx.Response(200, json={"contains": False})),
    "peek": (lambda c: c.peek("q"), lines),
}
NOT_REPEATED: dict[str, Callable[[Any], Any]] = {
    "take": lambda c: c.take("q"),
    "purge": lambda c: c.purge("q"),
    "redrive": lambda c: c.redrive("q"),
    "ready": lambda c: c.ready(),
    "publish chunks": lambda c: c.publish("q", iter([b"x"])),
}


@for_each("name", REPEATED)
async def test_repeated_though_it_may_have_been_served(name: str) -> None:
    verb, answer = REPEATED[name]
    for script, result in await both(lambda: [lost(), refused(503), answer()], verb):
        assert not isinstance(result, Exception)
        first, second, third = script.asked
        assert first == second == third  # the same key, too


@pytest.mark.parametrize("name", NOT_REPEATED)
async def test_not_repeated_once_it_may_have_been_served(name: str) -> None:
    for script, error in await both(lambda: [lost()], NOT_REPEATED[name]):
        assert isinstance(error, Interrupted)
        assert len(script.asked) == 1


async def test_without_keys_a_publish_is_not_repeated() -> None:
    for verb in (lambda c: c.publish("q", b""), lambda c: c.publish_many("q", [b"", b""])):
        for script, error in await both(lambda: [lost()], verb, keys=False):
            assert isinstance(error, Interrupted)
            assert "idempotency-key" not in script.only.headers
            assert b"key" not in script.only.body
        for _, error in await both(lambda: [refused(503)], verb, keys=False):
            assert isinstance(error, Unavailable)


async def test_without_keys_it_is_repeated_where_it_was_certainly_not_served() -> None:
    steps = lambda: [httpx.ConnectError("nobody"), refused(429), stored()]  # noqa: E731
    for script, result in await both(steps, lambda c: c.publish("q", b""), keys=False):
        assert result == Published(id=ID)
        assert len(script.asked) == 3


async def test_a_key_of_ones_own_counts_without_keys() -> None:
    for script, result in await both(lambda: [lost(), stored()], lambda c: c.publish("q", b"", key="mine"), keys=False):
        assert result == Published(id=ID)
        assert {asked.headers["idempotency-key"] for asked in script.asked} == {"mine"}


async def test_every_publish_has_a_key_of_its_own() -> None:
    script = Script(stored(), stored())
    with script.client() as client:
        client.publish("q", b"")
        client.publish("q", b"")
    keys = [asked.headers["idempotency-key"] for asked in script.asked]
    assert len(set(keys)) == 2


async def test_chunks_from_a_function_are_sent_anew() -> None:
    steps = lambda: [lost(), stored()]  # noqa: E731
    for script, result in await both(steps, lambda c: c.publish("q", chunks_for(c))):
        assert result == Published(id=ID)
        assert [asked.body for asked in script.asked] == [b"abcd", b"abcd"]


def chunks_for(client: Any) -> Callable[[], Any]:
    async def later() -> Any:
        for chunk in (b"ab", b"cd"):
            yield chunk

    return later if hasattr(client, "aclose") else lambda: iter([b"ab", b"cd"])


@pytest.mark.parametrize(
    ("verb", "status", "is_done"),
    [
        (lambda c: c.remove(HELD), 404, True),
        (lambda c: c.remove(HELD), 412, False),
        (lambda c: c.delete_queue("q"), 404, True),
        (lambda c: c.requeue(HELD), 409, True),
        (lambda c: c.requeue(HELD), 412, True),
        (lambda c: c.requeue(HELD), 404, True),
        (lambda c: c.extend(HELD, 5), 409, False),
    ],
)
async def test_what_an_earlier_try_has_done_is_done(verb: Callable[[Any], Any], status: int, is_done: bool) -> None:
    for _, result in await both(lambda: [lost(), refused(status)], verb):
        assert (result is None) == is_done
    for _, error in await both(lambda: [refused(status)], verb):  # the first try: nobody has done it
        assert error.status == status


async def test_nobody_there() -> None:
    for script, error in await both(lambda: [httpx.ConnectError("refused")], lambda c: c.ready()):
        assert type(error) is Unreachable
        assert "http://mq.test:8080" in str(error)
        assert len(script.asked) == 1


async def test_only_the_refused_entries_of_a_batch_go_again() -> None:
    steps = lambda: [  # noqa: E731
        lines({"status": 201, "id": ID}, {"status": 503, "detail": "full"}, {"status": 400, "detail": "bad"}),
        lines({"status": 429, "detail": "full"}),
        lines({"status": 201, "id": OTHER}),
    ]
    for script, result in await both(steps, lambda c: c.publish_many("q", [b"a", b"b", b"c"])):
        assert result == [Outcome(status=201, id=ID), Outcome(status=201, id=OTHER), Outcome(status=400, detail="bad")]
        first, second, third = [read_lines(asked.body) for asked in script.asked]
        assert [first[1]] == second == third


UNSURE: dict[str, tuple[Callable[[], list[Any]], bool, str]] = {
    "full": (lambda: [refused(503)], False, "no"),
    "full twice": (lambda: [refused(503), refused(503)], False, "no"),
    "said so": (lambda: [unsure()], True, "it may have been done"),
    "a proxy": (
        lambda: [httpx.Response(502)],
        True,
        "the daemon returned status 502. The request may have been executed",
    ),
    "nobody knows whose 503": (
        lambda: [httpx.Response(503)],
        True,
        "the daemon returned status 503. The request may have been executed",
    ),
    "said so, then full": (lambda: [unsure(), refused(503)], True, "no. An earlier attempt may have succeeded"),
    "broke, then full": (lambda: [lost(), refused(503)], True, "no. An earlier attempt may have succeeded"),
    "broke": (lambda: [lost()], True, "The request may have been executed"),
    "nobody there": (lambda: [httpx.ConnectError("x")], False, "cannot connect to"),
    "broke, then nobody there": (
        lambda: [lost(), httpx.ConnectError("x")],
        True,
        "An earlier attempt to send the request may have succeeded",
    ),
    "full, then nobody there": (lambda: [refused(503), httpx.ConnectError("x")], False, "cannot connect to"),
}
"""The answers that use up the patience -> whether the publish may be stored, and what is said."""


@for_each("steps, is_unsure, text", UNSURE.values())
async def test_an_error_says_whether_it_may_have_been_done(
    steps: Callable[[], list[Any]], is_unsure: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(steps())
    monkeypatch.setattr(Tries, "_pause", lambda self, asked: self.counted(count))
    monkeypatch.setattr(Tries, "counted", _counted, raising=False)
    for script, error in await both(steps, lambda c: c.publish("q", b"x")):
        assert len(script.asked) == count
        assert isinstance(error, ClientError)
        assert error.is_unsure == is_unsure
        assert text in str(error)


def _counted(tries: Tries, most: int) -> float | None:
    """No pause, and so many tries."""
    tries._count += 1
    return 0.0 if tries._count < most else None


async def test_an_entry_of_a_batch_says_whether_it_may_have_been_done() -> None:
    said = {"status": 503, "detail": "it may have been done"}
    steps = lambda: [lines(said | {"outcome": "unknown"}, said)]  # noqa: E731
    for _, result in await both(steps, lambda c: c.publish_many("q", [b"a", b"b"]), keys=False):
        assert [outcome.is_unsure for outcome in result] == [True, False]


async def test_an_entry_without_a_key_does_not_go_again_after_503() -> None:
    steps = lambda: [lines(*[{"status": 503, "detail": "failed"}] * 2)]  # noqa: E731
    for _, result in await both(steps, lambda c: c.publish_many("q", [b"a", b"b"]), keys=False):
        assert result == [Outcome(status=503, detail="failed")] * 2


async def test_long_lists_go_in_batches() -> None:
    def steps() -> list[httpx.Response]:
        return [lines(*[{"status": 201, "id": ID}] * count) for count in (1000, 500)]

    for script, result in await both(steps, lambda c: c.publish_many("q", [b"x"] * 1500)):
        assert len(result) == 1500
        assert [len(read_lines(asked.body)) for asked in script.asked] == [1000, 500]


async def test_a_long_message_goes_alone_and_as_it_is() -> None:
    big = Outgoing(bytes(3 << 20), "x/y")
    for script, result in await both(lambda: [stored(), stored()], lambda c: c.publish_many("q", [big, big])):
        assert result == [Outcome(status=201, id=ID)] * 2
        assert [asked.target for asked in script.asked] == ["/q/messages"] * 2
        assert script.asked[0].body == big.body
        assert script.asked[0].headers["content-type"] == "x/y"
        assert len({asked.headers["idempotency-key"] for asked in script.asked}) == 2


async def test_a_batch_that_is_too_large_is_halved() -> None:
    steps = lambda: [refused(413), stored(), refused(413), stored(), refused(413, "too long")]  # noqa: E731
    for script, result in await both(steps, lambda c: c.publish_many("q", [b"a", b"b", b"c"])):
        assert result == [*[Outcome(status=201, id=ID)] * 2, Outcome(status=413, detail="too long")]
        whole, alone, rest, *_ = script.asked
        assert [line["body"] for line in read_lines(whole.body)] == ["a", "b", "c"]
        assert alone.body == b"a"
        assert alone.headers["idempotency-key"] == read_lines(whole.body)[0]["key"]
        assert read_lines(rest.body) == read_lines(whole.body)[1:]


async def test_what_is_not_about_one_message_is_about_all() -> None:
    for _, error in await both(lambda: [refused(404)], lambda c: c.publish_many("nowhere", [b"a"])):
        assert isinstance(error, NotFound)


async def test_a_removal_of_many_goes_in_batches() -> None:
    def steps() -> list[httpx.Response]:
        return [lines(*[{"status": 202, "id": ID}] * count) for count in (1000, 1)]

    for script, result in await both(steps, lambda c: c.remove_many("q", [ID] * 1001)):
        assert len(result) == 1001
        assert len(script.asked) == 2


async def test_not_found_is_not_patient() -> None:
    for script, error in await both(lambda: [refused(404)], lambda c: c.fetch("q")):
        assert isinstance(error, NotFound)
        assert len(script.asked) == 1
