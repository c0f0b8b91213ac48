"""Clients that make the daemon keep as much as they can: its memory stays bounded, and does not grow
with each attack.

``python -m tests.hostile --quiet 10`` prints these figures, and how long other clients wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.hostile.cheap_frames import CONNECTIONS, House, measure
from tests.hostile.hoarders import HOARDERS, Target, attack

MOST_MEBIBYTES = 400
"""During an attack."""
MOST_LEFT = 1.3
"""Times the memory of before, ten seconds after the attack, for a daemon that has met the attack once. After the first
one stay modules, up to 16 MiB of recent bodies, and free memory that the attack has scattered. A second one that leaves
more has found a leak."""
QUIET_SECONDS = 10.0
SECONDS = 6.0
SAMPLE = (
    "bodies that never fit",
    "bodies that are not finished",
    "AMQP messages that are not finished",
    "transient messages with long headers",
)
"""What each commit is tested with."""
SAMPLE_SECONDS = 3.0


@pytest.mark.proof
@pytest.mark.parametrize("name", HOARDERS)
def test_memory_is_bounded_during_an_attack_and_goes_back(house_for: Callable[[str], House], name: str) -> None:
    house = house_for(HOARDERS[name].needs)
    first, again = [measure(house, name, CONNECTIONS, SECONDS, QUIET_SECONDS).memory for _ in range(2)]
    assert house.is_running()
    assert max(first.most, again.most) <= MOST_MEBIBYTES
    assert (first.reserved, again.reserved) == (0, 0)
    assert again.after <= MOST_LEFT * again.before


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
async def test_memory_is_bounded_during_a_sample_of_the_attacks(tmp_path: Path, name: str) -> None:
    with House(tmp_path / "house", HOARDERS[name].needs) as house:
        with trio.move_on_after(SAMPLE_SECONDS):
            await attack(HOARDERS[name], Target(house.port, house.amqp_port, house.key), lambda: None)
        assert house.resident_mebibytes("VmHWM") <= MOST_MEBIBYTES
        house.stop()
