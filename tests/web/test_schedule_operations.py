"""Schedules over HTTP: made, shown, changed and deleted by those who may; and what makes no sense is said."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from mq.access import Right, User
from mq.broker import Broker, open_broker
from mq.schedules.scheduler import DEFAULT_LIMITS, MESSAGES_PER_SECOND, SCHEDULES_PER_USER, ScheduleLimits, Scheduler
from mq.web.authorizer import Auditor
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from tests.cases import for_each

NIGHTLY: Final = {"cron": "0 3 * * *", "zone": "Europe/Berlin", "queue": "q", "message": {"body": "hello"}}
EVERY: Final = {"every": 60, "queue": "q", "message": {"body": "hello"}}


class Door:
    """An HTTP door over a broker with the queue ``q``, and a scheduler at work."""

    def __init__(self, broker: Broker, refusal: str = "", limits: ScheduleLimits = DEFAULT_LIMITS) -> None:
        self.broker = broker
        self.scheduler = Scheduler(broker, refusal, limits)
        self.endpoints = Endpoints(broker, 1 << 20, schedules=self.scheduler)

    async def ask(self, line: str, value: Any = None, user: User | None = None) -> tuple[int, Any]:
        method, _, path = line.partition(" ")
        where, _, query = path.partition("?")
        body = b"" if value is None else json.dumps(value).encode()
        request = Request(method, where.encode(), query.encode(), {}, body, len(body), user=user)
        reply = await Auditor(self.endpoints).handle(request)
        assert isinstance(reply.body, bytes)
        return reply.status, json.loads(reply.body) if reply.body else None


def _clock_ns() -> int:
    return round((1_700_000_000 + trio.current_time()) * 1e9)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_broker("memory:", clock_ns=_clock_ns) as broker, trio.open_nursery() as nursery:
        await broker.create_queue("q")
        door = Door(broker)
        nursery.start_soon(door.scheduler.run)
        yield door
        nursery.cancel_scope.cancel()


async def test_a_schedule_is_made_shown_changed_and_deleted(autojump_clock: MockClock, door: Door) -> None:
    status, said = await door.ask("PUT /-/schedules/nightly", NIGHTLY)
    shown = {
        "name": "nightly",
        "queue": "q",
        "cron": "0 3 * * *",
        "zone": "Europe/Berlin",
        "every": None,
        "unless_waiting": False,
        "next": "2023-11-15T02:00:00Z",
        "last": None,
        "error": None,
    }
    assert (status, said) == (201, shown)
    assert await door.ask("GET /-/schedules/nightly") == (200, shown | {"message": {"body": "hello"}})
    message = {
        "base64": "/w==",
        "content_type": "a/b",
        "attributes": {"color": "bleu"},
        "delay": 5,
        "ttl": 90,
        "priority": 3,
    }
    changed = {"every": 1.5, "queue": "q", "message": message, "unless_waiting": True}
    assert (await door.ask("PUT /-/schedules/nightly", changed))[0] == 200
    shown |= {"cron": None, "zone": None, "every": 1.5, "unless_waiting": True, "next": "2023-11-14T22:13:21.500Z"}
    assert await door.ask("GET /-/schedules/nightly") == (200, shown | {"message": message})
    assert await door.ask("GET /-/schedules") == (200, {"schedules": [shown], "next": None})
    assert (await door.ask("DELETE /-/schedules/nightly"))[0] == 200
    for line in ("GET /-/schedules/nightly", "DELETE /-/schedules/nightly"):
        assert (await door.ask(line))[0] == 404
    assert await door.ask("GET /-/schedules") == (200, {"schedules": [], "next": None})


async def test_it_fires(autojump_clock: MockClock, door: Door) -> None:
    await door.ask("PUT /-/schedules/s", EVERY)
    await trio.sleep(61)
    message = await door.broker.take("q")
    assert message is not None
    status, said = await door.ask("GET /-/schedules/s")
    assert (status, said["last"], said["next"]) == (200, "2023-11-14T22:14:20Z", "2023-11-14T22:15:20Z")
    await door.broker.delete_queue("q")
    await trio.sleep(60)
    reply = await door.endpoints.handle(Request("GET", b"/-/metrics", b"", {}, b"", 0))
    assert isinstance(reply.body, bytes)
    told = [line for line in reply.body.decode().splitlines() if line.startswith("mq_schedule")]
    counts = {"published": 1.0, "skipped": 0.0, "failed": 1.0}
    assert told == ["mq_schedules 1.0"] + [
        f'mq_schedule_firings_total{{outcome="{fate}"}} {count}' for fate, count in counts.items()
    ]
    assert 'queue "q" does not exist' in (await door.ask("GET /-/schedules/s"))[1]["error"]


@for_each(
    "wanted, why",
    [
        ({}, 'either "cron"'),
        ({**EVERY, "cron": "0 3 * * *"}, 'either "cron"'),
        ({**EVERY, "zone": "UTC"}, 'only supported together with "cron"'),
        ({**EVERY, "every": 0.5}, "every must be a duration from 1s"),
        ({**EVERY, "every": True}, "every must be"),
        ({**EVERY, "every": 1e300}, "every must be"),
        ({**EVERY, "evry": 5}, "unknown key"),
        ({**EVERY, "queue": None}, "queue must be a queue's name"),
        ({**EVERY, "queue": ["q"]}, "queue must be a queue's name"),
        ({**EVERY, "message": "hello"}, '"message" must be an object'),
        ({**EVERY, "message": {}}, '"body" (text)'),
        ({**EVERY, "message": {"body": "x", "key": "k"}}, 'must not contain "key"'),
        ({**EVERY, "message": {"body": "x", "at": "2030-01-01T00:00:00Z"}}, 'must not contain "at"'),
        ({**EVERY, "message": {"body": "x", "bdy": "k"}}, "unknown key"),
        ({**EVERY, "unless_waiting": "yes"}, "unless_waiting must be true or false"),
        ({**NIGHTLY, "cron": "0 25 * * *"}, 'invalid cron expression "0 25 * * *": bad hour'),
        ({**NIGHTLY, "cron": "@daily"}, "Use five fields"),
        ({**NIGHTLY, "cron": 5}, "cron must be a cron expression"),
        ({**NIGHTLY, "cron": "* " * 200}, "cron must be a cron expression"),
        ({**NIGHTLY, "cron": "0 0 */31 * MON#5"}, "in the next fifty years"),
        ({**NIGHTLY, "zone": "Mars"}, "unknown time zone"),
        ({**NIGHTLY, "zone": "\ud800"}, "unknown time zone"),
    ],
)
async def test_what_makes_no_sense_is_refused(door: Door, wanted: dict[str, Any], why: str) -> None:
    status, said = await door.ask("PUT /-/schedules/s", wanted)
    assert (status, why in said["detail"]) == (400, True), said
    assert (await door.ask("GET /-/schedules/s"))[0] == 404


@pytest.mark.parametrize("name", ["-", "a%20b", "%C3%BC", "x" * 101, "a%2Fb", "%00", "..", "*"])
async def test_a_name_is_as_a_queues(door: Door, name: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        status, said = await door.ask(f"{method} /-/schedules/{name}", EVERY if method == "PUT" else None)
        assert (status, "invalid schedule name" in said["detail"]) == (400, True)


async def test_a_queue_that_is_not_there_and_a_long_body(door: Door) -> None:
    assert (await door.ask("PUT /-/schedules/s", {**EVERY, "queue": "no"}))[0] == 404
    assert (await door.ask("PUT /-/schedules/s", {**EVERY, "message": {"body": "x" * 70_000}}))[0] == 413


async def test_the_list_has_pages(door: Door) -> None:
    for number in range(5):
        await door.ask(f"PUT /-/schedules/s{number}", EVERY)
    found, after = [], ""
    while after is not None:
        _, page = await door.ask(f"GET /-/schedules?max=2{f'&after={after}' if after else ''}")
        found += [schedule["name"] for schedule in page["schedules"]]
        after = page["next"]
    assert found == [f"s{number}" for number in range(5)]


async def test_rights(door: Door) -> None:
    """To configure the name, and to publish to the queue; nobody else finds out what there is."""
    maker = User("maker", {Right.CONFIGURE: ("team-*",), Right.PUBLISH: ("q",)})
    other = User("other", {Right.CONFIGURE: ("other-*", "q"), Right.CONSUME: ("*",)})
    assert (await door.ask("PUT /-/schedules/team-a", EVERY, maker))[0] == 201
    assert (await door.ask("PUT /-/schedules/mine", EVERY, maker))[0] == 403
    status, said = await door.ask("PUT /-/schedules/other-a", EVERY, other)
    assert (status, said["detail"]) == (403, "this requires the right to publish on queue q")
    for name in ("team-a", "team-none"):
        for line in (f"PUT /-/schedules/{name}", f"GET /-/schedules/{name}", f"DELETE /-/schedules/{name}"):
            status, said = await door.ask(line, EVERY if line.startswith("PUT") else None, other)
            assert (status, said["detail"]) == (403, f"this requires the right to configure on schedule {name}")
    assert (await door.ask("GET /-/schedules", user=other))[1]["schedules"] == []
    assert [each["name"] for each in (await door.ask("GET /-/schedules", user=maker))[1]["schedules"]] == ["team-a"]
    assert (await door.ask("DELETE /-/schedules/team-a", user=maker))[0] == 200


async def test_where_none_are_kept_that_is_said() -> None:
    async with open_broker("memory:") as broker:
        await broker.create_queue("q")
        door = Door(broker, refusal="not with peers")
        assert await door.ask("PUT /-/schedules/s", EVERY) == (
            409,
            {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "not with peers"},
        )


async def test_the_audit_log_has_them(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mq.audit"):
        for _ in range(2):
            await door.ask("PUT /-/schedules/s", EVERY)
        await door.ask("DELETE /-/schedules/s")
    lines = [record.getMessage() for record in caplog.records if record.name == "mq.audit"]
    assert [line.partition(" ")[0] for line in lines] == [
        f"event=schedule-{what}" for what in ("created", "changed", "deleted")
    ]
    assert all('schedule="s"' in line for line in lines)


# Limits of a user

ANNA: Final = User("anna", {Right.CONFIGURE: ("*",), Right.PUBLISH: ("*",)})
BEN: Final = User("ben", ANNA.rights)


async def test_a_user_gets_409_for_one_schedule_too_many_and_others_do_not(door: Door) -> None:
    for number in range(SCHEDULES_PER_USER):
        assert (await door.ask(f"PUT /-/schedules/s{number}", NIGHTLY, ANNA))[0] == 201
    status, said = await door.ask("PUT /-/schedules/more", NIGHTLY, ANNA)
    assert status == 409
    assert "user anna already has 100 schedules, the maximum per user" in said["detail"]
    assert (await door.ask("PUT /-/schedules/s0", EVERY, ANNA))[0] == 200
    assert (await door.ask("PUT /-/schedules/more", NIGHTLY, BEN))[0] == 201


async def test_schedules_of_a_user_publish_no_more_than_their_rate(door: Door) -> None:
    every_second = {**EVERY, "every": 1}
    for number in range(int(MESSAGES_PER_SECOND)):
        assert (await door.ask(f"PUT /-/schedules/s{number}", every_second, ANNA))[0] == 201
    for value in (every_second, EVERY, NIGHTLY):
        status, said = await door.ask("PUT /-/schedules/more", value, ANNA)
        assert status == 409
        assert "messages per second" in said["detail"]
    assert (await door.ask("PUT /-/schedules/more", every_second, BEN))[0] == 201
    assert (await door.ask("PUT /-/schedules/s0", EVERY, ANNA))[0] == 200
    assert (await door.ask("PUT /-/schedules/mine", EVERY, ANNA))[0] == 201


async def test_a_schedule_counts_for_the_user_who_changed_it_last(door: Door) -> None:
    await door.ask("PUT /-/schedules/s", {**EVERY, "every": 1}, ANNA)
    await door.ask("PUT /-/schedules/s", {**EVERY, "every": 2}, BEN)
    assert door.scheduler.status("s").schedule.owner == "ben"


async def test_limits_of_zero_are_none() -> None:
    async with open_broker("memory:") as broker:
        await broker.create_queue("q")
        door = Door(broker, limits=ScheduleLimits(0, 0))
        for number in range(SCHEDULES_PER_USER + 1):
            assert (await door.ask(f"PUT /-/schedules/s{number}", {**EVERY, "every": 1}, ANNA))[0] == 201


async def test_owners_of_schedules_are_known_after_a_restart(door: Door) -> None:
    await door.ask("PUT /-/schedules/s", EVERY, ANNA)
    again = Scheduler(door.broker)
    await again.load()
    assert again.status("s").schedule.owner == "anna"


async def test_without_users_schedules_have_no_owner_and_no_limit_of_one(door: Door) -> None:
    for number in range(SCHEDULES_PER_USER + 1):
        assert (await door.ask(f"PUT /-/schedules/s{number}", {**EVERY, "every": 1}))[0] == 201
    assert "owner" not in door.scheduler.status("s0").schedule.record()
