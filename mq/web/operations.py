"""An operation of the HTTP server: one line of the table, with its path, its right, its handler and its description.

The router, the authorizer and the description for programs (:mod:`mq.web.openapi`) are derived from the same lines:
what a line does not name is refused, and what it names is described.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from mq.access import Right
from mq.broker.api import BrokerAPI
from mq.broker.settings import SettingKind
from mq.doors.budget import Budget, ClientMemory
from mq.doors.open_connections import OpenConnections
from mq.observers.metrics import Metrics
from mq.schedules.cluster_schedules import ClusterSchedules
from mq.schedules.scheduler import Scheduler
from mq.web.exchange import Abandon, Answer, Reply, Request
from mq.web.http_connection import WaitingRequests
from mq.web.overview import Overview

Schema = Mapping[str, Any]
"""A JSON Schema."""
Contents = Mapping[str, Schema]
"""Media type -> schema of a body."""

ANY_RIGHT: Final = "any"
"""Some right on the queue, whichever."""
KNOWN: Final = "user"
"""Any user. The handler shows only what the user has rights on."""
NO_RIGHT: Final = "none"
"""No login at all: for probes, for the description of the protocol, and for the page itself, which holds no data."""
ANY_SEGMENT: Final = (
    "QUEUE",
    "ID",
    "CONSUMER",
    "JOB",
    "CONNECTION",
    "EXCHANGE",
    "SCHEDULE",
    "ACCOUNT",
    "VERSION",
    "FILE",
)
"""Segments of an operation's path that stand for any."""


class HeadContext(NamedTuple):
    """What all requests with one head have in common: what the server shares, and what the head says.

    Attributes:
        max_body: the longest body of a message in bytes.
        query: its parameters, checked; absent ones have their defaults.
        queue: the queue in the path, as it came; it exists where the operation needs it.
        id: the message, consumer, write job, connection, exchange, schedule, user or file in the path, as it came.
    """

    broker: BrokerAPI
    metrics: Metrics
    waits: WaitingRequests
    max_body: int
    budget: Budget
    connections: OpenConnections
    overview: Overview
    schedules: Scheduler | ClusterSchedules
    query: Mapping[str, Any]
    queue: str = ""
    id: str = ""


class RequestContext(HeadContext):
    """What a handler gets: a request, and what its head says."""

    request: Request

    @classmethod
    def of(cls, head: HeadContext, request: Request) -> RequestContext:
        """Return what a handler gets for a request with that head."""
        context = cls(*head[:-1], request.id or head.id)
        context.request = request
        return context

    @property
    def memory(self) -> ClientMemory:
        """What the client of the request may reserve."""
        return self.request.memory or self.budget.own()

    def check_publish(self, count: int = 1) -> None:
        """Count messages that the user of the request publishes.

        Raises:
            OverLimit: the user has published too many of late.
        """
        if self.request.quotas is not None:
            self.request.quotas.check_publish(self.request.user, count)

    def may(self, right: Right, queue: str | None) -> bool:
        """Whether the user of the request has a right on a queue; True where there are no users."""
        return self.request.user is None or self.request.user.may(right, queue)


class Parameter(NamedTuple):
    """A parameter of the query, or a header.

    Attributes:
        default: the value of an absent one; None where the handler decides.
        is_needed: whether a query without it is refused.
    """

    name: str
    kind: SettingKind
    text: str
    default: Any = None
    is_needed: bool = False


class Success(NamedTuple):
    """The description of one successful reply.

    Attributes:
        headers: of the reply, by name: the meaning and the schema of each.
        links: operations that may follow, by name: their parameters as OpenAPI's runtime expressions.
    """

    text: str
    contents: Contents = {}
    headers: Mapping[str, tuple[str, Schema]] = {}
    links: Mapping[str, Mapping[str, str]] = {}


class Operation(NamedTuple):
    """One line of the table.

    Attributes:
        path: ``QUEUE``, ``ID``, ``CONSUMER``, ``JOB`` and ``CONNECTION`` stand for any name, any id, any consumer's or
            write job's name and any connection's id, ``EXCHANGE``, ``SCHEDULE`` and ``ACCOUNT`` for any such name,
            ``VERSION`` and ``FILE`` for the page's.
        right: what its user needs: a :class:`mq.access.Right`, :data:`ANY_RIGHT`, :data:`KNOWN` or :data:`NO_RIGHT`.
            HEAD needs what GET needs.
        refusals: the statuses of its own refusals; 400, 405 and those of access are added.
        query: the parameters it takes; all others are refused.
        headers: the headers it takes; all others are ignored.
        needs_body: whether an absent body is refused.
        needs_queue: whether its queue has to exist: else it is refused before its body is read.
        sends_to: the key under which its JSON may name one more queue, to which messages will go from the first one;
            empty for none. That needs the right to publish there and to consume from the first: else a user with the
            right to configure could read the messages.
        lesser_right: the right that is enough where its JSON names nothing but `lesser_keys`; empty for none.
        audited: the event that the audit log gets, by the status of the reply; None for one with the handler's name.
        is_of_messages: whether it carries or settles messages, which is too frequent for the audit log.
        begin: carries it out in the step that read the request, as :meth:`mq.web.exchange.Handler.begin`, but for
            refusals, which it raises; None where nothing can.
    """

    method: str
    path: str
    right: str
    handle: Callable[[RequestContext], Awaitable[Reply]]
    text: str
    answers: Mapping[int, Success]
    refusals: tuple[int, ...] = ()
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    body: Contents = {}
    needs_body: bool = True
    needs_queue: bool = False
    sends_to: str = ""
    lesser_right: str = ""
    lesser_keys: tuple[str, ...] = ()
    audited: Mapping[int, str] | None = None
    is_of_messages: bool = False
    begin: Callable[[HeadContext, Request, Answer], Reply | Abandon | None] | None = None

    @property
    def line(self) -> str:
        """As the page has it: ``GET /QUEUE``."""
        return f"{self.method} {self.path}"

    @property
    def name(self) -> str:
        """Its name in code: that of its handler."""
        return self.handle.__name__

    @property
    def events(self) -> Mapping[int, str]:
        """The event that the audit log gets, by the status of the reply. An operation that changes something has one,
        unless its line says that it needs none."""
        if self.audited is not None:
            return self.audited
        if self.method == "GET" or self.is_of_messages:
            return {}
        return dict.fromkeys(self.answers, self.name.replace("_", "-"))

    def named(self, names: Sequence[str]) -> dict[str, str]:
        """The names in the path by what they name, as the audit log has them."""
        return dict(zip((each.lower() for each in self.path[1:].split("/") if each in ANY_SEGMENT), names, strict=True))

    @property
    def leases(self) -> bool:
        """Whether it leases messages, so that a request by mistake keeps them from their consumer. Such operations, and
        no others, answer 204 where there are none."""
        return HTTPStatus.NO_CONTENT in self.answers

    @property
    def has_head(self) -> bool:
        """Whether HEAD is allowed, too: where GET leases nothing."""
        return self.method == "GET" and not self.leases

    @property
    def is_of_queue(self) -> bool:
        """Whether it is about one queue, and not about the broker as a whole."""
        return self.path.startswith("/QUEUE")

    @property
    def segments(self) -> tuple[str | None, ...]:
        """The path's, with None where any will do."""
        return tuple(None if segment in ANY_SEGMENT else segment for segment in self.path[1:].split("/"))
