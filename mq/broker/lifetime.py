"""The life of a broker: :func:`open_broker` opens one for the length of a block."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import trio

from mq.broker.broker import Broker, Wiring
from mq.broker.clock import Clock
from mq.broker.config import BrokerConfig
from mq.lifecycle import Meter, Observer
from mq.storage.interface import Storage
from mq.storage.registry import open_storage


@asynccontextmanager
async def open_broker(
    storage: Storage | str,
    config: BrokerConfig = BrokerConfig(),  # noqa: B008 - frozen
    *,
    observers: Sequence[Observer | Meter] = (),
    clock_ns: Callable[[], int] = time.time_ns,
    clock: Clock | None = None,
    random: Random | None = None,
) -> AsyncIterator[Broker]:
    """A broker over a store, for the length of the block.

    On leaving the block the broker accepts no more requests, finishes those it has, and ends its tasks. Disk is the
    truth: the next start goes on with moves that the end has interrupted.

    Args:
        storage: an open store, or the address of one, such as ``posix:/var/lib/mq``.
        clock_ns: wall clock, nanoseconds since 1970.
        clock: in place of `clock_ns`: one that also knows what the kernel does. No other broker may have it.
        random: chooses among candidates at peers > 0; seeded by the operating system when not given.

    Raises:
        StorageUnusable: the store cannot serve.
    """
    async with AsyncExitStack() as stack:
        if isinstance(storage, str):
            storage = await stack.enter_async_context(open_storage(storage, sharing=config.sharing))
        wiring = Wiring(storage, config, observers, clock or Clock(clock_ns), random or Random())
        broker = Broker(wiring)
        await wiring.load()
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            await wiring.start(nursery)
            try:
                yield broker
            except Exception as error:  # noqa: BLE001 - the caller's own: it leaves as it came, not wrapped in a group
                failure = error
            await broker.finish()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
