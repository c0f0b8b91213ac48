"""Finishing what was begun, whatever happens to the connection; but not for ever, since the broker may have died."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from mq.errors import StorageSlow

PATIENCE_SECONDS: Final = 20.0
"""No barrier takes so long: whoever would have answered is not there any more."""


@contextmanager
def finishing() -> Iterator[None]:
    """The block is not cut off from outside.

    Raises:
        StorageSlow: it took too long, and was cut off after all.
    """
    with trio.move_on_after(PATIENCE_SECONDS, shield=True) as scope:
        yield
    if scope.cancelled_caught:
        raise StorageSlow(f"the store did not answer for {PATIENCE_SECONDS:g} seconds; what became of it is not known")
