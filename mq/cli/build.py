"""Which optional accelerators this mq has: compiled modules (docs/service.md) and mq-native."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from mq import lifecycle
from mq.storage.files.posix import load_native

IS_COMPILED: Final = str(lifecycle.__file__).endswith(tuple(EXTENSION_SUFFIXES))
"""Whether the modules that can be compiled are: all of them, or none."""


def installed() -> str:
    """What is there, as :func:`told` says it."""
    return told(native=load_native() is not None)


def told(*, native: bool) -> str:
    """`` (compiled, with mq-native)``, or what of it is true, to be put behind the version; empty where nothing is."""
    parts = [*(["compiled"] if IS_COMPILED else []), *(["with mq-native"] if native else [])]
    return f" ({', '.join(parts)})" if parts else ""
