"""A broker on a medium that fails when a test says so. Every call site is in tests/faults/; here are the finds."""

from __future__ import annotations

import errno

import pytest

from mq.broker import open_broker
from mq.errors import StorageUnusable
from tests.broker.conftest import WallClock
from tests.storage.disks import MOUNTS, open_disk


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_a_store_that_cannot_be_read_is_refused_in_one_line(wall_clock: WallClock, number: int) -> None:
    """Not as a group of errors, which no program expects."""
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("names", number, path="delay")
        with pytest.raises(StorageUnusable, match="cannot take up what is in the store"):
            async with open_broker(disk.storage):
                pytest.fail("it opened")
