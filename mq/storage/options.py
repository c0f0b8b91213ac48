"""What the one who opens a store says about how it will be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StorageOptions:
    """How a store will be used. A backend that cannot serve it so says no in its factory.

    Attributes:
        shared: brokers in other processes work on the same store (peers > 0).
        watched: a mover or a reaper in another process works on the same store.
        max_lease_seconds: no lease will be longer; a deadline further off than that is a clock's mistake.
        native: whether mq-native may be used, where it is installed.
        max_memory: bytes of bodies that may be kept in memory, where the store keeps some there.
    """

    shared: bool = False
    watched: bool = False
    max_lease_seconds: float = 43200
    native: bool = True
    max_memory: int = 1 << 28
