"""What was acknowledged before kill -9 comes again within the bound that docs/amqp.md states, marked as redelivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.amqp.clients.servers import MqServer
from tests.crash.acks import bound, kill_a_round


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("prefetch", [10, 1000])
async def test_acknowledged_messages_that_come_again_after_a_kill(tmp_path: Path, prefetch: int) -> None:
    with MqServer(tmp_path) as server:
        found = await kill_a_round(server, prefetch, 3 * bound(prefetch))
    assert found.acknowledged > bound(prefetch)
    assert found.again <= bound(prefetch)
    assert (found.unmarked, found.lost) == (0, 0)
