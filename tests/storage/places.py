"""Fresh places for the stores that ship with mq, and stores on them that nobody can leave unchecked."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from mq.storage.conformance import check_whole
from mq.storage.interface import Storage
from mq.storage.registry import open_storage

DURABLE_PLACES: Final = ("posix", "tmpfs", "fake")
"""Backends whose contents outlive an open store, if not a loss of power."""
BACKENDS: Final = (*DURABLE_PLACES, "memory", "layered")
MEMORY_FOLDER: Final = Path("/dev/shm")

_fake_roots: Final = itertools.count()


class Places:
    """Makes stores of one backend; `make` and `reopen` are what the conformance checks want."""

    def __init__(self, backend: str, folder: str, **options: bool) -> None:
        self._options = options
        self._backend = backend
        self._folder = folder
        self._made = 0

    @property
    def address(self) -> str:
        """Of the place that was made last."""
        if self._backend == "memory":
            return "memory:"
        backend = "layered:fake" if self._backend == "layered" else self._backend
        return f"{backend}:{self._folder}/{self._made}"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Storage]:
        """An open store on a fresh place."""
        self._made += 1
        async with self.reopen() as storage:
            yield storage

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Storage]:
        """An open store on the place that was made last."""
        async with open_storage(self.address, **self._options) as storage:
            yield storage

    @asynccontextmanager
    async def checked(self) -> AsyncIterator[Storage]:
        """A store on a fresh place that is looked over at the end."""
        async with self.make() as storage:
            yield storage
            await check_whole(storage)


@contextmanager
def places(backend: str) -> Iterator[Places]:
    """Places of a backend; they go with the block."""
    with ExitStack() as stack:
        folder = f"/{next(_fake_roots)}"
        if backend in ("posix", "tmpfs"):
            parent = MEMORY_FOLDER if backend == "tmpfs" else None
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mq-", dir=parent))
        yield Places(backend, folder)
