"""Honest clients are served while others send the cheapest frames: each kind of flood, with the real daemon.

The bound is on the processor time of the event loop during a round trip, as machines are busy. The promise in
milliseconds is printed by ``python -m tests.hostile``. The work of each step is counted with each commit:
tests/amqp/test_turns.py, tests/web/test_http2.py, tests/web/test_frames.py, tests/doors/test_readers.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hostile.cheap_frames import CONNECTIONS, House, measure, percentile
from tests.hostile.floods import FLOODS

MOST_LOOP_SECONDS = 0.5
"""The 99th percentile. Heartbeats before the login made it seven seconds, requests of clients that had left nine."""
SECONDS = 3.0

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("name", FLOODS)
def test_honest_clients_are_served_during_a_flood(house_for: Callable[[str], House], name: str) -> None:
    house = house_for(FLOODS[name].needs)
    result = measure(house, name, CONNECTIONS, SECONDS)
    assert house.is_running()
    for client, times in result.times.items():
        assert float("inf") not in times.clock, f"a request of {client} failed"
        assert percentile(times.loop) <= MOST_LOOP_SECONDS, client
