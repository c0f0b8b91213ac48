"""Freed memory goes back to the operating system, but not at the cost of a daemon at work."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from mq.cli import memory
from mq.doors.budget import MUCH_BYTES, Budget, Use

START = 100 << 20


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instants at which garbage was collected."""
    monkeypatch.setattr("mq.cli.memory.ctypes.CDLL", lambda _: object())  # no thread: a virtual clock waits for none
    return []


def noting(collected: list[float]) -> Callable[[], None]:
    return lambda: collected.append(trio.current_time())


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of the process, to be set."""
    size = [START]
    monkeypatch.setattr(memory, "resident_bytes", lambda: size[0])
    return size


async def test_memory_is_returned_once_much_was_freed(
    autojump_clock: object, nursery: trio.Nursery, collected: list[float], resident: list[int]
) -> None:
    budget = Budget()
    nursery.start_soon(memory.return_memory, budget, noting(collected), int, list)
    await trio.testing.wait_all_tasks_blocked()
    resident[0] = 2 * START
    await trio.sleep(20)
    assert collected == []
    with budget.reserve(MUCH_BYTES):
        await trio.sleep(20)
        assert collected == []
    await trio.sleep(memory.QUIET_SECONDS + memory.CALM_SECONDS + 1)
    assert len(collected) == 1
    budget.reserve(MUCH_BYTES).give_back()
    await trio.sleep(60)
    assert len(collected) == 1  # nothing has grown since


async def test_ended_connections_count_as_freed_memory(
    autojump_clock: object, nursery: trio.Nursery, collected: list[float], resident: list[int]
) -> None:
    budget = Budget()
    nursery.start_soon(memory.return_memory, budget, noting(collected), int, list)
    await trio.testing.wait_all_tasks_blocked()
    resident[0] = 2 * START
    for number in range(MUCH_BYTES // (32 * 1024)):
        budget.client(str(number)).close()
    await trio.sleep(memory.QUIET_SECONDS + memory.CALM_SECONDS + 1)
    assert len(collected) == 1


async def test_memory_that_clients_have_reserved_is_not_looked_for(
    autojump_clock: object, nursery: trio.Nursery, collected: list[float], resident: list[int]
) -> None:
    budget = Budget()
    nursery.start_soon(memory.return_memory, budget, noting(collected), int, list)
    await trio.testing.wait_all_tasks_blocked()
    resident[0] = 2 * START
    with budget.client("a reader").reserve(Use.ANSWER, START):
        budget.reserve(MUCH_BYTES).give_back()
        await trio.sleep(60)
        assert collected == []
    await trio.sleep(60)
    assert len(collected) == 1


async def test_memory_is_returned_only_while_the_event_loop_is_calm(
    autojump_clock: object,
    nursery: trio.Nursery,
    collected: list[float],
    resident: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = 0.9  # of a core
    monkeypatch.setattr("mq.cli.memory.time.thread_time", lambda: share * trio.current_time())
    budget = Budget()
    nursery.start_soon(memory.return_memory, budget, noting(collected), int, list)
    await trio.testing.wait_all_tasks_blocked()
    resident[0] = 2 * START
    budget.reserve(MUCH_BYTES).give_back()
    await trio.sleep(60)
    assert collected == []
    share = 0.1
    await trio.sleep(60)
    assert len(collected) == 1


async def test_a_whole_collection_is_put_off_while_there_are_many_messages(
    autojump_clock: object, nursery: trio.Nursery, collected: list[float], resident: list[int]
) -> None:
    """Looking at all objects would be a long step of the event loop. Still, garbage does not pile up for ever."""
    messages, budget = memory.MOST_MESSAGES + 1, Budget()
    nursery.start_soon(memory.return_memory, budget, noting(collected), lambda: messages, list)
    await trio.testing.wait_all_tasks_blocked()
    resident[0] = 2 * START

    async def give_back() -> None:
        budget.reserve(MUCH_BYTES).give_back()
        await trio.sleep(10)

    for _ in range(memory.MOST_PUT_OFF):
        await give_back()
    assert collected == []
    await give_back()
    assert len(collected) == 1
    messages, resident[0] = memory.MOST_MESSAGES, 4 * START
    await give_back()
    assert len(collected) == 2


async def test_garbage_is_collected_though_clients_give_nothing_back(
    autojump_clock: object, nursery: trio.Nursery, collected: list[float], resident: list[int]
) -> None:
    nursery.start_soon(memory.return_memory, Budget(), noting(collected), int, list)
    await trio.testing.wait_all_tasks_blocked()
    resident[0] = 2 * START
    await trio.sleep(memory.LONGEST_SECONDS + memory.QUIET_SECONDS + memory.CALM_SECONDS + 1)
    assert len(collected) == 1


ATTRIBUTES = """
import gc, sys
from mq.cli.garbage import GarbageRounds
collect_all = GarbageRounds().collect_all
class Group(ExceptionGroup):
    pass
def count():
    return sys.getallocatedblocks()
def split():
    for _ in range(2000):
        ExceptionGroup("x", [ValueError()]).split(KeyError)
split(); collect_all(); before = count()
split(); collect_all()
print(count() - before)
"""


def test_names_in_the_cache_of_attributes_are_freed() -> None:
    done = subprocess.run([sys.executable, "-c", ATTRIBUTES], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) < 100


@pytest.mark.slow
def test_the_process_knows_its_memory() -> None:
    before = memory.resident_bytes()
    block = bytearray(64 << 20)
    assert memory.resident_bytes() - before > 60 << 20
    del block
    gc.collect()
