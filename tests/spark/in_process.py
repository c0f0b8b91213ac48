"""A daemon in a thread of this process: what is planted in its code is planted in the one that answers."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from mq.broker import BrokerConfig, open_broker
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.posix import FolderStorage
from mq.storage.options import StorageOptions
from mq.web.endpoints import Endpoints
from simulation.calls import StepByStep
from tests.storage.disks import MOUNTS
from tests.web.talking import start_server

_UP_SECONDS = 60.0


class InProcess:
    """The HTTP door on a free port, over a store that reads messages in columns. Use it as a context manager.

    Args:
        max_body: the longest body in bytes.
    """

    def __init__(self, root: Path, max_body: int) -> None:
        self.root = root
        self.port = 0
        self._max_body = max_body
        self._is_up = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), name="mq-in-process", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(_UP_SECONDS), "the daemon did not come up"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stop is not None
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join(_UP_SECONDS)
        assert not self._thread.is_alive(), "the daemon did not stop"

    async def _serve(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        calls, options = LinuxCalls(StepByStep(LinuxCalls())), StorageOptions(log=False)
        storage = FolderStorage("test:", str(self.root), calls, options, mount=lambda root: MOUNTS["rename"])
        await storage.open()
        try:
            config = BrokerConfig(max_body=self._max_body)
            async with open_broker(storage, config) as broker, trio.open_nursery() as nursery:
                server = await start_server(nursery, Endpoints(broker, self._max_body))
                self.port = server.port
                self._is_up.set()
                await self._stop.wait()
                nursery.cancel_scope.cancel()
        finally:
            await storage.aclose()
