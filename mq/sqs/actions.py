"""An action (a line of the table), a call of it, and the desk that all calls of the API share."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from mq.access import Right, User
from mq.broker.api import BrokerAPI
from mq.doors.budget import Budget, Room, Use
from mq.doors.quotas import Quotas
from mq.message import QueueName
from mq.sqs.attributes import DEDUPLICATION_SECONDS
from mq.sqs.errors import SqsError
from mq.sqs.messages import ReceiptHandle
from mq.sqs.move_tasks import MoveTasks
from mq.sqs.names import QueueNames, base_of, is_fifo, queue_of_url
from mq.sqs.notes import NoteBook
from mq.sqs.shapes import Struct, needed, number
from mq.web.exchange import Abandon, Request
from mq.web.http_connection import WaitingRequests

_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
ACCESS_DENIED: Final = "AccessDeniedException"
"""The name of the error for a user who lacks a right."""
ANY_RIGHT: Final = "any"
"""Some right on the queue, whichever."""


MOST_ATTEMPTS: Final = 10_000
"""Attempts that are kept; the oldest go first."""


class Attempts:
    """The messages that receives of FIFO queues got, by the client's id of its attempt.

    A client that lost an answer asks again with the same id, and gets the same messages. Until then other messages of
    their groups are blocked, so without this it would wait for the end of its own leases. Kept in memory, as long as
    SQS does.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[float, Sequence[ReceiptHandle]]] = OrderedDict()

    def note(self, queue: str, id: str, handles: Sequence[ReceiptHandle]) -> None:
        """Keep the handles that an attempt got."""
        self._kept.pop((queue, id), None)
        self._kept[queue, id] = (trio.current_time() + DEDUPLICATION_SECONDS, handles)
        while len(self._kept) > MOST_ATTEMPTS or next(iter(self._kept.values()))[0] <= trio.current_time():
            self._kept.popitem(last=False)

    def find(self, queue: str, id: str) -> Sequence[ReceiptHandle]:
        """The handles for an attempt of that id; none without such an attempt in the last five minutes."""
        until, handles = self._kept.get((queue, id), (0.0, ()))
        return handles if until > trio.current_time() else ()


class Desk(NamedTuple):
    """What all calls share.

    Attributes:
        changing: held while a queue is made, changed or deleted.
        lease_seconds: length of a lease, where neither the queue nor the receive says one.
        base_path: the path under which a proxy serves the daemon; queues' URLs have it.
        quotas: hold users to their limits.
    """

    broker: BrokerAPI
    notes: NoteBook
    waits: WaitingRequests
    tasks: MoveTasks
    budget: Budget
    attempts: Attempts
    changing: trio.Lock
    lease_seconds: float
    base_path: str
    quotas: Quotas


class ActionCall:
    """One request for one action.

    Args:
        region: that its signature names.
        room: memory that is given back once it is answered; None reserves some when an action wants it.

    Attributes:
        demanded: the right that each call of :meth:`allow` asked for, and on which queue. An action that needs the
            right to configure a queue changes it, which the audit log gets. A handler that changed nothing clears the
            list.
        user: its user; None where there are no users.
    """

    __slots__ = ("_names", "_region", "_room", "action", "demanded", "desk", "request", "user", "wanted")

    def __init__(
        self,
        desk: Desk,
        action: Action,
        wanted: Mapping[str, Any],
        request: Request,
        user: User | None,
        region: str,
        room: Room | None = None,
    ) -> None:
        self.desk = desk
        self.action = action
        self.wanted = wanted
        self.request = request
        self.user = user
        self.demanded: list[tuple[str, str | None]] = []
        self._region = region
        self._room = room
        self._names: QueueNames | None = None

    @property
    def room(self) -> Room:
        """Memory that is given back once the call is answered."""
        if self._room is None:
            self._room = body_room(self.request, self.desk.budget)
        return self._room

    @property
    def names(self) -> QueueNames:
        """The names of queues as its client sees them."""
        if self._names is None:
            base = base_of(self.request.scheme, self.request.headers.get("host", ""))
            self._names = QueueNames(base + self.desk.base_path, self._region)
        return self._names

    def needed(self, name: str) -> Any:
        """As :func:`needed`, of the input."""
        return needed(self.wanted, name)

    def number(self, name: str, low: int, high: int) -> int | None:
        """As :func:`number`, of the input."""
        return number(self.wanted, name, low, high)

    def check_publish(self, count: int) -> None:
        """Count messages that the user publishes.

        Raises:
            OverLimit: the user has published too many of late.
        """
        self.desk.quotas.check_publish(self.user, count)

    def allow(self, right: str, queue: str | None) -> None:
        """Refuse the call if the user lacks a right. Without users every call is allowed.

        Args:
            right: one of :class:`mq.access.Right`, or :data:`ANY_RIGHT`.

        Raises:
            SqsError: the user lacks it.
        """
        self.demanded.append((right, queue))
        if self.user is None:
            return
        is_any = right == ANY_RIGHT
        if self.user.may_something(queue or "") if is_any else self.user.may(Right(right), queue):
            return
        what = "a right" if is_any else f"the right to {right}"
        raise SqsError(
            ACCESS_DENIED,
            f"User {self.user.name} is not authorized to perform sqs:{self.action.name}. This action requires {what} "
            f"on {self.names.arn(queue) if queue else 'this daemon'}",
        )

    def sees(self, queue: str) -> bool:
        """Whether the user gets to see a queue in lists."""
        return self.user is None or self.user.may_something(queue)

    def queue(self, right: str) -> QueueName:
        """The name of the queue that the call is about, whether or not it exists.

        Raises:
            SqsError: none is named, or the user lacks the right on it.
        """
        queue = queue_of_url(needed(self.wanted, "QueueUrl"))
        self.allow(right, queue)
        return queue

    async def known_queue(self, right: str) -> QueueName:
        """The name of the call's queue. The queue exists.

        Raises:
            SqsError: there is none, none is named, or the user lacks the right on it.
        """
        queue = self.queue(right)
        await self.check_known(queue)
        return queue

    async def check_known(self, queue: QueueName) -> None:
        """Check that a queue is there.

        Raises:
            SqsError: it is not.
        """
        if not await self.desk.broker.has_queue(queue):
            raise SqsError("QueueDoesNotExist", "The specified queue does not exist.")
        if is_fifo(queue) and not (await self.desk.broker.status(queue)).settings.groups:
            raise SqsError(
                "UnsupportedOperation",
                f"{queue} is not a FIFO queue: set groups=true on it to deliver messages in order.",
            )


def body_room(request: Request, budget: Budget) -> Room:
    """Memory of a request's client for bodies; none is reserved yet."""
    return (request.memory or budget.own()).reserve(Use.BODY)


Members = dict[str, Any]
"""Those of an action's output."""
LaterMembers = Callable[[], Awaitable[Members]]
"""Members that have to be waited for."""
ActionAnswer = Callable[[Callable[[Any], Members | LaterMembers], Any], None]
"""As :data:`mq.web.exchange.Answer`, for the members of an answer."""


class Action(NamedTuple):
    """An action of SQS: a line of the API's table.

    Attributes:
        handle: carries it out; returns the members of the output.
        event: that the audit log gets when it changes a queue; empty for one with its name.
        begin: begins it in the step that read the request, as :meth:`mq.web.exchange.Handler.begin`; None where nothing
            can. It changes no queue.
    """

    name: str
    input: Struct
    output: Struct
    handle: Callable[[ActionCall], Awaitable[Members]]
    event: str = ""
    begin: Callable[[ActionCall, ActionAnswer], Abandon | None] | None = None

    @property
    def audited(self) -> str:
        """The event for the audit log."""
        return self.event or _WORD.sub("-", self.name).lower()
