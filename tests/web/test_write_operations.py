"""Write jobs over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mq.access import User
from mq.broker import Broker, write_jobs
from mq.doors.budget import Budget, Use
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.access.files import users_in, write_users
from tests.web.talking import detail, stream


@pytest.fixture
async def q(endpoints: Endpoints) -> str:
    await ask(endpoints, "PUT", "/q")
    return "/q/writes/job"


async def ask(endpoints: Endpoints, method: str, target: str, body: bytes = b"") -> Reply:
    path, _, query = target.partition("?")
    return await endpoints.handle(Request(method, path.encode(), query.encode(), {}, stream(body), len(body)))


def lines(*bodies: str) -> bytes:
    return b"".join(json.dumps({"body": body}).encode() + b"\n" for body in bodies)


def told(reply: Any) -> list[int]:
    return [json.loads(line)["status"] for line in reply.body.splitlines()]


async def test_rows_come_when_their_job_is_committed(endpoints: Endpoints, q: str) -> None:
    reply = await ask(endpoints, "POST", f"{q}?part=0&number=0", lines("a", "b"))
    assert (reply.status, told(reply)) == (200, [202, 202])
    assert (await ask(endpoints, "GET", "/q/messages")).status == 204
    shown = json.loads((await ask(endpoints, "GET", "/q/writes")).body)
    assert shown == {"writes": [{"job": "job", "state": "open", "queues": ["q"], "rows": 2, "duplicates": None}]}
    for _ in range(2):
        reply = await ask(endpoints, "PUT", q, b'{"parts": ["0"], "rows": 2}')
        assert json.loads(reply.body) == {"job": "job", "state": "done", "queues": ["q"], "rows": 2, "duplicates": 0}
    assert (await ask(endpoints, "GET", "/q/messages")).body == b"a"
    assert (await ask(endpoints, "DELETE", q)).status == 200


async def test_what_is_wrong_with_a_row_is_said_in_its_line(endpoints: Endpoints, q: str) -> None:
    body = lines("a") + b'{"body": 1}\n' + b'{"body": "b", "group": "g"}\n'
    assert told(await ask(endpoints, "POST", f"{q}?part=0&number=0", body)) == [202, 400, 409]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parts": "0", "rows": 1}', b'{"parts": ["0"], "rows": true}'])
async def test_a_commit_says_what_counts(endpoints: Endpoints, q: str, body: bytes) -> None:
    reply = await ask(endpoints, "PUT", q, body)
    assert reply.status == 400
    assert "the request body must be" in detail(reply)


async def test_an_aborted_job_takes_nothing_more(endpoints: Endpoints, q: str) -> None:
    await ask(endpoints, "POST", f"{q}?part=0&number=0", lines("a"))
    assert (await ask(endpoints, "DELETE", q)).status == 200
    assert (await ask(endpoints, "POST", f"{q}?part=0&number=1", lines("b"))).status == 409
    assert (await ask(endpoints, "PUT", q, b'{"parts": ["0"], "rows": 1}')).status == 409


@pytest.mark.parametrize("query", ["part=0", "number=0", "part=a/b&number=0"])
async def test_a_request_names_its_part_and_its_number(endpoints: Endpoints, q: str, query: str) -> None:
    assert (await ask(endpoints, "POST", f"{q}?{query}", lines("a"))).status == 400


async def test_a_job_with_rows_for_a_queue_of_others_is_not_ones_own(
    endpoints: Endpoints, q: str, tmp_path: Path
) -> None:
    """Who may publish to one of its queues neither commits nor aborts it."""
    users = write_users(tmp_path / "users.toml", '[users.some]\npassword = "PASSWORD"\npublish = ["q"]\n')
    some = users_in(users)["some"]
    await ask(endpoints, "PUT", "/r")
    for queue in "qr":
        await ask(endpoints, "POST", f"/{queue}/writes/job?part=0&number={'qr'.index(queue)}", lines(queue))
    for method, body in (("PUT", b'{"parts": ["0"], "rows": 2}'), ("DELETE", b"")):
        request = Request(method, b"/q/writes/job", b"", {}, stream(body), len(body))._replace(user=some)
        reply = await endpoints.handle(request)
        assert reply.status == 403
        assert "another user" in detail(reply)
    assert (await ask(endpoints, "PUT", q, b'{"parts": ["0"], "rows": 2}')).status == 200


async def test_no_queue_no_job(endpoints: Endpoints) -> None:
    for method, body in (("POST", lines("a")), ("PUT", b'{"parts": [], "rows": 0}'), ("DELETE", b"")):
        target = "/nowhere/writes/job" + ("?part=0&number=0" if method == "POST" else "")
        assert (await ask(endpoints, method, target, body)).status == 404


# Whose a job is

USERS = """
[users.owner]
password = "PASSWORD"
publish = ["q", "r"]
[users.other]
password = "PASSWORD"
publish = ["*"]
[users.boss]
password = "PASSWORD"
administer = ["*"]
"""


@pytest.fixture
def users(tmp_path: Path) -> dict[str, User]:
    return users_in(write_users(tmp_path / "users.toml", USERS))


async def ask_as(user: User, endpoints: Endpoints, method: str, target: str, body: bytes = b"") -> Reply:
    path, _, query = target.partition("?")
    request = Request(method, path.encode(), query.encode(), {}, stream(body), len(body))
    return await endpoints.handle(request._replace(user=user))


COMMIT = b'{"parts": ["0"], "rows": 1}'


async def test_another_publisher_neither_joins_commits_nor_aborts_a_job(
    endpoints: Endpoints, q: str, users: dict[str, User]
) -> None:
    await ask(endpoints, "PUT", "/r")
    await ask_as(users["owner"], endpoints, "POST", f"{q}?part=0&number=0", lines("a"))
    for method, target, body in (
        ("POST", f"{q}?part=1&number=0", lines("b")),
        ("POST", "/r/writes/job?part=0&number=1", lines("b")),
        ("PUT", q, COMMIT),
        ("DELETE", q, b""),
    ):
        reply = await ask_as(users["other"], endpoints, method, target, body)
        assert reply.status == 403
        assert "another user" in detail(reply)
    assert (await ask_as(users["owner"], endpoints, "PUT", q, COMMIT)).status == 200


async def test_an_administrator_joins_a_job_and_its_owner_still_ends_it(
    endpoints: Endpoints, q: str, users: dict[str, User]
) -> None:
    """Rows of an administrator for a queue that the owner may not use do not lock the owner out."""
    await ask(endpoints, "PUT", "/hidden")
    await ask_as(users["owner"], endpoints, "POST", f"{q}?part=0&number=0", lines("a"))
    reply = await ask_as(users["boss"], endpoints, "POST", "/hidden/writes/job?part=1&number=0", lines("b"))
    assert told(reply) == [202]
    assert (await ask_as(users["owner"], endpoints, "PUT", q, COMMIT)).status == 200


async def test_an_administrator_aborts_a_job(endpoints: Endpoints, q: str, users: dict[str, User]) -> None:
    await ask_as(users["owner"], endpoints, "POST", f"{q}?part=0&number=0", lines("a"))
    assert (await ask_as(users["boss"], endpoints, "DELETE", q)).status == 200
    assert (await ask_as(users["owner"], endpoints, "PUT", q, COMMIT)).status == 409


async def test_one_user_leaves_others_room_for_their_jobs(
    endpoints: Endpoints, q: str, users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_jobs, "JOBS_PER_USER", 2)
    for number, status in enumerate((200, 200, 409)):
        target = f"/q/writes/job{number}?part=0&number=0"
        assert (await ask_as(users["other"], endpoints, "POST", target, lines("a"))).status == status
    assert (await ask_as(users["owner"], endpoints, "POST", "/q/writes/mine?part=0&number=0", lines("a"))).status == 200


async def test_a_number_of_a_part_is_refused_for_a_second_queue(endpoints: Endpoints, q: str) -> None:
    await ask(endpoints, "PUT", "/r")
    await ask(endpoints, "POST", f"{q}?part=0&number=0", lines("a"))
    reply = await ask(endpoints, "POST", "/r/writes/job?part=0&number=0", lines("a"))
    assert reply.status == 409
    assert "Use a different number" in detail(reply)


async def test_a_number_of_a_part_is_refused_for_other_rows(endpoints: Endpoints, q: str) -> None:
    await ask(endpoints, "POST", f"{q}?part=0&number=0", lines("a"))
    for body in (lines("a", "b"), lines("ab")):
        assert (await ask(endpoints, "POST", f"{q}?part=0&number=0", body)).status == 409
    assert told(await ask(endpoints, "POST", f"{q}?part=0&number=0", lines("a"))) == [202]


async def test_rows_beyond_the_disk_of_their_job_are_refused(broker: Broker, endpoints: Endpoints, q: str) -> None:
    budget = Budget(disk=4 << 20)
    broker.writes.count_in(budget.write_job)
    row = lines("x" * 600_000)
    assert told(await ask(endpoints, "POST", f"{q}?part=0&number=0", row)) == [202]
    reply = await ask(endpoints, "POST", f"{q}?part=0&number=1", row)
    assert (reply.status, budget.refused[Use.ROWS]) == (413, 0)
    assert "--staging" in detail(reply)
    for number in range(1, 4):
        target = f"/q/writes/job-{number}?part=0&number=0"
        assert told(await ask(endpoints, "POST", target, row)) == [202]
    reply = await ask(endpoints, "POST", "/q/writes/another?part=0&number=0", lines("x" * 1_000_000))
    assert (reply.status, dict(reply.headers)["retry-after"], budget.refused[Use.ROWS]) == (503, "10", 1)
    assert (await ask(endpoints, "DELETE", q)).status == 200
    assert told(await ask(endpoints, "POST", "/q/writes/another?part=0&number=0", row)) == [202]
