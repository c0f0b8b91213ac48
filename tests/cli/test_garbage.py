"""Garbage is collected in short rounds, and messages are looked at three times at most."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter

import pytest

from mq.cli.garbage import FROZEN_OBJECTS, OLD_SECONDS, ROUND_SECONDS, GarbageRounds

ROUNDS = round(OLD_SECONDS / ROUND_SECONDS)
OLD_OBJECTS_GO, NEW_OBJECTS_COME = 600_000, 600_000
MANY = f"""
import gc, trio
from mq.cli.garbage import GarbageRounds

class Thing:
    pass

async def main():
    looked_at = []
    def note(phase, info):
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))
    old = [Thing() for _ in range({OLD_OBJECTS_GO})]
    GarbageRounds().begin()
    gc.callbacks.append(note)
    new = []
    for _ in range({NEW_OBJECTS_COME} // 1000):
        for _ in range(1000):  # CPython counts one more and one less
            new.append(Thing())
            old.pop()
        await trio.sleep(0.005)
    print(max(looked_at), gc.get_freeze_count())

trio.run(main)
"""

START_OBJECTS, FEW_OBJECTS = 200_000, 20_000
AGAIN = f"""
import gc, trio
from mq.cli.garbage import GarbageRounds

class Cycle:
    def __init__(self):
        self.itself = self

async def main():
    looked_at = []
    def note(phase, info):
        if phase == "start":
            looked_at.append(len(gc.get_objects()))
    start = [Cycle() for _ in range({START_OBJECTS})]
    garbage = GarbageRounds()
    garbage.begin()
    gc.callbacks.append(note)
    few = [Cycle() for _ in range({FEW_OBJECTS})]
    garbage.collect_all()
    few.clear()
    garbage.collect_all()
    left = sum(isinstance(each, Cycle) for each in gc.get_objects())
    many = [Cycle() for _ in range({FROZEN_OBJECTS})]
    garbage.collect_all()
    many.clear()
    garbage.collect_all()
    gc.unfreeze()
    left += sum(isinstance(each, Cycle) for each in gc.get_objects()) - {START_OBJECTS}
    print(max(looked_at[:2]), left)

trio.run(main)
"""

BACKLOG = f"""
import gc, trio
from mq.cli.garbage import GarbageRounds

class Message:
    pass

class Cycle:
    def __init__(self):
        self.itself = self

async def main():
    start = [Message() for _ in range({START_OBJECTS})]
    garbage = GarbageRounds()
    garbage.begin()
    start.clear()
    lives = [Cycle() for _ in range({FROZEN_OBJECTS})]
    garbage.collect_all()
    lives.clear()
    garbage.collect_all()
    gc.unfreeze()
    print(sum(isinstance(each, Cycle) for each in gc.get_objects()))

trio.run(main)
"""


def test_a_round_is_collected_only_when_it_is_due() -> None:
    now, collected, frozen = 0.0, [], []
    rounds = GarbageRounds(
        lambda: now, collected.append, lambda: 0, lambda: left, lambda: frozen.append(len(collected))
    )
    rounds.before_io_wait(0)
    assert collected == []
    for left in (FROZEN_OBJECTS - 1, FROZEN_OBJECTS):  # noqa: B007 - the rounds ask for it
        for _ in range(ROUNDS):
            now += ROUND_SECONDS * 1.01
            rounds.before_io_wait(0)
            rounds.before_io_wait(0)
    assert Counter(collected) == {0: 32, 1: 6, 2: 2}
    assert frozen == [2 * ROUNDS]


def test_very_many_new_objects_are_frozen_before_another_round_looks_at_them() -> None:
    now, new, collected = 0.0, FROZEN_OBJECTS // 4, []
    frozen: list[int] = []
    rounds = GarbageRounds(
        lambda: now, collected.append, lambda: new, lambda: FROZEN_OBJECTS, lambda: frozen.append(len(collected))
    )
    for _ in range(8):
        now += ROUND_SECONDS * 1.01
        rounds.before_io_wait(0)
    assert collected == [0, 0, 0, 2, 0, 0, 0, 2]
    assert frozen == [4, 8]


@pytest.mark.slow
def test_no_collection_looks_at_all_objects() -> None:
    """Where as many objects go as come, CPython itself collects none for long, and then all at once."""
    done = subprocess.run([sys.executable, "-c", MANY], check=True, stdout=subprocess.PIPE)
    most, frozen = map(int, done.stdout.split())
    assert most < NEW_OBJECTS_COME // 2
    assert frozen > NEW_OBJECTS_COME // 2


@pytest.mark.slow
def test_objects_from_the_start_are_not_looked_at_again_while_few_others_are_frozen() -> None:
    """They are most of what a daemon has: looking at them took 60 to 120 ms, while clients waited."""
    done = subprocess.run([sys.executable, "-c", AGAIN], check=True, stdout=subprocess.PIPE)
    most, left = map(int, done.stdout.split())
    assert most < START_OBJECTS // 2
    assert left == 0


@pytest.mark.slow
def test_garbage_is_freed_though_as_many_objects_of_the_start_have_gone() -> None:
    """A daemon that starts with a long backlog has most of its objects from the start for that."""
    done = subprocess.run([sys.executable, "-c", BACKLOG], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) == 0


@pytest.mark.slow
def test_garbage_among_frozen_objects_is_freed_by_a_whole_collection() -> None:
    ends: list[str] = []

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ends.append("freed")

    cycle = Cycle()
    gc.freeze()
    try:
        del cycle
        gc.collect()
        assert ends == []
        GarbageRounds().collect_all()
        assert ends == ["freed"]
    finally:
        gc.unfreeze()
