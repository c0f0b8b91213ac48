"""Previews and dead letters: beginnings of messages, and of what died, with why."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio

from mq.access import Right, User
from mq.broker import Broker, Draft
from mq.broker.peek import Seen
from mq.message import DamagedBody, Message, MessageIds, Properties
from mq.web import page_operations
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from mq.web.page_operations import PREVIEW_BYTES, previews_of
from tests.web.talking import ask, stream


async def asked(endpoints: Endpoints, path: str, query: str = "", user: User | None = None) -> Any:
    request = Request("GET", path.encode(), query.encode(), {}, stream(), None, user=user)
    reply = await endpoints.handle(request)
    assert reply.status == 200
    assert isinstance(reply.body, bytes)
    return json.loads(reply.body)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", {"text": ""}),
        (b"hello", {"text": "hello"}),
        ("é".encode() * PREVIEW_BYTES, {"text": "é" * (PREVIEW_BYTES // 2)}),
        (b"x" + "é".encode() * PREVIEW_BYTES, {"text": "x" + "é" * (PREVIEW_BYTES // 2 - 1)}),  # cut in a character
        (b"\xff\x00", {"base64": "/wA="}),
        ("é".encode()[:1], {"base64": "ww=="}),
        (bytes(1 << 20), {"text": "\0" * PREVIEW_BYTES}),
    ],
)
async def test_the_beginning_of_a_message(
    endpoints: Endpoints, broker: Broker, body: bytes, shown: dict[str, str]
) -> None:
    await broker.create_queue("q")
    assert (await ask(endpoints, "POST", "/q/messages", body, headers={"x-message-attribute-a": "b"})).status == 201
    [message] = (await asked(endpoints, "/q/preview"))["messages"]
    assert {name: message[name] for name in ("text", "base64") if name in message} == shown
    assert (message["size"], message["state"], message["queue"]) == (len(body), "ready", "q")
    assert message["attributes"] == {"a": "b"}


async def test_page_by_page(endpoints: Endpoints, broker: Broker) -> None:
    await broker.create_queue("q")
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(5)])
    first = (await asked(endpoints, "/q/preview", "max=3"))["messages"]
    rest = (await asked(endpoints, "/q/preview", f"max=3&after={first[-1]['id']}"))["messages"]
    assert [each["text"] for each in first + rest] == ["0", "1", "2", "3", "4"]


async def test_damage_is_told() -> None:
    damaged = Message("q", MessageIds().new(), DamagedBody(3, "its checksum is wrong"), Properties(3, 0), 0, "")
    [shown] = await previews_of([Seen(damaged, "ready")])
    assert shown["damage"] == "its checksum is wrong"


async def test_until_when_a_message_waits_or_is_leased(endpoints: Endpoints, broker: Broker) -> None:
    await broker.create_queue("q")
    before = time.time_ns() // 10**6
    await broker.publish_many("q", [Draft(b"leased"), Draft(b"ready"), Draft(b"waits", at_ms=before + 10**10)])
    assert await broker.fetch("q", visibility=600) is not None
    [ready], [leased], [waiting] = [
        (await asked(endpoints, "/q/preview", f"state={state}"))["messages"] for state in ("ready", "leased", "delayed")
    ]
    assert "at_ms" not in ready
    assert 600_000 < leased["at_ms"] - before <= 660_000
    assert waiting["at_ms"] == before + 10**10


async def test_preview_names_the_holder_of_a_message_leased_without_a_time(
    endpoints: Endpoints, broker: Broker
) -> None:
    await broker.create_queue("q")
    await broker.publish_many("q", [Draft(b"to a connection"), Draft(b"in a batch")])
    [held] = await broker.hold("q")
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch)
    shown = (await asked(endpoints, "/q/preview", "state=leased"))["messages"]
    found = {each["text"]: (each["leased_by"], each["receives"], "at_ms" in each) for each in shown}
    assert found == {"to a connection": ("connection", 1, False), "in a batch": ("consumer", 1, False)}
    await broker.put_back([held])


async def test_view_of_a_queue_says_whether_it_takes_dead_letters(endpoints: Endpoints, broker: Broker) -> None:
    for queue in ("a", "a.dead"):
        await broker.create_queue(queue)
    await broker.change_settings("a", {"dead_letter_queue": "a.dead"})
    for queue, takes in (("a", False), ("a.dead", True)):
        query = f"view=queue&queue={queue}".encode()
        reply = await endpoints.handle(Request("GET", b"/-/events", query, {}, stream(), None))
        assert isinstance(reply.body, bytes)
        view = json.loads(reply.body.removeprefix(b"data: "))
        assert (view["is_dead_letter_queue"], view["consumers"]) == (takes, 0)


async def test_full_dead_letter_queues_come_before_empty_ones(
    endpoints: Endpoints, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_operations, "MOST_DEAD_LETTER_QUEUES", 1)
    for queue in ("a", "a.dead", "b", "b.dead"):
        await broker.create_queue(queue)
    for queue in ("a", "b"):
        await broker.change_settings(queue, {"dead_letter_queue": f"{queue}.dead"})
    await broker.publish("b.dead", b"x")
    found = (await asked(endpoints, "/-/dead-letters"))["queues"]
    assert [(each["queue"], each["ready"]) for each in found] == [("b.dead", 1)]


async def test_dead_letters_of_all_queues(endpoints: Endpoints, broker: Broker) -> None:
    for queue in ("a", "b", "a.dead", "b.dead", "other"):
        await broker.create_queue(queue)
    for queue in ("a", "b"):
        await broker.change_settings(queue, {"dead_letter_queue": f"{queue}.dead", "max_receives": 1})
        await broker.publish_many(queue, [Draft(queue.encode())] * 2)
        for message in await broker.fetch_many(queue, 2):
            await broker.requeue(queue, message.id)
    with trio.fail_after(5):
        while sum(each["ready"] for each in (await asked(endpoints, "/-/queues"))["queues"]) < 4:
            await trio.lowlevel.checkpoint()
    await trio.sleep(1)  # the overview is that old at the most; by the clock of the day, as the broker's is
    found = (await asked(endpoints, "/-/dead-letters"))["queues"]
    assert [(each["queue"], each["ready"], len(each["messages"])) for each in found] == [
        ("a.dead", 2, 2),
        ("b.dead", 2, 2),
    ]
    [death] = found[0]["messages"][0]["dead_letter_history"]
    assert (death["queue"], death["reason"], death["receives"]) == ("a", "receives", 1)
    found = (await asked(endpoints, "/-/dead-letters", "max=3"))["queues"]
    assert [len(each["messages"]) for each in found] == [2, 1]
    reader = User("r", {Right.CONSUME: ("b.*",)})
    assert [each["queue"] for each in (await asked(endpoints, "/-/dead-letters", user=reader))["queues"]] == ["b.dead"]
    assert (await asked(endpoints, "/-/dead-letters", user=User("n", {Right.MONITOR: ("*",)})))["queues"] == []
