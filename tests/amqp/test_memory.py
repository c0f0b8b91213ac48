"""What a message that waits on disk takes of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.amqp import REMEMBERED, measure_waiting

MOST_BYTES = 500
COUNT = 30_000
"""Together with 70,000 more of what each one more takes, these are the 100,000 that are spoken of."""


@pytest.mark.slow
def test_a_hundred_thousand_waiting_messages_take_at_most_500_bytes_each(tmp_path: Path) -> None:
    each, more = measure_waiting(tmp_path, COUNT)
    assert more <= MOST_BYTES / 2, "each one more"
    assert (each * COUNT + more * (100_000 - COUNT)) / 100_000 <= MOST_BYTES
    assert COUNT > 2 * REMEMBERED
