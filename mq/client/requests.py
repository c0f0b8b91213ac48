"""Every verb of the protocol as a :class:`~mq.client.calls.Call`: what is sent, when it may be sent again, and how its
answer is read. One function a verb; docs/http.md is the page behind each. Long lists are cut into batches, whose
entries may go again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote, urlencode

from mq.client import codec
from mq.client.calls import Again, Answer, Call, Source, nothing
from mq.client.errors import Refused, UnexpectedResponse
from mq.client.retries import PAGE
from mq.client.values import (
    Duration,
    Head,
    Outcome,
    Outgoing,
    Page,
    Published,
    Queue,
    QueueSettings,
    Received,
    Redriven,
    duration,
)

T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]

LONGEST_BATCH: Final = 1000
LONGEST_REASON: Final = 200
"""Characters of the reason of a failure that a daemon keeps; the rest is cut off."""
_JSON: Final = ("content-type", "application/json")
_LINES: Final = (("content-type", codec.JSON_LINES), ("accept", codec.JSON_LINES))


def fresh_key() -> str:
    """A unique idempotency key."""
    return secrets.token_hex(16)


def create_queue(queue: str, store: str | None = None) -> Call[bool]:
    """Make a queue. True when it is new.

    Args:
        queue: its name.
        store: where it lives: ``disk``, ``memory``, or ``cluster``, which is highly available; None for
            wherever it is already, else on disk.

    Raises:
        Conflict: it is there already, in another place; or there is no cluster.
    """
    where = {} if store is None else {"store": store}
    return Call(method="PUT", target=_target(queue, **where), read=lambda answer: answer.status == 201)


def delete_queue(queue: str) -> Call[None]:
    """Delete a queue and all its messages."""
    return Call(method="DELETE", target=_target(queue), read=nothing, gone=_earlier(None, 404))


def queue(queue: str) -> Call[Queue]:
    """A queue's settings and what is in it."""
    return Call(method="GET", target=_target(queue), read=lambda answer: codec.queue_of(answer.members()))


def configure(queue: str, **settings: Unpack[QueueSettings]) -> Call[None]:
    """Change settings of a queue, all or none; None sets one back to its default."""
    return Call(
        method="PATCH", target=_target(queue), headers=(_JSON,), body=codec.json_line(dict(settings)), read=nothing
    )


def publish(queue: str, message: Outgoing, stream: Source | None = None, trace: Headers = ()) -> Call[Published]:
    """One message. With `stream` its body comes from there; `trace` names the trace that it belongs to."""
    body = message.body.encode() if isinstance(message.body, str) else message.body
    return Call(
        method="POST",
        target=_target(queue, "messages"),
        headers=codec.outgoing_headers(message) + trace,
        body=body if stream is None else stream,
        again=Again.UNSERVED if message.key is None else Again.ALWAYS,
        read=lambda answer: Published(id=_id(answer), is_new=answer.status == 201),
    )


def publish_batch(queue: str, messages: Sequence[Outgoing], trace: Headers = ()) -> Call[list[Outcome]]:
    """Up to :data:`LONGEST_BATCH` messages."""
    keyed = all(message.key is not None for message in messages)
    return Call(
        method="POST",
        target=_target(queue, "messages", "batch"),
        headers=_LINES + trace,
        body=b"".join(map(codec.outgoing_line, messages)),
        again=Again.ALWAYS if keyed else Again.UNSERVED,
        read=lambda answer: codec.outcomes(answer, len(messages)),
    )


def fetch(queue: str, wait: Duration, visibility: Duration | None) -> Call[Received | None]:
    """Lease the next message. Sent again, it may lease a second one: the first comes back when its lease ends."""
    return _fetch(queue, wait, visibility, lambda answer: codec.received(queue, answer))


def fetch_head(queue: str, wait: Duration, visibility: Duration | None) -> Call[Head | None]:
    """As :func:`fetch`, with the body still to be streamed."""
    return _fetch(queue, wait, visibility, lambda answer: codec.head_of(queue, answer))


def _fetch(
    queue: str, wait: Duration, visibility: Duration | None, read: Callable[[Answer], T | None]
) -> Call[T | None]:
    return Call(
        method="GET",
        target=_target(queue, "messages", **_fetching(wait, visibility)),
        wait=duration("wait", wait),
        read=lambda answer: None if answer.status == 204 else read(answer),
    )


def fetch_many(queue: str, limit: int, wait: Duration, visibility: Duration | None) -> Call[tuple[Received, ...]]:
    """Lease up to `limit` messages."""
    return Call(
        method="GET",
        target=_target(queue, "messages", max=str(limit), **_fetching(wait, visibility)),
        headers=(("accept", codec.JSON_LINES),),
        wait=duration("wait", wait),
        read=lambda answer: codec.received_lines(queue, answer),
    )


def take(queue: str) -> Call[Received | None]:
    """Fetch and remove in one step. Never sent again once it may have been served: that would lose a second one."""
    return Call(
        method="POST",
        target=_target(queue, "take"),
        again=Again.UNSERVED,
        read=lambda answer: None if answer.status == 204 else codec.received(queue, answer),
    )


def show(queue: str, id: str) -> Call[Received]:
    """A message, left where it is."""
    target = _target(queue, "messages", id)
    return Call(method="GET", target=target, read=lambda answer: codec.received(queue, answer))


def remove(queue: str, id: str, receipt: str) -> Call[None]:
    """One message; with a receipt only while that delivery holds it."""
    return Call(
        method="DELETE",
        target=_target(queue, "messages", id),
        headers=_if_match(receipt),
        read=nothing,
        gone=_earlier(None, 404),
    )


def remove_batch(queue: str, messages: Sequence[str | Head]) -> Call[list[Outcome]]:
    """Up to :data:`LONGEST_BATCH` messages."""
    return Call(
        method="POST",
        target=_target(queue, "messages", "delete"),
        headers=_LINES,
        body=codec.ids_lines(messages),
        read=lambda answer: codec.outcomes(answer, len(messages)),
    )


def extend(message: Head, visibility: Duration) -> Call[None]:
    """Let the lease of a message end in `visibility` seconds from now.

    Raises:
        LeaseLost: it ran out, and the message is, or was, leased by another.
        Conflict: it ran out.
    """
    seconds = duration("visibility", visibility)
    call = _change(message.queue, message.id, message.receipt, {"visibility": seconds})
    return call if seconds else replace(call, gone=_GIVEN_BACK)


def requeue(queue: str, id: str, receipt: str, delay: Duration | None, reason: str = "") -> Call[None]:
    """Give a leased message back, to be handed out again after `delay` seconds; None for as long as its queue says."""
    wanted: dict[str, Any] = {"delay": None if delay is None else duration("delay", delay)}
    if reason:
        wanted["reason"] = reason[:LONGEST_REASON].encode("utf-8", "replace").decode()
    return replace(_change(queue, id, receipt, wanted), gone=_GIVEN_BACK)


def reschedule(queue: str, id: str, *, delay: Duration | None = None, at: datetime | None = None) -> Call[None]:
    """Change when a delayed message can be fetched. To cancel it, `remove` it.

    Args:
        queue: the queue.
        id: the message, as its publish told.
        delay: seconds from now; 0 for at once.
        at: the time instead; with its zone.

    Raises:
        Conflict: it is delayed no more: it can be fetched, or a consumer has it.
        NotFound: it is not there.
    """
    if (delay is None) == (at is None):
        raise ValueError('use either the argument "delay" or the argument "at", not both')
    wanted = {"at": codec.time(at)} if at is not None else {"delay": duration("delay", delay or 0.0)}
    call = _change(queue, id, "", wanted)
    return replace(call, headers=(*call.headers, ("if-none-match", "*")))


def _change(queue: str, id: str, receipt: str, wanted: Mapping[str, Any]) -> Call[None]:
    return Call(
        method="PATCH",
        target=_target(queue, "messages", id),
        headers=(*_if_match(receipt), _JSON),
        body=codec.json_line(wanted),
        read=nothing,
    )


def peek(queue: str, limit: int = PAGE, *, state: str = "ready", after: str | None = None) -> Call[Page]:
    """Messages in their order, left where they are.

    Args:
        queue: where.
        limit: messages at the most; a page of long messages has fewer.
        state: "ready", "leased" or "delayed".
        after: an id; what comes behind it.
    """
    asked = {"max": str(limit), "state": state} | ({} if after is None else {"after": after})
    return peek_at(queue, _target(queue, "peek", **asked))


def peek_at(queue: str, target: str) -> Call[Page]:
    """The page that another one led to."""
    return Call(
        method="GET",
        target=target,
        headers=(("accept", codec.JSON_LINES),),
        read=lambda answer: codec.page(queue, answer),
    )


def contains(queue: str, body: bytes) -> Call[str | None]:
    """The id of the message of that body in a unique queue; None when it has none."""
    return Call(method="POST", target=_target(queue, "contains"), body=body, read=_contained)


def purge(queue: str) -> Call[int]:
    """Remove all messages that are not leased. How many that were."""
    target = _target(queue, "purge")
    return Call(method="POST", target=target, again=Again.UNSERVED, read=lambda answer: _count(answer, "purged"))


def redrive(
    queue: str, *, to: str | None = None, limit: int = LONGEST_BATCH, ids: Sequence[str] | None = None
) -> Call[Redriven]:
    """Move up to `limit` messages back to the queues they died in, or to `to`; with `ids` only these."""
    wanted: dict[str, Any] = {"max": limit}
    if to is not None:
        wanted["to"] = to
    if ids is not None:
        wanted["ids"] = list(ids)
    return Call(
        method="POST",
        target=_target(queue, "redrive"),
        headers=(_JSON,),
        body=codec.json_line(wanted),
        again=Again.UNSERVED,
        read=lambda answer: Redriven(moved=_count(answer, "moved"), remaining=_count(answer, "remaining")),
    )


def queues() -> Call[tuple[Queue, ...]]:
    """All queues."""
    return Call(method="GET", target="/-/queues", read=_queues)


def stats() -> Call[Mapping[str, Any]]:
    """Counts and rates of the daemon."""
    return Call(method="GET", target="/-/stats", read=Answer.members)


def cluster() -> Call[Mapping[str, Any]]:
    """The cluster as this daemon sees it, as docs/cluster.md has it; ``node`` is empty where it is in none."""
    return Call(method="GET", target="/-/cluster", read=Answer.members)


def drain_node(*, resume: bool = False) -> Call[Mapping[str, Any]]:
    """Drain this node of a cluster: it hands over mastership, and takes no new clients until it is stopped; with
    `resume` it takes clients again. Returns the same as `cluster`.

    Raises:
        Conflict: no other node could take over, or it is in no cluster.
    """
    method = "DELETE" if resume else "POST"
    return Call(method=method, target=_target("-", "cluster", "drain"), read=Answer.members)


def replace_node(node: str, address: str) -> Call[Mapping[str, Any]]:
    """Have this node of a cluster look for a neighbour at another address. Returns the same as `cluster`.

    Args:
        node: its name; it is no member now.
        address: HOST:PORT where it will serve AMQP.

    Raises:
        Conflict: it is a member, or no neighbour of that name is known.
    """
    body = codec.json_line({"node": node, "address": address})
    target = _target("-", "cluster", "replace")
    return Call(method="POST", target=target, headers=(_JSON,), body=body, read=Answer.members)


def users() -> Call[Mapping[str, Mapping[str, Any]]]:
    """The users of this node's cluster by name, each as a table of a users file: it holds hashes and no secret.

    Raises:
        Conflict: this daemon is in no cluster, or takes no users.
    """
    return Call(method="GET", target="/-/users", read=lambda answer: dict(answer.members()["users"]))


def put_user(name: str, table: Mapping[str, Any]) -> Call[None]:
    """Make a user of the cluster, or replace one; in effect at all nodes that are members on return.

    Args:
        name: of the user.
        table: as docs/access.md has it.

    Raises:
        Conflict: the node's own file has one of that name, or this daemon is in no cluster.
    """
    target = _target("-", "users", name)
    return Call(method="PUT", target=target, headers=(_JSON,), body=codec.json_line(table), read=nothing)


def delete_user(name: str) -> Call[None]:
    """Remove a user of the cluster, if there is one; no member lets that user in any more on return."""
    return Call(method="DELETE", target=_target("-", "users", name), read=nothing)


def rates(
    *, sort: str = "name", filter: str = "", skip: int = 0, limit: int = PAGE, history: bool = False
) -> Call[Mapping[str, Any]]:
    """Queues with what is in them and how much happens to them, as docs/http.md has it.

    Args:
        sort: "name", or what there should be most of: "ready", "leased", "delayed", "oldest", "publish", "deliver",
            "acknowledge", "redeliver", "expire", "dead_letter".
        filter: only queues whose names have this in them, in small or capital letters.
        skip: how many to pass over.
        limit: how many at the most.
        history: whether to tell the number of messages for each of the last 60 minutes.
    """
    asked = {"sort": sort, "skip": str(skip), "max": str(limit)} | ({"filter": filter} if filter else {})
    target = _target("-", "rates", **asked, **({"history": "true"} if history else {}))
    return Call(method="GET", target=target, read=Answer.members)


def queue_rates(queue: str) -> Call[Mapping[str, Any]]:
    """The rates of a queue, now and over the last hour."""
    return Call(method="GET", target=_target(queue, "rates"), read=Answer.members)


def connections(after: str | None = None) -> Call[Mapping[str, Any]]:
    """A page of the connections that are open at this daemon: ``open``, how many there are, ``connections``, the
    oldest first, and ``next``, to be given as `after` for the next page; None on the last one."""
    return Call(method="GET", target=_target("-", "connections", **_behind(after)), read=Answer.members)


def consumers(after: str | None = None) -> Call[Mapping[str, Any]]:
    """A page of ``consumers`` over AMQP, and of requests that wait for messages; the rest as of
    `connections`."""
    return Call(method="GET", target=_target("-", "consumers", **_behind(after)), read=Answer.members)


def batch_consumers() -> Call[list[Mapping[str, Any]]]:
    """The consumers that take batches, as queries of Spark do, in every queue that the user may consume: each with
    ``queue``, the queue's counts, and how far the consumer is."""
    return Call(
        method="GET", target=_target("-", "batch-consumers"), read=lambda answer: list(answer.members()["consumers"])
    )


def forget_consumer(queue: str, name: str) -> Call[None]:
    """Forget a consumer of batches, and give back the messages that it has claimed.

    Args:
        queue: the queue's name.
        name: the consumer's. A name without a consumer changes nothing.

    Raises:
        NotFound: the queue does not exist.
    """
    return Call(method="DELETE", target=_target(queue, "consumers", name), read=nothing)


def close_connection(id: str) -> Call[None]:
    """End a connection.

    Raises:
        NotFound: none of that id is open.
    """
    return Call(method="DELETE", target=_target("-", "connections", id), read=nothing, gone=_earlier(None, 404))


def put_schedule(
    name: str,
    queue: str,
    message: Outgoing,
    *,
    cron: str | None = None,
    zone: str | None = None,
    every: Duration | None = None,
    unless_waiting: bool = False,
) -> Call[bool]:
    """Publish a message regularly from now on; or change what, when and where.

    Args:
        name: of the schedule.
        queue: where its messages go.
        message: without a key and a time: the schedule gives these.
        cron: five fields, such as "0 3 * * *".
        zone: the time zone of that; UTC without.
        every: seconds between two messages, instead of a cron line.
        unless_waiting: publish nothing while the last message is still there.

    Returns:
        Whether it is new.

    Raises:
        BadRequest: when it is to be makes no sense.
        NotFound: the queue is not there.
        Conflict: this daemon keeps no schedules, or no more.
    """
    wanted = {"cron": cron, "zone": zone, "every": every, "unless_waiting": unless_waiting}
    given = {key: value for key, value in wanted.items() if value is not None}
    return Call(
        method="PUT",
        target=_target("-", "schedules", name),
        headers=(_JSON,),
        body=codec.json_line({"queue": queue, "message": codec.outgoing_members(message), **given}),
        read=lambda answer: answer.status == 201,
    )


def schedule(name: str) -> Call[Mapping[str, Any]]:
    """A schedule with its ``message``, its ``next`` and its ``last`` instant, and the ``error`` of its last firing.

    Raises:
        NotFound: there is none of that name.
    """
    return Call(method="GET", target=_target("-", "schedules", name), read=Answer.members)


def schedules(after: str | None = None) -> Call[Mapping[str, Any]]:
    """A page of ``schedules`` without their messages, by name, and ``next``, to be given as `after` for the next
    page; None on the last one."""
    return Call(method="GET", target=_target("-", "schedules", **_behind(after)), read=Answer.members)


def delete_schedule(name: str) -> Call[None]:
    """Delete a schedule; its messages stay.

    Raises:
        NotFound: there is none of that name.
    """
    return Call(method="DELETE", target=_target("-", "schedules", name), read=nothing, gone=_earlier(None, 404))


def logging() -> Call[Mapping[str, Any]]:
    """How much the daemon logs: ``level``, and whether there is a line for each of the ``requests``."""
    return Call(method="GET", target="/-/logging", read=Answer.members)


def clock() -> Call[Mapping[str, Any]]:
    """What the daemon makes of the wall clock: ``wall``, ``date``, ``steady_seconds_ahead``, ``synchronised``, and
    ``doubt``, None where the clock is not in doubt."""
    return Call(method="GET", target="/-/clock", read=Answer.members)


def trust_clock() -> Call[Mapping[str, Any]]:
    """End a doubt of the wall clock, which is right. As `clock`, from now on."""
    return Call(method="PATCH", target="/-/clock", headers=(_JSON,), body=b'{"trusted": true}', read=Answer.members)


def change_logging(*, level: str | None = None, every_request: bool | None = None) -> Call[Mapping[str, Any]]:
    """Let the daemon log more, or less, until it ends; None is no change. As `logging`, from now on.

    Args:
        level: "debug", "info", "warning" or "error".
        every_request: whether each request over HTTP gets a line.
    """
    wanted = {"level": level, "requests": every_request}
    body = codec.json_line({name: value for name, value in wanted.items() if value is not None})
    return Call(method="PATCH", target="/-/logging", headers=(_JSON,), body=body, read=Answer.members)


def ready() -> Call[bool]:
    """Whether the store takes changes."""
    return Call(method="GET", target="/-/ready", again=Again.NEVER, read=lambda answer: True)


def _target(*segments: str, **parameters: str) -> str:
    path = "/" + "/".join(quote(segment, safe="@") for segment in segments)
    return f"{path}?{urlencode(parameters)}" if parameters else path


def _behind(after: str | None) -> Mapping[str, str]:
    return {} if after is None else {"after": after}


def _fetching(wait: Duration, visibility: Duration | None) -> Mapping[str, str]:
    found = {"wait": codec.seconds("wait", wait)} if wait else {}
    if visibility is not None:
        found["visibility"] = codec.seconds("visibility", visibility)
    return found


def _if_match(receipt: str) -> tuple[tuple[str, str], ...]:
    return (("if-match", f'"{receipt}"'),) if receipt else ()


def _earlier(result: T, *statuses: int) -> Callable[[Refused], T]:
    """For `gone`: after these statuses an earlier try has done what was asked for."""

    def gone(error: Refused) -> T:
        if error.status not in statuses:
            raise error
        return result

    return gone


_GIVEN_BACK: Final = _earlier(None, 404, 409, 412)
"""After these refusals an earlier try has given the message back."""


def _id(answer: Answer) -> str:
    id = answer.headers.get("x-message-id")
    if not id:
        raise UnexpectedResponse(
            "the server accepted the message, but its response contains no message ID. Check that the URL points "
            "to an mq daemon"
        )
    return id


def _count(answer: Answer, name: str) -> int:
    value = answer.members().get(name)
    if not isinstance(value, int):
        raise UnexpectedResponse(f'the response does not contain the message count "{name}"')
    return value


def _contained(answer: Answer) -> str | None:
    found = answer.members()
    return str(found.get("id", "")) if found.get("contains") is True else None


def _queues(answer: Answer) -> tuple[Queue, ...]:
    found = answer.document()
    listed = found.get("queues") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        raise UnexpectedResponse("the daemon did not return a list of queues")
    return tuple(map(codec.queue_of, listed))


BATCH_BYTES: Final = 4 << 20
"""Bytes of bodies after which a batch is closed: what is sent again is sent whole. A daemon takes as many as its
longest body may have; for one that takes fewer the batch is halved."""

_ABOUT_ONE: Final = frozenset({400, 409, 413, 429, 503})


def cut(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """The messages in batches of at most `LONGEST_BATCH` and, but for a single longer one, :data:`BATCH_BYTES`."""
    batch: list[Outgoing] = []
    size = 0
    for message in messages:
        length = len(message.body)
        if batch and (len(batch) >= LONGEST_BATCH or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch


def outcome_alone(result: Published | Refused) -> Outcome:
    """What a batch would have said of a message that was published alone.

    Raises:
        Refused: it is not about the message: a batch would have raised it, too.
    """
    if isinstance(result, Published):
        return Outcome(status=201 if result.is_new else 200, id=result.id)
    if result.status not in _ABOUT_ONE:
        raise result
    return Outcome(status=result.status, detail=result.detail, is_unsure=result.is_unsure)


class PublishBatch:
    """A batch on its way: which of its entries are still open.

    Args:
        keys: whether entries without a key get one, so that they can go again.
    """

    def __init__(self, queue: str, messages: Iterable[Outgoing], *, keys: bool, trace: Headers = ()) -> None:
        self.queue = queue
        self.trace = trace
        self._messages = [
            replace(message, key=fresh_key()) if keys and message.key is None else message for message in messages
        ]
        self._outcomes: dict[int, Outcome] = {}
        self._open = list(range(len(self._messages)))

    @property
    def only(self) -> Outgoing | None:
        """The one message of a batch of one: it goes alone, its bytes as they are."""
        return self._messages[0] if len(self._messages) == 1 else None

    def halves(self) -> tuple[PublishBatch, PublishBatch]:
        """Two smaller batches, for a daemon that takes none of this size. The keys stay."""
        middle = len(self._messages) // 2
        left, right = self._messages[:middle], self._messages[middle:]
        make = partial(PublishBatch, self.queue, keys=False, trace=self.trace)
        return make(left), make(right)

    def call(self) -> Call[list[Outcome]]:
        """The request for the open entries."""
        return publish_batch(self.queue, [self._messages[number] for number in self._open], self.trace)

    def took(self, outcomes: list[Outcome]) -> bool:
        """Note the outcomes of the open entries. True when some were refused for now and may be sent again."""
        self._outcomes.update(zip(self._open, outcomes, strict=True))
        self._open = [number for number in self._open if self._may_go_again(number)]
        return bool(self._open)

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all entries, in their order."""
        return [self._outcomes[number] for number in range(len(self._messages))]

    def _may_go_again(self, number: int) -> bool:
        status = self._outcomes[number].status
        return status == 429 or (status == 503 and self._messages[number].key is not None)
