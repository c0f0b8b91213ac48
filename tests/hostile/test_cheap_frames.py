"""Honest clients are served while others send the cheapest frames: each kind of flood, with the real daemon.

The bound is on the processor time of the event loop during a round trip, as machines are busy. The promise in
milliseconds is printed by ``python -m tests.hostile.cheap_frames``. The work of each step is counted with each commit:
tests/amqp/test_turns.py, tests/web/test_http2.py, tests/web/test_frames.py, tests/doors/test_readers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.cheap_frames import CONNECTIONS, House, measure, percentile
from tests.hostile.floods import FLOODS

MOST_LOOP_SECONDS = 0.5
"""The 99th percentile. Heartbeats before the login made it seven seconds, requests of clients that had left nine."""
SECONDS = 3.0

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def house_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], House]]:
    """One daemon for each kind."""
    houses: dict[str, House] = {}
    folder = tmp_path_factory.mktemp("floods")
    with ExitStack() as running:

        def find(needs: str) -> House:
            if needs not in houses:
                houses[needs] = running.enter_context(House(Path(folder, needs), needs))
            return houses[needs]

        yield find


@pytest.mark.parametrize("name", FLOODS)
def test_honest_clients_are_served_during_a_flood(house_for: Callable[[str], House], name: str) -> None:
    house = house_for(FLOODS[name].needs)
    result = measure(house, name, CONNECTIONS, SECONDS)
    assert house.is_running()
    for client, times in result.times.items():
        assert float("inf") not in times.clock, f"a request of {client} failed"
        assert percentile(times.loop) <= MOST_LOOP_SECONDS, client
