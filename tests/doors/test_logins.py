"""The line of passwords that wait to be checked. Time is virtual: a check takes as long as these tests say."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.access import UserDirectory
from mq.doors import logins as logins_module
from mq.doors.logins import LONGEST_WAIT_SECONDS, MOST_WAITING, Logins, TryLater
from tests.access.files import PASSWORD, TOKEN, write_users

CHECK_SECONDS = 0.3
A_BIT = 1e-6
GUESSERS = 60
USERS = "\n".join(f'[users.{name}]\npassword = "PASSWORD"' for name in ("anna", "bob", "carl"))

pytestmark = pytest.mark.usefixtures("checks")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many checks ran at once, at the beginning of each."""
    running = 0
    found: list[int] = []

    async def run(check: Callable[..., Any], *args: object, limiter: object) -> Any:
        nonlocal running
        running += 1
        found.append(running)
        try:
            await trio.sleep(CHECK_SECONDS)
        finally:
            running -= 1
        return check(*args)

    monkeypatch.setattr(logins_module.trio.to_thread, "run_sync", run)
    return found


@pytest.fixture
def logins(tmp_path: Path) -> Logins:
    users = write_users(tmp_path / "users", USERS + '\ntokens = ["TOKEN"]')
    return Logins(UserDirectory(users, trio.current_time))


async def guess(logins: Logins, address: str, names: list[str]) -> None:
    """For ever, and again soon where it is told to wait."""
    for number in range(1_000_000):
        try:
            assert await logins.user(address, names[number % len(names)], f"guess {number}") is None
        except TryLater:
            await trio.sleep(1.3)


async def seconds_of(logins: Logins, address: str, name: str = "anna", secret: str = PASSWORD) -> float:
    began = trio.current_time()
    user = await logins.user(address, name, secret)
    assert user is not None
    assert user.name == name
    return trio.current_time() - began


SAME_NAME = [(f"192.0.2.{number}", ["anna"]) for number in range(GUESSERS)]
OTHER_NAMES = [("192.0.2.1", [f"user{number}"]) for number in range(GUESSERS)]
NEW_NAMES = [("192.0.2.1", [f"n{number}x{more}" for more in range(500)]) for number in range(GUESSERS)]
KNOWN_NAMES = [("192.0.2.1", ["bob", "carl", f"n{number}"]) for number in range(GUESSERS)]


@pytest.mark.slow
@pytest.mark.parametrize("guessers", [SAME_NAME, OTHER_NAMES, NEW_NAMES, KNOWN_NAMES])
@pytest.mark.parametrize("address", ["198.51.100.1", "192.0.2.1"])
async def test_guessers_hold_up_nobody_else(
    autojump_clock: MockClock,
    logins: Logins,
    nursery: trio.Nursery,
    guessers: list[tuple[str, list[str]]],
    address: str,
) -> None:
    if guessers is SAME_NAME and address == "192.0.2.1":
        address = "192.0.2.200"  # the guesser's own line is what it is
    for where, names in guessers:
        nursery.start_soon(guess, logins, where, names)
    await trio.sleep(20)
    draw = random.Random(7)
    for _ in range(2):
        await trio.sleep(draw.uniform(60, 70))  # what was right is remembered no longer
        assert await seconds_of(logins, address) <= 2 * CHECK_SECONDS + A_BIT


async def test_guessers_who_have_just_come_do_not_shut_out_other_names(
    autojump_clock: MockClock, logins: Logins, nursery: trio.Nursery
) -> None:
    for address, names in SAME_NAME:
        nursery.start_soon(guess, logins, address, names)
    await trio.sleep(0.01)
    assert await seconds_of(logins, "198.51.100.1", "bob") <= 2 * CHECK_SECONDS + A_BIT


async def test_who_was_right_there_before_comes_first(
    autojump_clock: MockClock, logins: Logins, nursery: trio.Nursery
) -> None:
    await seconds_of(logins, "198.51.100.1")
    await trio.sleep(3600)
    for address, names in SAME_NAME:
        nursery.start_soon(guess, logins, address, names)
    await trio.sleep(0.01)
    assert await seconds_of(logins, "198.51.100.1") <= 2 * CHECK_SECONDS + A_BIT


async def test_a_line_that_was_wrong_has_to_wait_longer_each_time(
    autojump_clock: MockClock, logins: Logins, checks: list[int]
) -> None:
    waits = []
    for number in range(5):
        assert await logins.user("192.0.2.1", "anna", f"guess {number}") is None
        with pytest.raises(TryLater, match=r"from this address\. Try again in \d+ s, or use a token") as refused:
            await logins.user("192.0.2.1", "anna", "another")
        waits.append(refused.value.seconds)
        await trio.sleep(refused.value.seconds + 0.01)
    assert waits == [1, 1, 2, 4, 8]
    assert len(checks) == 5


async def test_tokens_and_what_was_right_a_moment_ago_wait_for_nothing(
    autojump_clock: MockClock, logins: Logins, nursery: trio.Nursery
) -> None:
    await seconds_of(logins, "198.51.100.1")
    nursery.start_soon(guess, logins, "192.0.2.1", ["anna"])
    await wait_all_tasks_blocked()
    assert await seconds_of(logins, "192.0.2.1") == 0
    assert await seconds_of(logins, "192.0.2.1", "carl", TOKEN) == 0


@pytest.mark.parametrize("secret", [PASSWORD, "wrong"])
async def test_a_crowd_with_one_secret_is_one_check(
    autojump_clock: MockClock, logins: Logins, checks: list[int], secret: str
) -> None:
    answers = []

    async def log_in() -> None:
        answers.append(await logins.user("192.0.2.1", "anna", secret))

    async with trio.open_nursery() as nursery:
        for _ in range(4 * MOST_WAITING):
            nursery.start_soon(log_in)
    assert checks == [1]
    assert {answer is not None for answer in answers} == {secret == PASSWORD}
    assert not logins._asked


async def test_checks_are_one_at_a_time_and_the_worst_has_to_go(
    autojump_clock: MockClock, logins: Logins, checks: list[int]
) -> None:
    outcomes: dict[str, int] = {}

    async def log_in(address: str, name: str, secret: str) -> None:
        try:
            await logins.user(address, name, secret)
            outcome = "checked"
        except TryLater:
            outcome = "sent away"
        outcomes[f"{name} {outcome}"] = outcomes.get(f"{name} {outcome}", 0) + 1

    async with trio.open_nursery() as nursery:
        for number in range(1 + MOST_WAITING):
            nursery.start_soon(log_in, f"192.0.2.{number}", "nobody", "x")
        await wait_all_tasks_blocked()
        for number in range(5):
            nursery.start_soon(log_in, f"198.51.100.{number}", "anna", "x")
    assert outcomes["anna checked"] == 5
    assert outcomes["nobody checked"] <= LONGEST_WAIT_SECONDS / CHECK_SECONDS
    assert sum(outcomes.values()) == 6 + MOST_WAITING
    assert set(checks) == {1}
    assert not logins._waiting


async def test_a_client_that_goes_keeps_nobody_waiting(
    autojump_clock: MockClock, logins: Logins, nursery: trio.Nursery
) -> None:
    for cancelled_after in (0.0, 0.01, CHECK_SECONDS):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as leaving:
                for number in range(3):
                    leaving.start_soon(logins.user, f"192.0.2.{number}", "bob", f"guess {cancelled_after}")
                    leaving.start_soon(logins.user, f"192.0.2.{number}", "bob", f"guess {cancelled_after}")
                await trio.sleep(cancelled_after)
                scope.cancel()
        assert not logins._waiting
        assert not logins._asked
        await trio.sleep(100)
        assert await seconds_of(logins, "198.51.100.1") <= CHECK_SECONDS + A_BIT


async def test_what_is_no_name_is_nobody_at_once(autojump_clock: MockClock, logins: Logins, checks: list[int]) -> None:
    for name in ("", "a b", "x" * 101, "-", "a\nb"):
        assert await logins.user("192.0.2.1", name, PASSWORD) is None
    assert checks == []


async def test_who_waits_for_another_who_goes_is_asked_itself(autojump_clock: MockClock, logins: Logins) -> None:
    first = trio.CancelScope()

    async def leave() -> None:
        with first:
            await logins.user("192.0.2.1", "anna", PASSWORD)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        nursery.start_soon(seconds_of, logins, "192.0.2.1")
        await wait_all_tasks_blocked()
        first.cancel()
