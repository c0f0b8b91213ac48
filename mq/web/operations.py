"""What an endpoint is: a line of the table, with all that can be said of it to people and programs.

The router and the description of the door (:mod:`mq.web.openapi`) are made from the same lines, so what is not in a
line is refused, and what is in it is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from mq.broker.api import BrokerAPI
from mq.broker.queue_settings import Kind
from mq.observers.metrics import Metrics
from mq.web.exchange import Reply, Request
from mq.web.waits import Waits

Schema = Mapping[str, Any]
"""A JSON Schema."""
Contents = Mapping[str, Schema]
"""Media type -> schema of a body."""


class Asked(NamedTuple):
    """A request, and what it is about.

    Attributes:
        broker: an open one.
        metrics: what counts.
        waits: those who wait for messages.
        max_body: the longest body of a message in bytes.
        request: as it came.
        query: its parameters, checked; those that were not given at their defaults.
        queue: the queue in the path, as it came.
        id: the message or the consumer in the path, as it came.
    """

    broker: BrokerAPI
    metrics: Metrics
    waits: Waits
    max_body: int
    request: Request
    query: Mapping[str, Any]
    queue: str = ""
    id: str = ""


class Parameter(NamedTuple):
    """Something that a request may say in its query or in a header.

    Attributes:
        name: how it is called.
        kind: what it may be.
        text: what it means.
        default: what counts where it is not there; None where that is told elsewhere.
        is_needed: whether a query without it is refused.
    """

    name: str
    kind: Kind
    text: str
    default: Any = None
    is_needed: bool = False


class Answer(NamedTuple):
    """A reply that is no refusal.

    Attributes:
        text: what it means.
        contents: its body.
        headers: of the reply, by name: what each means and what it may be.
        links: operations that go on from here, by name: their parameters as OpenAPI's runtime expressions.
    """

    text: str
    contents: Contents = {}
    headers: Mapping[str, tuple[str, Schema]] = {}
    links: Mapping[str, Mapping[str, str]] = {}


class Operation(NamedTuple):
    """One line of the table.

    Attributes:
        method: in capitals.
        path: ``QUEUE``, ``ID`` and ``CONSUMER`` stand for any name, any id and any consumer's name.
        handle: what does it.
        text: what it does.
        answers: by status.
        refusals: the statuses of its own; 400 goes without saying, 405 and those of access are added.
        query: the parameters it takes; all others are refused.
        headers: the headers it takes; all others do not matter.
        body: what it takes; empty where a body does not matter.
        needs_body: whether none at all is refused.
    """

    method: str
    path: str
    handle: Callable[[Asked], Awaitable[Reply]]
    text: str
    answers: Mapping[int, Answer]
    refusals: tuple[int, ...] = ()
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    body: Contents = {}
    needs_body: bool = True

    @property
    def line(self) -> str:
        """As the page has it: ``GET /QUEUE``."""
        return f"{self.method} {self.path}"

    @property
    def name(self) -> str:
        """Its name in code: that of its handler."""
        return self.handle.__name__

    @property
    def has_head(self) -> bool:
        """Whether HEAD is allowed, too: where GET leases nothing."""
        return self.method == "GET" and 204 not in self.answers

    @property
    def segments(self) -> tuple[str | None, ...]:
        """The path's, with None where any will do."""
        return tuple(None if segment in ANY_SEGMENT else segment for segment in self.path[1:].split("/"))


ANY_SEGMENT: Final = ("QUEUE", "ID", "CONSUMER")
"""Segments of an operation's path that stand for any."""
