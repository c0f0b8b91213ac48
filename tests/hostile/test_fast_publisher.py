"""Clients that publish without confirms, faster than the disk, as they are: all of their messages arrive, and other
connections are served meanwhile.

``python -m tests.hostile.fast_publisher`` prints the figures. What the server does is tested with a virtual clock in
tests/amqp/test_slow_store.py.
"""

from __future__ import annotations

import pytest

from tests.hostile.fast_publisher import CLIENTS, KINDS, measure

COUNT = 20_000
SYNCS = 300.0
"""Of the disk, a second."""


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", CLIENTS)
def test_all_messages_of_a_fast_publisher_arrive_and_others_declare_meanwhile(client: str, kind: str) -> None:
    result = measure(client, COUNT, SYNCS, kind=kind)
    assert (result.published != "failed", result.arrived, result.failed) == (True, COUNT, 0), result.output
    assert result.is_good, result  # declares within a second, too
