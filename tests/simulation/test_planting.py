"""Bugs are planted where they are meant, in what runs, and leave nothing behind."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from tests.simulation.planting import Bug, CannotPlant, planted

CODE = '''
from __future__ import annotations
import contextlib, functools
from dataclasses import dataclass

LIMIT = 10

def double(value):  # a comment
    """Twice as much."""
    result = value * (
        2
    )
    return result

def choose(value):
    if value > LIMIT:
        return "large"
    elif value < 0:
        return "negative"
    return "small"

def twice(value):
    first = value + 1
    second = value + 1
    return first + second

def counter(step):
    def count(value):
        return value + step
    return count

old_counter = counter(1)

async def numbers(most):
    for number in range(most):
        yield number

@contextlib.contextmanager
def noted(notes):
    notes.append("begin")
    yield
    notes.append("end")

@functools.cache
def cached(value):
    return value + 1

class Base:
    def name(self):
        return "base"

class Shelf(Base):
    def __init__(self, *books):
        self.books = list(books)

    def name(self):
        return super().name() + " shelf"

    @property
    def size(self):
        return len(self.books)

    @size.setter
    def size(self, wanted):
        del self.books[wanted:]

    @classmethod
    def of(cls, count):
        return cls(*range(count))

    @staticmethod
    def width():
        return 80

    async def take(self):
        return self.books.pop()

@dataclass(frozen=True, slots=True)
class Book:
    pages: int
    def is_thick(self):
        return self.pages > 500
'''

OTHER = """
class Drawer:
    def take(self):
        return "sock"
"""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of a few functions."""
    room = tmp_path / "planted_house" / "rooms"
    room.mkdir(parents=True)
    for folder in (room, room.parent):
        (folder / "__init__.py").write_text("")
    (room / "study.py").write_text(CODE)
    (room / "bedroom.py").write_text(OTHER)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("planted_house.rooms.study")
    yield importlib.import_module("planted_house")
    for name in [name for name in sys.modules if name.split(".")[0] == "planted_house"]:
        del sys.modules[name]


def study(house: ModuleType) -> Any:
    return importlib.import_module(f"{house.__name__}.rooms.study")


async def _numbers(study: Any) -> list[int]:
    return [number async for number in study.numbers(3)]


def _notes(study: Any) -> list[str]:
    notes: list[str] = []
    with study.noted(notes):
        notes.append("between")
    return notes


def _resized(study: Any) -> int:
    shelf = study.Shelf(1, 2, 3)
    shelf.size = 1
    return len(shelf.books)


WORKS: list[tuple[Bug, Callable[[Any], Any], Any, Any]] = [
    (Bug("double", "value * 2", "value * 3"), lambda it: it.double(2), 4, 6),
    (Bug("double", "result = value * 2", "result = 0"), lambda it: it.double(2), 4, 0),
    (Bug("double", "result = value * 2; return result", "return -1"), lambda it: it.double(2), 4, -1),
    (Bug("planted_house.rooms.study:double", "2", "LIMIT"), lambda it: it.double(2), 4, 20),
    (Bug("double", "... * 2", "2 - ..."), lambda it: it.double(5), 10, -3),
    (Bug("choose", "if value > LIMIT: ...", "if False: ..."), lambda it: it.choose(11), "large", "small"),
    (Bug("choose", "if value > LIMIT: ...", "if False: ..."), lambda it: it.choose(-1), "negative", "negative"),
    (Bug("choose", "if value > LIMIT: ...", "..."), lambda it: it.choose(1), "small", "large"),
    (Bug("counter.count", "value + step", "value - step"), lambda it: it.counter(1)(5), 6, 4),
    (Bug("counter.count", "value + step", "value - step"), lambda it: it.old_counter(5), 6, 4),
    (Bug("counter.count", "value + step", "value"), lambda it: it.old_counter(5), 6, 5),
    (Bug("numbers", "yield number", "yield number; yield -number"), lambda it: trio.run(_numbers, it), [0, 1, 2], None),
    (Bug("noted", "notes.append('end')", "pass"), lambda it: _notes(it)[1:], ["between", "end"], ["between"]),
    (Bug("cached", "value + 1", "value"), lambda it: it.cached.__wrapped__(1), 2, 1),
    (Bug("Shelf.name", "super().name() + ' shelf'", "'shelf'"), lambda it: it.Shelf().name(), "base shelf", "shelf"),
    (Bug("Shelf.size", "len(...)", "len(...) + 1"), lambda it: it.Shelf(1).size, 1, 2),
    (Bug("size", "del self.books[wanted:]", ""), _resized, 1, 3),
    (Bug("Shelf.of", "range(count)", "range(count + 1)"), lambda it: it.Shelf.of(1).size, 1, 2),
    (Bug("Shelf.width", "80", "81"), lambda it: it.Shelf.width(), 80, 81),
    (Bug("Shelf.take", "self.books.pop()", "self.books[0]"), lambda it: trio.run(it.Shelf(1, 2).take), 2, 1),
    (Bug("Book.is_thick", "self.pages > 500", "True"), lambda it: it.Book(3).is_thick(), False, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "look", "well", "ill"), WORKS, ids=[f"{bug.where} {bug.what}" for bug, *_ in WORKS])
def test_a_bug_is_there_for_the_block_alone(
    house: ModuleType, bug: Bug, look: Callable[[Any], Any], well: Any, ill: Any
) -> None:
    assert look(study(house)) == well
    with planted(bug, house):
        assert look(study(house)) == ([0, 0, 1, -1, 2, -2] if bug.where == "numbers" else ill)
    assert look(study(house)) == well


def test_a_bug_goes_with_an_exception(house: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError), planted(Bug("double", "2", "0"), house):
        1 / study(house).double(2)
    assert study(house).double(2) == 4


REFUSED = [
    (Bug("twice", "value + 1", "value"), ["twice (line 23)", "twice (line 24)", "make what or where say which one"]),
    (Bug("take", "return ...", "return None"), ["bedroom:Drawer.take", "study:Shelf.take"]),
    (Bug("double", "value / 2", "value"), ["does not stand in double", "stands nowhere", "remove it"]),
    (Bug("treble", "value * 2", "value"), ["no function is called treble", "planted_house.rooms.study:double"]),
    (Bug("rooms.bedroom:double", "value * 2", "value"), ["no function is called", "study:double"]),
    (Bug("double", "value + step", "value"), ["does not stand in double", "study:counter.count:"]),
    (Bug("double", "value * 2", "pass"), ["part of an expression"]),
    (Bug("double", "value * 2", "..."), ["more ... than"]),
    (Bug("Shelf.width", "80", "__class__"), ["uses names of around"]),
]


@pytest.mark.parametrize(("bug", "said"), REFUSED, ids=[f"{bug.where} {bug.what}" for bug, _ in REFUSED])
def test_what_does_not_fit_is_refused_with_advice(house: ModuleType, bug: Bug, said: list[str]) -> None:
    with pytest.raises(CannotPlant) as refusal, planted(bug, house):
        pytest.fail("planted")
    assert [part for part in said if part not in str(refusal.value)] == [], str(refusal.value)


def test_code_moves_and_the_bug_with_it(house: ModuleType, tmp_path: Path) -> None:
    """Into another file, with another comment and other line breaks."""
    moved = Path(str(house.__file__)).with_name("attic.py")
    moved.write_text(
        "# moved\n\n\nclass Trunk:\n    def weigh(self, kilos):\n        return (  # heavy\n   kilos\n  +1)\n"
    )
    attic = importlib.import_module(f"{house.__name__}.attic")
    with planted(Bug("Trunk.weigh", "kilos + 1", "kilos"), house):
        assert attic.Trunk().weigh(1) == 1
    assert attic.Trunk().weigh(1) == 2


@pytest.mark.parametrize("edited", [CODE.replace("return 80", "return 90"), f"\n\n{CODE}"])
def test_what_does_not_run_from_its_file_is_refused(house: ModuleType, edited: str) -> None:
    """As a module that is compiled, or that was edited since it was imported."""
    Path(str(study(house).__file__)).write_text(edited)
    bug = Bug("width", "return ...", "return 3")
    with pytest.raises(CannotPlant, match="does not run as it stands"), planted(bug, house):
        pytest.fail("planted")


def test_one_function_takes_one_bug_at_a_time(house: ModuleType) -> None:
    with planted(Bug("double", "2", "3"), house):
        with pytest.raises(CannotPlant, match="another bug"), planted(Bug("double", "value * 2", "0"), house):
            pytest.fail("planted")
        assert study(house).double(1) == 3
    assert study(house).double(1) == 2


def test_two_bugs_at_a_time(house: ModuleType) -> None:
    both = [Bug("double", "value * 2", "value"), Bug("Shelf.width", "80", "70")]
    for one, other in itertools.permutations(both):
        with planted(one, house), planted(other, house):
            assert (study(house).double(2), study(house).Shelf.width()) == (2, 70)
        assert (study(house).double(2), study(house).Shelf.width()) == (4, 80)
