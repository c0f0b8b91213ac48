"""Brokers over stores in memory, on virtual time; what they leave behind is looked over at the end."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from mq.broker import Broker, BrokerConfig, open_broker
from mq.lifecycle import LEGAL_MOVES, TRANSITIONS, State, Transition
from mq.message import MessageIds
from mq.storage import registry
from mq.storage.conformance import check_whole
from mq.storage.interface import Meta, Move, Storage, Write
from mq.storage.registry import open_storage
from tests.storage.disks import make_disk

Opener = Callable[..., AbstractAsyncContextManager[Broker]]

START_NS: Final = 1_700_000_000 * 10**9
_roots = itertools.count()


class Legal:
    """An observer that checks every transition against the table, and keeps them."""

    def __init__(self) -> None:
        self.seen: list[Transition] = []

    def saw(self, transitions: Sequence[Transition]) -> None:
        for transition in transitions:
            assert (transition.source, transition.target) in TRANSITIONS[transition.kind]
            assert None in (transition.source, transition.target) or transition[3:5] in LEGAL_MOVES
            self.seen.append(transition)


class WallClock:
    """A wall clock that goes with Trio's, and can be set."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> int:
        return START_NS + round((trio.current_time() + self.ahead_seconds) * 1e9)


def run_on_virtual_time(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """As trio.run, with a clock that jumps to the next timer when every task waits."""
    return trio.run(function, *args, **{**options, "clock": MockClock(autojump_threshold=0)})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, metavar="N", help="how many other lives to compare with the model")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses the wall clock, through whatever fixture, runs on virtual time."""
    for item in items:
        if "wall_clock" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.trio(run=run_on_virtual_time), append=False)


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> int | None:
    """How many lives of a broker to compare with the model; None for the usual ones."""
    given: int | None = request.config.getoption("examples", None)
    return given


async def leave(storage: Storage, queue: str = "q", clock_ns: Callable[[], int] = time.time_ns) -> None:
    """What a queue that was deleted and unlinked has left: a message in NEW, and one that is leased."""
    ids = MessageIds(clock_ns)
    done = await storage.commit([Write(queue, ids.new(), b"new"), Write(queue, ids.new(), b"leased")])
    assert done[1].entry is not None
    await storage.commit([Move(done[1].entry, State.DELAYED, Meta(1, 1, "0" * 16))])


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture
def observer() -> Legal:
    return Legal()


@pytest.fixture(scope="session", autouse=True)
def disk_backend() -> Iterator[None]:
    """Addresses that begin with ``disk:`` lead to the simulated disk."""
    known = [each for each in registry.registered() if each.name != "disk"]  # tests of another room may have it, too
    backends = [*known, EntryPoint("disk", f"{make_disk.__module__}:make_disk", registry.GROUP)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "registered", lambda: EntryPoints(backends))
        yield


@pytest.fixture(params=["memory", "disk"])
def address(request: pytest.FixtureRequest) -> str:
    """A fresh place in each store that never blocks."""
    return "memory:" if request.param == "memory" else f"disk:/broker-{next(_roots)}"


@pytest.fixture
def disk_address() -> str:
    """A fresh place on the simulated disk, which outlives a broker."""
    return f"disk:/broker-{next(_roots)}"


@pytest.fixture
def opened(wall_clock: WallClock, observer: Legal) -> Opener:
    """Opens a broker on an address; when it ends, its store is looked over."""

    @asynccontextmanager
    async def open_checked(address: str, **config: Any) -> AsyncIterator[Broker]:
        settings = BrokerConfig(**config)
        async with open_storage(address, sharing=settings.sharing) as storage:
            async with open_broker(storage, settings, observers=[observer], clock_ns=wall_clock) as broker:
                yield broker
            await check_whole(storage)

    return open_checked


@pytest.fixture
async def broker(address: str, opened: Opener) -> AsyncIterator[Broker]:
    """A broker with a queue ``q`` and leases of 30 seconds."""
    async with opened(address) as broker:
        await broker.create_queue("q")
        yield broker
