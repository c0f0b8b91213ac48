"""Users of the cluster: made at one node they are users at all, and removed at one they are refused at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mq.access import Right, UserDirectory
from mq.access.hashes import token_hash
from mq.cluster.shared_records import KNOWN_USER
from mq.errors import StorageFailed
from mq.storage.memory import MemoryStorage
from tests.access.files import OTHER_TOKEN, TOKEN, write_users
from tests.cluster.nodes import Host, three_nodes
from tests.record_hooks import hook_records

pytestmark = pytest.mark.slow  # each test runs three brokers

ROOT = '[users.root]\ntokens = ["TOKEN"]\nadminister = ["*"]\n'


def table(token: str = OTHER_TOKEN, **rights: list[str]) -> dict[str, Any]:
    return {"tokens": [token_hash(token)], **(rights or {"publish": ["orders.*"]})}


async def put(host: Host, name: str, value: Mapping[str, Any]) -> int:
    return (await host.http("PUT", f"/-/users/{name}", json.dumps(value).encode())).status


def may(host: Host, token: str = OTHER_TOKEN, queue: str = "orders.new") -> bool:
    """Whether the user of a token may publish there, at this node."""
    assert host.users is not None
    user = host.users.by_token(token)
    return user is not None and host.users.again(user) is not None and user.may(Right.PUBLISH, queue)


@pytest.fixture
def users_of(tmp_path: Path) -> Callable[[str], UserDirectory | None]:
    """Each node has a file with an administrator."""

    def made(name: str) -> UserDirectory:
        path = tmp_path / f"{name}.toml"
        return UserDirectory(str(path) if path.exists() else write_users(path, ROOT))

    return made


Made = Callable[[str], UserDirectory | None]


async def test_what_is_done_to_a_user_at_one_node_holds_at_all_once_it_is_answered(
    autojump_clock: MockClock, users_of: Made
) -> None:
    async with three_nodes(users_of) as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        assert await put(b, "shop", table()) == 200
        assert [may(host) for host in (a, b, c)] == [True] * 3
        assert await put(c, "shop", table(publish=["other"])) == 200
        assert [may(host) for host in (a, b, c)] == [False] * 3
        assert [may(host, queue="other") for host in (a, b, c)] == [True] * 3
        assert json.loads(bytes((await a.http("GET", "/-/users")).body)) == {
            "users": {"shop": table(publish=["other"])}
        }
        assert (await a.http("DELETE", "/-/users/shop")).status == 200
        assert [may(host, queue="other") for host in (a, b, c)] == [False] * 3
        assert (await a.http("DELETE", "/-/users/shop")).status == 200, "there is none any more"
        assert may(b, TOKEN, "q"), "the file's user is there all the time"


async def test_a_replaced_user_is_never_away(autojump_clock: MockClock, users_of: Made) -> None:
    """A connection of a user who is no more would be closed."""
    async with three_nodes(users_of) as cluster:
        a, b = (cluster.hosts[name] for name in "ab")
        await put(a, "shop", table())
        seen: set[bool] = set()
        assert b.users is not None
        share = b.users.share

        def watched(tables: Mapping[str, Mapping[str, Any]]) -> None:
            share(tables)
            seen.add("shop" in tables)

        b.node.on_users(watched, b.users.check)
        await put(a, "shop", table(publish=["other"]))
        assert seen == {True}


async def test_a_member_that_does_not_hear_of_a_removal_is_waited_for_until_its_lease_is_over(
    autojump_clock: MockClock, users_of: Made
) -> None:
    async with three_nodes(users_of) as cluster:
        a, c = (cluster.hosts[name] for name in "ac")
        await put(a, "shop", table())
        cluster.cut_off("c")
        began = trio.current_time()
        assert (await a.http("DELETE", "/-/users/shop")).status == 200
        assert trio.current_time() - began > 1
        assert may(c), "what it knows goes on"
        assert (await put(c, "late", table()), may(c)) == (503, True), "and nothing new is allowed there"
        cluster.mend_all("c")
        while c.node.membership().role == "alone":
            await trio.sleep(0.01)
        await trio.sleep(1)
        assert not may(c)


async def test_a_cold_start_without_the_coordinator_knows_the_users(autojump_clock: MockClock, users_of: Made) -> None:
    async with three_nodes(users_of) as cluster:
        a, c = (cluster.hosts[name] for name in "ac")
        for name in ("shop", "gone"):
            await put(a, name, table(TOKEN if name == "gone" else OTHER_TOKEN))
        await a.http("DELETE", "/-/users/gone")
        await c.kill()
        c = await cluster.start("c", is_cut_off=True)
        assert may(c)
        assert set(await cluster.roots["c"].records(KNOWN_USER)) == {"shop"}


async def test_a_removal_that_the_root_does_not_take_is_in_effect_all_the_same(
    autojump_clock: MockClock, users_of: Made
) -> None:
    async with three_nodes(users_of) as cluster:
        a, c = (cluster.hosts[name] for name in "ac")
        await put(a, "shop", table())

        async def fail(kind: str, key: str) -> bool:
            raise StorageFailed("broken")

        end = hook_records(cluster.roots["c"], drop=fail)
        assert (await a.http("DELETE", "/-/users/shop")).status == 503, "c may have it again after a start"
        assert [may(host) for host in (a, c)] == [False] * 2
        end()
        assert (await a.http("DELETE", "/-/users/shop")).status == 200
        assert await cluster.roots["c"].records(KNOWN_USER) == {}


async def test_a_node_that_joins_reads_the_users_once(autojump_clock: MockClock, users_of: Made) -> None:
    async with three_nodes(users_of) as cluster:
        for number in range(5):
            await put(cluster.hosts["a"], f"user{number}", {"publish": [f"{number}"]})
        await cluster.hosts["c"].kill()
        cluster.roots["c"] = MemoryStorage()
        told: list[int] = []

        def counting(name: str) -> UserDirectory | None:
            made = users_of(name)
            assert made is not None
            share = made.share

            def shared(tables: Mapping[str, Mapping[str, Any]]) -> None:
                told.append(len(tables))
                share(tables)

            made.share = shared  # type: ignore[method-assign]
            return made

        cluster.users_of = counting
        c = await cluster.start("c")
        await c.wait_for_master()
        await trio.sleep(1)
        assert told == [0, 5], "what its root knew, and then all of them together"


async def test_users_outlive_their_master(autojump_clock: MockClock, users_of: Made) -> None:
    async with three_nodes(users_of) as cluster:
        await put(cluster.hosts["b"], "shop", table())
        await cluster.hosts["a"].kill()
        assert (await cluster.hosts["c"].http("DELETE", "/-/users/shop")).status == 200
        assert not may(cluster.hosts["b"])
        a = await cluster.start("a")
        await a.wait_for_master()
        assert not may(a)


async def test_the_file_of_a_node_goes_first(
    autojump_clock: MockClock, users_of: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_users(tmp_path / "b.toml", ROOT + '[users.shop]\ntokens = ["OTHER_TOKEN"]\npublish = ["own"]\n')
    async with three_nodes(users_of) as cluster:
        a, b = (cluster.hosts[name] for name in "ab")
        refused = await b.http("PUT", "/-/users/shop", json.dumps(table()).encode())
        assert (refused.status, b"users file, which takes precedence" in bytes(refused.body)) == (
            409,
            True,
        )
        assert await put(a, "shop", table()) == 200
        assert (may(a), may(b), may(b, queue="own")) == (True, False, True)
        assert "ignoring cluster user shop" in caplog.text
        write_users(tmp_path / "b.toml", ROOT)
        assert b.users is not None
        b.users.reload()
        assert may(b), "once it is not there any more, the cluster's counts"


async def test_a_node_without_users_takes_none_of_the_cluster(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a = cluster.hosts["a"]
        refused = await a.http("PUT", "/-/users/shop", json.dumps(table()).encode())
        assert (refused.status, b"Start the node with --users" in bytes(refused.body)) == (409, True)
        assert (await a.http("GET", "/-/users")).status == 409


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": ["mq_secret"]}, {"pasword": "x"}, {"publish": "q"}, {"unix": "root"}],
    ids=["no hash", "key", "pattern", "login"],
)
async def test_what_is_no_user_is_refused_where_it_is_asked_for(
    autojump_clock: MockClock, users_of: Made, wrong: dict[str, Any]
) -> None:
    async with three_nodes(users_of) as cluster:
        assert await put(cluster.hosts["b"], "shop", wrong) == 400
        assert await put(cluster.hosts["b"], ".shop", table()) == 400
