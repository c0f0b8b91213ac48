"""Logging in at the page: a cookie, a second secret for what changes something, and all the ways a session ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mq.access import Right, User, UserDirectory
from mq.doors.logins import Logins
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Handler, Reply, Request
from mq.web.login_sessions import LASTS_SECONDS, MOST_SESSIONS, SESSIONS_PER_USER, Sessions
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, users_in, write_users
from tests.web.talking import ask, detail

USERS = """
[users.anna]
password = "PASSWORD"
tokens = ["TOKEN"]
publish = ["q"]
consume = ["q"]
[users.ben]
password = "PASSWORD"
tokens = ["OTHER_TOKEN"]
administer = ["*"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


@pytest.fixture
def access(path: Path) -> UserDirectory:
    return UserDirectory(write_users(path, USERS), wall_clock=lambda: 0.0)


@pytest.fixture
def gate(endpoints: Endpoints, access: UserDirectory) -> Authorizer:
    return Authorizer(endpoints, Logins(access))


def replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


async def log_in(
    gate: Handler, name: str = "anna", secret: str = PASSWORD, headers: Mapping[str, str] | None = None
) -> Reply:
    given = json.dumps({"name": name, "secret": secret}).encode()
    return await ask(gate, "POST", "/-/session", given, headers=headers)


def said(reply: Reply) -> Any:
    assert isinstance(reply.body, bytes)
    return json.loads(reply.body)


def cookie_in(reply: Reply) -> str:
    return dict(reply.headers)["set-cookie"]


async def cookies(gate: Handler, **more: str) -> dict[str, str]:
    """The headers of somebody who has just logged in."""
    reply = await log_in(gate, **more)
    assert reply.status == 200
    return {"cookie": cookie_in(reply).partition(";")[0], "x-csrf-token": said(reply)["csrf"]}


async def test_a_login_gives_a_cookie_that_no_script_reads(gate: Authorizer) -> None:
    reply = await log_in(gate, headers={"host": "localhost:8080"})
    assert reply.status == 200
    assert said(reply)["user"] == "anna"
    nothing = {right.value: [] for right in Right}
    assert said(reply)["rights"] == nothing | {"publish": ["q"], "consume": ["q"]}
    name_and_secret, *guards = cookie_in(reply).split("; ")
    assert name_and_secret.startswith("mq-session-8080=")
    assert set(guards) == {f"Max-Age={LASTS_SECONDS}", "Path=/", "HttpOnly", "SameSite=Strict"}
    assert dict(reply.headers)["cache-control"] == "no-store"


async def test_under_tls_the_cookie_goes_over_tls_only(endpoints: Endpoints, access: UserDirectory) -> None:
    gate = Authorizer(endpoints, Logins(access))
    for scheme, is_secure in (("https", True), ("http", False)):
        given = json.dumps({"name": "anna", "secret": PASSWORD}).encode()
        request = Request("POST", b"/-/session", b"", {"host": "mq.example"}, given, len(given), scheme=scheme)
        reply = await gate.handle(request)
        assert ("Secure" in cookie_in(reply).split("; ")) is is_secure
        assert cookie_in(reply).startswith(f"mq-session-{443 if is_secure else 80}=")


async def test_it_may_what_its_user_may(gate: Authorizer, endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    await ask(endpoints, "PUT", "/secret")
    headers = await cookies(gate)
    assert (await ask(gate, "POST", "/q/messages", b"x", headers=headers)).status == 201
    assert (await ask(gate, "POST", "/secret/messages", b"x", headers=headers)).status == 403
    reply = await ask(gate, "GET", "/-/events", headers=headers)
    assert isinstance(reply.body, bytes)
    assert json.loads(reply.body.removeprefix(b"data: "))["names"] == ["q"]


async def test_the_page_finds_its_second_secret_again(gate: Authorizer) -> None:
    headers = await cookies(gate)
    reply = await ask(gate, "GET", "/-/session", headers={"cookie": headers["cookie"]})
    assert said(reply)["csrf"] == headers["x-csrf-token"]


@pytest.mark.parametrize("token", [None, "", "x" * 43, "é"])
async def test_nothing_is_changed_without_the_second_secret(
    gate: Authorizer, endpoints: Endpoints, token: str | None
) -> None:
    await ask(endpoints, "PUT", "/q")
    headers = await cookies(gate)
    del headers["x-csrf-token"]
    headers |= {} if token is None else {"x-csrf-token": token}
    for method, path in (("POST", "/q/messages"), ("DELETE", "/-/session"), ("PUT", "/q"), ("PATCH", "/q")):
        reply = await ask(gate, method, path, b"x", headers=headers)
        assert reply.status == 403
        assert "X-CSRF-Token" in detail(reply)
    assert (await ask(gate, "GET", "/q", headers=headers)).status == 200


async def test_a_fetch_takes_no_cookie_alone(gate: Authorizer, endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    await ask(endpoints, "POST", "/q/messages", b"x")
    headers = await cookies(gate)
    reply = await ask(gate, "GET", "/q/messages", headers={"cookie": headers["cookie"]})
    assert reply.status == 403
    assert "X-CSRF-Token" in detail(reply)
    assert (await ask(gate, "GET", "/q/messages", headers=headers)).body == b"x"


async def test_the_secret_of_another_session_will_not_do(gate: Authorizer) -> None:
    first, second = await cookies(gate), await cookies(gate)
    mixed = {"cookie": first["cookie"], "x-csrf-token": second["x-csrf-token"]}
    assert (await ask(gate, "DELETE", "/-/session", headers=mixed)).status == 403


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"name": "anna"}',
        b'{"name": "anna", "secret": 7}',
        b'{"name": "anna", "secret": "x", "more": 1}',
        b"not JSON",
        b"\xff",
    ],
)
async def test_a_login_that_makes_no_sense_is_400(gate: Authorizer, endpoints: Endpoints, given: bytes) -> None:
    assert (await ask(gate, "POST", "/-/session", given)).status == 400
    assert (await ask(endpoints, "POST", "/-/session", given)).status == 400


@pytest.mark.parametrize("name", ["anna", "nobody", "", "a b", "\0"])
async def test_a_wrong_secret_is_401_and_the_browser_asks_for_none(gate: Authorizer, name: str) -> None:
    reply = await log_in(gate, name, "wrong horse")
    assert reply.status == 401
    assert [value for key, value in reply.headers if key == "www-authenticate"] == ['Bearer realm="mq"']
    assert "set-cookie" not in dict(reply.headers)


async def test_who_guesses_waits_at_the_page_as_elsewhere(gate: Authorizer) -> None:
    assert (await log_in(gate, secret="wrong horse")).status == 401
    reply = await log_in(gate)
    assert reply.status == 503
    assert "retry-after" in dict(reply.headers)


async def test_a_stranger_at_the_page_gets_no_dialogue_of_the_browser(
    gate: Authorizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mq.audit")
    for headers in ({"x-csrf-token": ""}, {"accept": "text/event-stream"}, {"cookie": "mq-session=" + "x" * 43}):
        reply = await ask(gate, "GET", "/-/session", headers=headers)
        assert reply.status == 401
        assert "Basic" not in str(reply.headers)
    assert caplog.records == []  # to open the page is no failed login
    assert "Basic" in str((await ask(gate, "GET", "/-/session")).headers)
    assert len(caplog.records) == 1


# How a session ends


async def is_over(gate: Authorizer, headers: Mapping[str, str]) -> bool:
    reply = await ask(gate, "GET", "/-/session", headers=headers)
    assert reply.status in (200, 401)
    return reply.status == 401


async def test_by_logging_out(gate: Authorizer) -> None:
    headers = await cookies(gate)
    other = await cookies(gate)
    reply = await ask(gate, "DELETE", "/-/session", headers=headers)
    assert reply.status == 200
    assert "Max-Age=0" in cookie_in(reply)
    assert await is_over(gate, headers)
    assert not await is_over(gate, other)


async def test_by_time(gate: Authorizer, mock_clock: MockClock) -> None:
    headers = await cookies(gate)
    mock_clock.jump(LASTS_SECONDS - 1)
    assert not await is_over(gate, headers)
    mock_clock.jump(1)
    assert await is_over(gate, headers)


async def test_with_its_user(gate: Authorizer, access: UserDirectory, path: Path) -> None:
    anna, ben = await cookies(gate), await cookies(gate, name="ben")
    write_users(path, USERS.replace("anna", "carl"))
    access.reload()
    assert await is_over(gate, anna)
    assert await is_over(gate, ben)  # the same password, but with another salt: it was set anew


async def test_with_its_password_and_no_sooner(gate: Authorizer, access: UserDirectory, path: Path) -> None:
    headers = await cookies(gate)
    access.reload()
    assert not await is_over(gate, headers)
    replace(path, 'publish = ["q"]', "")
    access.reload()
    assert said(await ask(gate, "GET", "/-/session", headers=headers))["rights"]["publish"] == []
    write_users(path, USERS)
    access.reload()
    assert await is_over(gate, headers)


async def test_with_its_token(gate: Authorizer, access: UserDirectory, path: Path) -> None:
    headers = await cookies(gate, secret=TOKEN)
    write_users(path, USERS)  # other passwords: that is nothing to a token
    access.reload()
    assert not await is_over(gate, headers)
    write_users(path, USERS.replace('tokens = ["TOKEN"]', ""))
    access.reload()
    assert await is_over(gate, headers)


async def test_when_its_token_expires(endpoints: Endpoints, path: Path) -> None:
    now = 0.0
    write_users(path, USERS)
    replace(path, '"]\npublish', ' until 1970-01-02T00:00:00Z"]\npublish')
    gate = Authorizer(endpoints, Logins(UserDirectory(str(path), wall_clock=lambda: now)))
    headers = await cookies(gate, secret=TOKEN)
    assert not await is_over(gate, headers)
    now = 86_400.0
    assert await is_over(gate, headers)
    assert (await log_in(gate, secret=TOKEN)).status == 401


def users_of(path: Path, *names: str) -> list[User]:
    """Users who may do nothing, as their sessions know them."""
    found = users_in(write_users(path, "".join(f'[users.{name}]\npassword = "PASSWORD"\n' for name in names)))
    return [found[name] for name in names]


async def test_oldest_session_of_a_user_ends_when_the_user_has_too_many(access: UserDirectory) -> None:
    sessions = Sessions(access)
    user = access.by_token(OTHER_TOKEN)
    assert user is not None
    made = [sessions.begin(user, OTHER_TOKEN)[0] for _ in range(SESSIONS_PER_USER + 1)]
    assert [sessions.find(cookie) is not None for cookie in made] == [False] + [True] * SESSIONS_PER_USER
    await trio.lowlevel.checkpoint()


async def test_logins_of_one_user_end_no_session_of_another(access: UserDirectory) -> None:
    sessions = Sessions(access)
    boss, flood = access.by_token(OTHER_TOKEN), access.by_token(TOKEN)
    assert boss is not None
    assert flood is not None
    cookie, _ = sessions.begin(boss, OTHER_TOKEN)
    for _ in range(MOST_SESSIONS + 1):
        sessions.begin(flood, TOKEN)
    assert sessions.find(cookie) is not None
    await trio.lowlevel.checkpoint()


async def test_many_users_with_many_sessions_end_no_session_of_a_user_with_one(tmp_path: Path) -> None:
    boss, *crowd = users_of(tmp_path / "users.toml", "boss", *(f"u{number}" for number in range(100)))
    sessions = Sessions(UserDirectory(str(tmp_path / "users.toml")))
    cookie, _ = sessions.begin(boss, PASSWORD)
    for _ in range(SESSIONS_PER_USER):
        for user in crowd:
            sessions.begin(user, PASSWORD)
    assert sessions.find(cookie) is not None
    assert len(sessions) == MOST_SESSIONS
    await trio.lowlevel.checkpoint()


async def test_expired_sessions_make_room(access: UserDirectory, mock_clock: MockClock) -> None:
    sessions = Sessions(access)
    user = access.by_token(OTHER_TOKEN)
    assert user is not None
    for _ in range(SESSIONS_PER_USER):
        sessions.begin(user, OTHER_TOKEN)
    mock_clock.jump(LASTS_SECONDS)
    sessions.begin(user, OTHER_TOKEN)
    assert len(sessions) == 1
    await trio.lowlevel.checkpoint()


async def test_a_secret_in_the_header_counts_alone(gate: Authorizer) -> None:
    """Who gives a token is that token's user, whatever cookies came along; and a wrong one is nobody."""
    headers = await cookies(gate)
    with_token = {**headers, "authorization": f"Bearer {OTHER_TOKEN}"}
    assert said(await ask(gate, "GET", "/-/session", headers=with_token))["user"] == "ben"
    assert await is_over(gate, {**headers, "authorization": "Bearer nobody"})


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        "mq-session",
        "mq-session=",
        "mq-session=x",
        "other=" + "x" * 43,
        "mq-session=" + "x" * 44,
        "=;;,=,mq-session",
    ],
)
async def test_a_cookie_that_is_none_of_ours_is_nothing(gate: Authorizer, cookie: str) -> None:
    reply = await ask(gate, "GET", "/-/session", headers={"cookie": cookie})
    assert reply.status == 401


async def test_daemons_on_one_host_do_not_take_each_others_cookies(gate: Authorizer) -> None:
    reply = await log_in(gate, headers={"host": "localhost:8081"})
    pair = cookie_in(reply).partition(";")[0]
    assert (await ask(gate, "GET", "/-/session", headers={"cookie": pair, "host": "localhost:8081"})).status == 200
    assert (await ask(gate, "GET", "/-/session", headers={"cookie": pair, "host": "localhost:8080"})).status == 401
    among_others = {"cookie": f"a=b; {pair}; c=d", "host": "localhost:8081"}
    assert (await ask(gate, "GET", "/-/session", headers=among_others)).status == 200


async def test_without_users_everybody_is_in(endpoints: Endpoints) -> None:
    shown = said(await ask(endpoints, "GET", "/-/session"))
    assert (shown["user"], shown["csrf"], shown["rights"]["administer"]) == (None, None, ["*"])
