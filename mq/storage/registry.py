"""From an address, such as ``posix:/var/lib/mq``, to an open store.

An address is ``NAME:rest``. NAME is an entry point of the group ``mq.storage``; mq registers its own backends in the
same way as a plugin does. In the plugin's ``pyproject.toml``::

    [project.entry-points."mq.storage"]
    etcd = "mq_etcd.storage:make_etcd"

The entry point names a :data:`Factory`. Its contract:

* ``make_etcd(rest, options)`` returns a :class:`~mq.storage.interface.Storage` that is not open yet. It is a plain
  function and does no I/O: it looks at its arguments and remembers them.
* A `rest` or an option that the backend cannot serve raises :class:`~mq.errors.StorageUnusable`. Its one line says what
  to do. In particular, a store that only one process can use refuses any `sharing` but ``ALONE``.
* ``aclose`` is called once ``open`` has been called, also when that failed or was cancelled, and also while the caller
  is being cancelled: it lets go of everything in either case.
* A test of the plugin calls :func:`mq.storage.conformance.check_storage`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.interface import Storage
from mq.storage.options import StorageOptions

GROUP: Final = "mq.storage"
"""The group of entry points in which backends register."""

Factory = Callable[[str, StorageOptions], Storage]
"""What an entry point names: (rest of the address, options) -> a store that is not open yet."""

_VERBS: Final = tuple(name for name in vars(Storage) if not name.startswith("_"))


@asynccontextmanager
async def open_storage(address: str, **options: Any) -> AsyncIterator[Storage]:
    """Open the store at `address` for the length of the block.

    Args:
        address: ``NAME:rest``.
        options: the fields of :class:`~mq.storage.options.StorageOptions`.

    Raises:
        StorageUnusable: no such backend, a broken one, or the store itself cannot serve.
    """
    storage = make_storage(address, StorageOptions(**options))
    try:
        await storage.open()
        yield storage
    finally:
        await storage.aclose()


def make_storage(address: str, options: StorageOptions) -> Storage:
    """The store at `address`, not open yet.

    Raises:
        StorageUnusable: no such backend, a broken one, or one that cannot serve what is asked of it.
    """
    name, colon, rest = address.partition(":")
    if not colon:
        raise StorageUnusable(
            f"invalid storage address: {shorten(address)}. Use NAME:ADDRESS, such as posix:/var/lib/mq"
        )
    return _make(_find(name), rest, options)


@cache
def registered() -> EntryPoints:
    """The backends that are installed."""
    # looked up once: it reads what every installed package says of itself, 10 ms where there are 200 of them
    return entry_points(group=GROUP)


def _find(name: str) -> EntryPoint:
    known = registered()
    found = [entry_point for entry_point in known if entry_point.name == name]
    if not found:
        names = ", ".join(sorted(known.names)) or "none: install mq, a copied source tree has no entry points"
        raise StorageUnusable(f"unknown storage backend {shorten(name)}. Installed backends: {names}")
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise StorageUnusable(
            f"several packages provide the storage backend {shorten(name)} ({packages}): uninstall all but one"
        )
    return found[0]


def _make(entry_point: EntryPoint, rest: str, options: StorageOptions) -> Storage:
    backend = f"storage backend {shorten(entry_point.name)} of {_package(entry_point)}"
    try:
        factory = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise StorageUnusable(f"{backend} cannot be loaded: {error}") from error
    if not callable(factory):
        raise StorageUnusable(f"{backend} is not a function: {entry_point.value}")
    storage: Storage = factory(rest, options)
    missing = [verb for verb in _VERBS if verb not in dir(storage)]
    if missing:
        raise StorageUnusable(
            f"{backend} did not return a store: it returned an object of type {type(storage).__name__}, which does "
            f"not have {', '.join(missing)}"
        )
    return storage


def _package(entry_point: EntryPoint) -> str:
    return f"package {entry_point.dist.name}" if entry_point.dist else "an unknown package"
