"""Seeded lives of a daemon whose memory for transient messages is full over and over."""

from __future__ import annotations

import logging
from typing import Final

import pytest

from tests.amqp.pressure import Pressure
from tests.cases import proof

SEEDS: Final = [6, proof(200)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_messages_keep_their_order_and_come_once_when_memory_is_full(
    seeds: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # each wait for room is a line
    monkeypatch.setattr("mq.storage.memory.MOST_BESIDE", 0)
    blocked = 0
    for seed in range(seeds):
        life = Pressure(seed).run()
        assert not life.violations, (seed, life.violations[:5])
        blocked += life.blocked
    assert blocked >= seeds  # there is pressure
