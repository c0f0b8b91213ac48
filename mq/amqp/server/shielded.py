"""A block that finishes even when its connection's task is cancelled meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from mq.errors import StorageUnsure

PATIENCE_SECONDS: Final = 20.0
"""Longer than any barrier takes: a broker that takes longer counts as dead."""


@contextmanager
def shielded() -> Iterator[None]:
    """Shield the block from cancellation for :data:`PATIENCE_SECONDS`.

    Raises:
        StorageUnsure: the block took longer, and was cut off after all.
    """
    with trio.move_on_after(PATIENCE_SECONDS, shield=True) as scope:
        yield
    if scope.cancelled_caught:
        raise StorageUnsure(f"the store did not answer for {PATIENCE_SECONDS:g} seconds: it may have been done, or not")
