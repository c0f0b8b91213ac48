"""Who may ask for what over HTTP. What the endpoints do then is a matter of theirs: here they only note that they were
asked, so that the table can be held whole before all of it is served."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mq.access import Right, UserDirectory, hashes
from mq.doors import logins as logins_module
from mq.doors.logins import Logins
from mq.errors import BodyIncomplete
from mq.web.authorizer import Authorizer, find_rule
from mq.web.endpoints import OPERATIONS, ROUTES, Endpoints
from mq.web.exchange import BodyTooSlow, Handler, Reply, Request, document
from mq.web.operations import ANY_RIGHT, KNOWN, NO_RIGHT
from mq.web.request_body import LARGEST_JSON_BYTES, LimitedBody
from tests.access.files import PASSWORD, TOKEN, users_in, write_users
from tests.cases import for_each
from tests.web.talking import BAD_NAMES, ask, detail

RIGHTS = {operation.line: operation.right for operation in OPERATIONS}
NAMED_QUEUES = {operation.line: operation.sends_to for operation in OPERATIONS if operation.sends_to}
HTTP_PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"
ROW = re.compile(r"^\| (?P<requests>`[A-Z]+ /[^|]*`) \| (?P<right>\w+) \| .+ \| .+ \|$", re.MULTILINE)

USERS = """
[users.publish]
tokens = ["sha256:{0:064}"]
publish = ["q*"]
[users.consume]
tokens = ["sha256:{1:064}"]
consume = ["q*"]
[users.configure]
tokens = ["sha256:{2:064}"]
configure = ["q*"]
[users.administer]
tokens = ["sha256:{3:064}"]
administer = ["*"]
[users.monitor]
tokens = ["sha256:{5:064}"]
monitor = ["*"]
[users.pause]
tokens = ["sha256:{6:064}"]
pause = ["q*"]
[users.most]
publish = ["*"]
consume = ["*"]
configure = ["*"]
[users.nothing]
tokens = ["sha256:{4:064}"]
[users.alice]
password = "PASSWORD"
tokens = ["TOKEN"]
publish = ["q", "dead"]
consume = ["q"]
configure = ["q", "r"]
"""


class Behind(Handler):
    """What stands behind the gate: notes what reaches it."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.bodies: list[bytes] = []

    async def handle(self, request: Request) -> Reply:
        self.asked.append(request)
        self.bodies.append(await LimitedBody(request, 1 << 30).read())
        return document(200, {"there": True})


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def access(tmp_path: Path) -> UserDirectory:
    return UserDirectory(write_users(tmp_path / "users.toml", USERS.format(*range(7))))


@pytest.fixture
def gate(behind: Behind, access: UserDirectory) -> Authorizer:
    return Authorizer(behind, Logins(access))


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(name: str, secret: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()}


@pytest.fixture
def as_user(gate: Authorizer, access: UserDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Asks as a user of the file, whoever that is."""

    async def ask_as(name: str, line: str, *chunks: bytes) -> Reply:
        user = users_in(tmp_path / "users.toml")[name]
        monkeypatch.setattr(access, "by_token", lambda token: user)
        method, _, path = line.partition(" ")
        return await ask(gate, method, path, *chunks, headers=bearer())

    return ask_as


def path_of(line: str) -> str:
    return (
        line.replace("QUEUE", "q1")
        .replace("CONSUMER", "c")
        .replace("JOB", "j")
        .replace("SCHEDULE", "s")
        .replace("ACCOUNT", "u")
        .replace("ID", "4ad814ab-213e-11e3-a9a3-0025904f6e08")
    )


# The table


def test_the_table_is_the_one_in_the_docs() -> None:
    rows = [
        (request, row["right"])
        for row in ROW.finditer(HTTP_PAGE.read_text())
        for request in re.findall(r"`([A-Z]+ /[^`]*)`", row["requests"])
    ]
    assert dict(rows) == {line: str(right) for line, right in RIGHTS.items()}
    assert len(rows) == len(RIGHTS)


def test_no_route_goes_without_a_line_in_the_table() -> None:
    for route in ROUTES:
        for method in route.methods:
            segments = ["x" if segment is None else segment for segment in route.path]
            assert find_rule(method, segments).operation, f"{method} {route.path}"


def test_every_line_is_found_by_a_request_of_its_own() -> None:
    for line in RIGHTS:
        method, _, path = path_of(line).partition(" ")
        operation = find_rule(method, path[1:].split("/")).operation
        assert operation is not None
        assert operation.line == line


@for_each("line", sorted(RIGHTS.keys() - {"POST /-/session"}))  # tests/web/test_login_sessions.py
async def test_a_line_lets_in_whom_it_names_and_nobody_else(
    as_user, gate: Authorizer, behind: Behind, line: str
) -> None:
    request, right = path_of(line), RIGHTS[line]
    allowed = {
        NO_RIGHT: {"", "nothing", *Right},
        KNOWN: {"nothing", *Right},
        ANY_RIGHT: set(Right),
        Right.ADMINISTER: {"administer"},
    }.get(right, {right, "administer"})
    method, _, path = request.partition(" ")
    assert (await ask(gate, method, path)).status == (200 if "" in allowed else 401)
    for name in ("nothing", *Right):
        asked = len(behind.asked)
        reply = await as_user(name, request)
        assert reply.status == (200 if name in allowed else 403), name
        assert len(behind.asked) - asked == (reply.status == 200)


@for_each("line", [line for line in RIGHTS if "QUEUE" in line])
async def test_a_right_on_one_queue_is_none_on_another(as_user, behind: Behind, line: str) -> None:
    for name in ("publish", "consume", "configure"):
        assert (await as_user(name, path_of(line).replace("q1", "other"))).status == 403
    assert behind.asked == []


@for_each(
    "request_",
    [
        "PUT /",
        "GET //messages",
        "GET /q/",
        "GET /q/nonesuch",
        "GET /q/messages/id/more",
        "GET /-",
        "PUT /-",
        "GET /-/messages",
        "GET /-/",
        "GET /-/nonesuch",
        "GET /-/live/",
        "POST /-/live",
        "GET /%2d/nonesuch",
        "OPTIONS *",
        "OPTIONS /q",
        "DELETE /q/messages",
        "HEAD /q/nonesuch",
        "GET q/messages",
    ],
)
async def test_what_is_not_in_the_table_is_for_who_may_administer(as_user, behind: Behind, request_: str) -> None:
    behind.asked.clear()
    for name in ("nothing", "publish", "consume", "configure", "most"):
        assert (await as_user(name, request_)).status == 403
    assert behind.asked == []
    assert (await as_user("administer", request_)).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"paused": true}', 200),
        (b'{"publish_paused": false, "paused": null}', 200),
        (b'{"paused": true, "ttl": 1}', 403),
        (b'{"dead_letter_queue": "q2"}', 403),
        (b"", 403),
        (b"{}", 403),
        (b'["paused"]', 400),
        (b"paused", 400),
    ],
)
async def test_the_right_to_pause_does_for_no_other_setting(as_user, behind: Behind, body: bytes, status: int) -> None:
    assert (await as_user("pause", "PATCH /q1", body)).status == status
    assert behind.bodies == ([json.dumps(json.loads(body)).encode()] if status == 200 else [])
    assert (await as_user("pause", "PATCH /other", b'{"paused": true}')).status == 403
    assert (await as_user("configure", "PATCH /q1", b'{"paused": true}')).status == 200


async def test_head_needs_what_get_needs(as_user) -> None:
    assert (await as_user("consume", "HEAD /q1/peek")).status == 200
    refused = await as_user("publish", "HEAD /q1/peek")
    assert (refused.status, refused.body) == (403, b"")


async def test_who_may_not_does_not_learn_what_is_there(endpoints: Endpoints, access: UserDirectory) -> None:
    gate = Authorizer(endpoints, Logins(access))
    lines = [line for line in RIGHTS if line.startswith(("PUT", "GET", "POST", "DELETE", "PATCH")) and "QUEUE" in line]
    before = [await ask(gate, *path_of(line).replace("q1", "secret").split(" "), headers=bearer()) for line in lines]
    assert (await ask(endpoints, "PUT", "/secret")).status == 201
    await ask(endpoints, "POST", "/secret/messages", b"x")
    after = [await ask(gate, *path_of(line).replace("q1", "secret").split(" "), headers=bearer()) for line in lines]
    assert before == after
    assert {reply.status for reply in after} == {403}


# Paths


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/q1/messages", b"/q1/messages"),
        ("/%71%31/%6descapes", b"/q1/mescapes"),
        ("http://mq/q1/messages", b"/q1/messages"),
        ("HTTPS://mq:80/q1", b"/q1"),
        ("/q1%2fmessages", b"/q1%2Fmessages"),
        ("/a%252fb", b"/a%252fb"),
        ("/../q1", b"/../q1"),
        ("//q1", b"//q1"),
        ("/%ff", b"/%FF"),
    ],
)
async def test_the_endpoints_see_the_path_that_was_judged(as_user, behind: Behind, path: str, seen: bytes) -> None:
    await as_user("administer", f"GET {path}")
    assert behind.asked[0].path == seen


@pytest.mark.parametrize("name", [*BAD_NAMES, "q1", "a.b@c", "%71"])
async def test_for_who_may_everything_nothing_looks_different(
    endpoints: Endpoints, access: UserDirectory, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss = users_in(tmp_path / "users.toml")["administer"]
    monkeypatch.setattr(access, "by_token", lambda token: boss)
    gate = Authorizer(endpoints, Logins(access))
    await ask(endpoints, "PUT", f"/{name}")
    for method, rest in (("GET", ""), ("PUT", ""), ("GET", "/messages"), ("POST", "/messages"), ("GET", "/nonesuch")):
        bare = await ask(endpoints, method, f"/{name}{rest}")
        assert (await ask(gate, method, f"/{name}{rest}", headers=bearer())).status == bare.status


# Who is it


@pytest.mark.parametrize(
    "headers",
    [
        bearer(),
        {"authorization": f"bearer   {TOKEN} "},
        basic("alice", PASSWORD),
        basic("alice", TOKEN),
        {"authorization": basic("alice", PASSWORD)["authorization"].replace("Basic", "BASIC")},
    ],
)
async def test_the_ways_to_say_who_one_is(gate: Authorizer, headers: dict[str, str]) -> None:
    assert (await ask(gate, "GET", "/q", headers=headers)).status == 200


STRANGERS = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": f"Digest {TOKEN}"},
    {"authorization": TOKEN},
    bearer("mq_" + "x" * 43),
    bearer(PASSWORD),
    {"authorization": "Basic"},
    {"authorization": "Basic !!!"},
    {"authorization": "Basic /////w=="},
    basic("alice", ""),
    basic("alice", "wrong"),
    basic("nobody", PASSWORD),
    basic("nobody", TOKEN),
    basic("publish", TOKEN),
    basic("nothing", PASSWORD),
    basic("", ""),
]


async def test_strangers_all_get_the_same_answer(gate: Authorizer, behind: Behind) -> None:
    replies = [
        await ask(gate, "GET", "/q", headers=headers, address=f"192.0.2.{number}")
        for number, headers in enumerate(STRANGERS)
    ]
    assert replies == [replies[0]] * len(replies)
    assert replies[0].status == 401
    assert "token" in detail(replies[0])
    schemes = [value.partition(" ")[0] for name, value in replies[0].headers if name == "www-authenticate"]
    assert schemes == ["Bearer", "Basic"]
    assert behind.asked == []


async def test_an_unknown_name_is_worked_for_as_hard_as_a_wrong_password(
    gate: Authorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    scrypt = hashes.hashlib.scrypt
    monkeypatch.setattr(hashes.hashlib, "scrypt", lambda *_, **more: computed.append(more["n"]) or scrypt(*_, **more))
    for headers in (basic("alice", "wrong"), basic("nobody", "wrong"), basic("nothing", "wrong")):
        await ask(gate, "GET", "/q", headers=headers)
    assert computed == [2, 2, 2]


async def test_who_finds_no_room_is_told_when_to_come_again(
    gate: Authorizer, access: UserDirectory, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """Real time: a thread waits."""
    may_end = trio.Event()
    monkeypatch.setattr(access, "verify", lambda name, password: trio.from_thread.run(may_end.wait))
    monkeypatch.setattr(logins_module, "MOST_WAITING", 3)
    replies: list[Reply] = []

    async def log_in(number: int) -> None:
        headers = basic("alice", f"wrong {number}")
        replies.append(await ask(gate, "GET", "/q", headers=headers, address=f"192.0.2.{number}"))

    async with trio.open_nursery() as logins:
        for number in range(4):
            logins.start_soon(log_in, number)
        while len(gate._logins._waiting) < 3:
            await trio.sleep(0.001)
        refused = await ask(gate, "GET", "/q", headers=basic("nobody", "wrong"))
        assert refused.status == 503
        assert dict(refused.headers)["retry-after"] == "1"
        assert (await ask(gate, "GET", "/q", headers=bearer())).status == 200  # tokens wait for nobody
        may_end.set()
    assert [reply.status for reply in replies] == [401] * 4


async def test_who_was_wrong_is_told_when_to_come_again(gate: Authorizer) -> None:
    """Real time: a password is checked in a thread."""

    async def log_in(secret: str, address: str = "192.0.2.1") -> Reply:
        return await ask(gate, "GET", "/q", headers=basic("alice", secret), address=address)

    assert (await log_in("wrong")).status == 401
    refused = await log_in("another")
    assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "1")
    assert "too many failed logins for this user" in detail(refused)
    assert (await log_in(TOKEN)).status == 200
    assert (await log_in(PASSWORD, "192.0.2.2")).status == 200
    assert (await log_in(PASSWORD)).status == 200  # it was right a moment ago


async def test_a_user_who_is_removed_is_a_stranger_at_once(
    gate: Authorizer, access: UserDirectory, tmp_path: Path
) -> None:
    assert (await ask(gate, "GET", "/q", headers=basic("alice", PASSWORD))).status == 200
    write_users(tmp_path / "users.toml", "")
    access.reload()
    assert (await ask(gate, "GET", "/q", headers=basic("alice", PASSWORD))).status == 401
    assert (await ask(gate, "GET", "/q", headers=bearer())).status == 401


@pytest.mark.parametrize("headers", [bearer(), basic("alice", TOKEN)])
async def test_an_expired_token_says_so(behind: Behind, tmp_path: Path, headers: dict[str, str]) -> None:
    text = '[users.alice]\ntokens = ["TOKEN until 2013-09-21T00:00:00Z"]\npublish = ["q"]'
    gate = Authorizer(behind, Logins(UserDirectory(write_users(tmp_path / "users", text))))
    reply = await ask(gate, "GET", "/q", headers=headers)
    assert reply.status == 401
    assert "expired on 2013-09-21T00:00:00Z" in detail(reply)
    assert "www-authenticate" in dict(reply.headers)


# Queues that a body names


async def ask_json(gate: Authorizer, line: str, *chunks: bytes) -> Reply:
    method, _, path = line.replace("QUEUE", "q").partition(" ")
    return await ask(gate, method, path, *chunks, headers=bearer())


@pytest.mark.parametrize("line", NAMED_QUEUES)
async def test_a_queue_that_messages_are_sent_to_takes_the_right_to_publish_there(
    gate: Authorizer, behind: Behind, line: str
) -> None:
    key = NAMED_QUEUES[line]
    assert (await ask_json(gate, line, json.dumps({key: "dead"}).encode())).status == 200
    refused = await ask_json(gate, line, b'{"max": 3, "', key.encode(), b'": "oth', b'er"}')
    assert refused.status == 403
    assert "publish" in detail(refused)
    assert '"other"' in detail(refused)
    assert len(behind.asked) == 1


@pytest.mark.parametrize("line", NAMED_QUEUES)
async def test_what_was_judged_is_what_is_handed_on(gate: Authorizer, behind: Behind, line: str) -> None:
    key = NAMED_QUEUES[line]
    for body in (
        f'{{"{key}": "other", "{key}": "dead"}}'.encode(),
        json.dumps({key: "dead"}).encode("utf-16"),
        f'{{"\\u{ord(key[0]):04x}{key[1:]}": "dead"}}'.encode(),
    ):
        assert (await ask_json(gate, line, body)).status == 200
        assert behind.bodies[-1] == json.dumps({key: "dead"}).encode()
        assert behind.asked[-1].content_length == len(behind.bodies[-1])


@for_each("line", NAMED_QUEUES)
@for_each("value", [7, 0, 1.5, True, False, ["other"], {"other": 1}, []])
async def test_what_only_becomes_a_name_behind_the_gate_is_refused(
    gate: Authorizer, behind: Behind, line: str, value: object
) -> None:
    reply = await ask_json(gate, line, json.dumps({NAMED_QUEUES[line]: value}).encode())
    assert reply.status == 400
    assert NAMED_QUEUES[line] in detail(reply)
    assert behind.asked == []


async def test_nobody_sends_messages_where_they_may_not_publish(endpoints: Endpoints, access: UserDirectory) -> None:
    gate = Authorizer(endpoints, Logins(access))
    for queue in ("q", "r", "dead", "7"):
        await ask(endpoints, "PUT", f"/{queue}")
    await ask(endpoints, "POST", "/q/messages", b"x")
    assert (await ask_json(gate, "POST /QUEUE/redrive", b'{"to": "7"}')).status == 403
    assert (await ask_json(gate, "POST /QUEUE/redrive", b'{"to": 7}')).status == 400
    assert (await ask_json(gate, "PATCH /QUEUE", b'{"dead_letter_queue": "7", "max_receives": 1}')).status == 403
    assert (await ask_json(gate, "PATCH /QUEUE", b'{"dead_letter_queue": "dead", "max_receives": 1}')).status == 200
    assert (await ask_json(gate, "POST /QUEUE/redrive", b'{"to": "dead"}')).status == 200


async def test_nobody_sends_messages_away_that_they_may_not_consume(
    endpoints: Endpoints, access: UserDirectory
) -> None:
    gate = Authorizer(endpoints, Logins(access))
    for queue in ("r", "dead"):
        await ask(endpoints, "PUT", f"/{queue}")
    for line, body in (
        ("POST /r/redrive", b'{"to": "dead"}'),
        ("PATCH /r", b'{"dead_letter_queue": "dead", "max_messages": 0}'),
    ):
        refused = await ask_json(gate, line, body)
        assert refused.status == 403
        assert 'the right to consume on queue "r"' in detail(refused)
    assert (await ask_json(gate, "POST /r/redrive", b"{}")).status == 200
    assert (await ask_json(gate, "PATCH /r", b'{"dead_letter_queue": null, "max_messages": 0}')).status == 200


@pytest.mark.parametrize("line", NAMED_QUEUES)
@pytest.mark.parametrize(
    ("body", "understood"),
    [
        (b"", b"{}"),
        (b"{}", b"{}"),
        (b'{"to":null, "dead_letter_queue":null}', b'{"to": null, "dead_letter_queue": null}'),
        (b'{"x": [null, 1.5]}', b'{"x": [null, 1.5]}'),
    ],
)
async def test_other_bodies_go_through_as_they_were_understood(
    gate: Authorizer, behind: Behind, line: str, body: bytes, understood: bytes
) -> None:
    assert (await ask_json(gate, line, body)).status == 200
    assert behind.bodies == [understood]


@for_each("line", NAMED_QUEUES)
@for_each(
    "body, status",
    [
        (b"[1]", 400),
        (b"7", 400),
        (b"null", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b"9" * 5000, 400),
        (b" " * (LARGEST_JSON_BYTES + 1), 413),
    ],
)
async def test_what_cannot_be_judged_is_refused(
    gate: Authorizer, behind: Behind, line: str, body: bytes, status: int
) -> None:
    reply = await ask_json(gate, line, body)
    assert reply.status == status
    assert detail(reply)
    assert behind.asked == []


@pytest.mark.parametrize(("error", "status"), [(BodyIncomplete("cut"), 400), (BodyTooSlow("slow"), 408)])
async def test_a_body_that_does_not_come_is_told(gate: Authorizer, error: Exception, status: int) -> None:
    class Failing:
        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            raise error

    reply = await gate.handle(Request("PATCH", b"/q", b"", bearer(), Failing(), None))
    assert (reply.status, reply.is_last) == (status, True)
    assert detail(reply) == str(error)


async def test_the_body_of_a_message_is_not_looked_at(gate: Authorizer, behind: Behind) -> None:
    assert (await ask_json(gate, "POST /QUEUE/messages", b'{"to": "other"')).status == 200
    assert behind.bodies == [b'{"to": "other"']


async def test_a_refusal_reads_no_body(gate: Authorizer) -> None:
    class Untouched:
        def __aiter__(self) -> AsyncIterator[bytes]:
            raise AssertionError

    reply = await gate.handle(Request("PATCH", b"/q", b"", {}, Untouched(), None))
    assert reply.status == 401
