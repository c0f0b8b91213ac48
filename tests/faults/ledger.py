"""What the clients of a run were told, and what must therefore be in the store."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mq.errors import CallerError, StorageFull
from mq.message import Message


class Broken(AssertionError):
    """A promise was broken."""


class Fate(enum.Enum):
    """Whether something is in the store."""

    THERE = "must be there"
    EITHER = "may be there"
    GONE = "must not be there"


@dataclass
class Thing:
    """A queue or a message, as far as clients know.

    Attributes:
        queue: its queue's name.
        fate: whether it is there.
        body: of a message.
        attributes: of a message.
        id: of a message whose publish was acknowledged, or which was fetched.
        leased_until: nobody else gets it before (Trio's clock).
    """

    queue: str
    fate: Fate = Fate.GONE
    body: bytes = b""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    leased_until: float = 0.0

    def check(self, found: bool) -> None:
        """Is it there, or not there, as it must be?"""
        if self.fate is (Fate.GONE if found else Fate.THERE):
            raise Broken(f"P1: {self.body[:40]!r} of {self.queue} {self.fate.value}")


class Ledger:
    """All the queues and messages of a run. No two bodies are alike."""

    def __init__(self) -> None:
        self.queues: dict[str, Thing] = {}
        self._messages: dict[bytes, Thing] = {}

    def queue(self, name: str) -> Thing:
        return self.queues.setdefault(name, Thing(name))

    def publishing(self, queue: str, body: bytes, attributes: Mapping[str, Any]) -> Thing:
        """A message that is about to be published."""
        return self._messages.setdefault(body, Thing(queue, Fate.GONE, body, attributes))

    def messages(self, queue: str | None = None) -> list[Thing]:
        return [thing for thing in self._messages.values() if queue in (None, thing.queue)]

    def fetched(self, message: Message, body: bytes, now: float, until: float) -> Thing:
        """A message was handed out: was it published, is it whole, and did nobody else hold it?"""
        thing = self._messages.get(body)
        if thing is None:
            raise Broken(f"P3: handed out and never published: {message.id} of {message.queue}, {body[:40]!r}")
        if thing.fate is Fate.GONE:
            raise Broken(f"P5: handed out and {thing.fate.value}: {body[:40]!r} of {message.queue}")
        if thing.id not in (None, message.id) or thing.queue != message.queue:
            raise Broken(f"P3: {body[:40]!r} of {message.queue} has another id or queue: {message.id}, not {thing.id}")
        if message.properties.attributes != thing.attributes:
            raise Broken(f"P1: {body[:40]!r} has lost its attributes: {str(message.properties.attributes)[:80]}")
        if thing.leased_until > now:
            raise Broken(f"P6: {body[:40]!r} is leased for {thing.leased_until - now} more seconds")
        thing.id, thing.fate, thing.leased_until = message.id, Fate.THERE, until
        return thing

    def check_all_seen(self, seen: list[Thing]) -> None:
        """What must be there has been seen."""
        for thing in self._messages.values():
            if thing.fate is Fate.THERE and not any(thing is other for other in seen):
                raise Broken(f"P1: acknowledged and not there: {thing.body[:40]!r} of {thing.queue}")


@contextmanager
def changing(things: list[Thing], fate: Fate, *, in_steps: bool = False) -> Iterator[None]:
    """Something is asked for that brings these things to `fate`. Until it is acknowledged they may be there or not;
    refused, nothing has changed, unless it is done in steps."""
    before = [thing.fate for thing in things]
    for thing in things:
        thing.fate = thing.fate if thing.fate is fate else Fate.EITHER
    try:
        yield
    except (StorageFull, CallerError):
        for thing, was in zip(things, before, strict=True):
            thing.fate = Fate.EITHER if in_steps else was
        raise
    for thing in things:
        thing.fate = fate
