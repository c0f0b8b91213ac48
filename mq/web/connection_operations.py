"""Operations on connections, under ``/-/``: list them, list their consumers, close one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from mq.access import Right
from mq.broker.settings import SettingKind
from mq.doors.open_connections import OpenConnection
from mq.message import shorten
from mq.web.exchange import Reply, document, empty, problem
from mq.web.http_connection import CONNECTION
from mq.web.operations import Operation, Parameter, RequestContext, Success
from mq.web.parameters import LARGEST_BATCH, MOST
from mq.web.replies import NOT_CACHED
from mq.web.schemas import COUNT, TEXT, as_json, or_null, record, reference

LOOKED_AT_TOGETHER: Final = 64
"""Connections that are looked at in one step of the event loop: a look takes about 10 µs."""
MOST_DECLARED: Final = 1000
"""Exchanges, bindings and ways of dead letters that are shown, of each."""
CLOSED: Final = "an operator closed the connection"


async def connections(context: RequestContext) -> Reply:
    """The open connections."""

    def shown(id: str, connection: OpenConnection) -> list[dict[str, Any]]:
        status = connection.status()
        channels = [channel._asdict() for channel in status.channels]
        return [{"id": id, **_rounded(status._asdict()), "channels": channels}]

    return await _page(context, "connections", shown)


async def consumers_at_work(context: RequestContext) -> Reply:
    """The consumers, and the requests that wait for messages."""

    def shown(id: str, connection: OpenConnection) -> list[dict[str, Any]]:
        found = connection.consumers()
        if not found:
            return []
        status = connection.status()
        whose = {"connection": id, "door": status.door, "user": status.user, "address": status.address}
        return [{**whose, **_rounded(consumer._asdict())} for consumer in found]

    return await _page(context, "consumers", shown)


async def close_connection(context: RequestContext) -> Reply:
    """End a connection. The connection of this request ends with the answer."""
    found = context.connections.find(context.id)
    if found is None:
        return problem(
            404, f"no connection {shorten(context.id)} is open here: GET /-/connections lists those that are"
        )
    if found is CONNECTION.get():
        return empty(200)._replace(is_last=True)
    found.close(CLOSED)
    return empty(200)


async def exchanges(context: RequestContext) -> Reply:
    """What is declared over AMQP."""
    found = context.overview.exchanges.now()
    shown = {name: [each._asdict() for each in told[:MOST_DECLARED]] for name, told in found._asdict().items()}
    there = {name: len(told) for name, told in found._asdict().items()}
    return document(200, {"there": there, **shown}, NOT_CACHED)


async def _page(
    context: RequestContext, name: str, shown: Callable[[str, OpenConnection], list[dict[str, Any]]]
) -> Reply:
    """One page of what connections show; those of one connection stay together."""
    after, most = context.query["after"], context.query["max"]
    found: list[dict[str, Any]] = []
    last: str | None = None
    next_after: str | None = None
    open_now = [each for each in context.connections.all() if after is None or _number(each[0]) > _number(after)]
    for count, (id, connection) in enumerate(open_now, 1):
        if len(found) >= most:
            next_after = last
            break
        found += shown(id, connection)
        last = id
        if count % LOOKED_AT_TOGETHER == 0:
            await trio.lowlevel.checkpoint()
    return document(200, {"open": len(context.connections.all()), name: found, "next": next_after}, NOT_CACHED)


def _number(id: str) -> int:
    return int(id.rpartition("-")[2])


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def _parse_connection(value: Any) -> str:
    prefix, dash, number = str(value).partition("-")
    if not (prefix and dash and number.isascii() and number.isdigit() and len(number) < 19):
        raise ValueError
    return str(value)


_PAGING: Final = (
    Parameter("max", MOST, "how many at the most", LARGEST_BATCH),
    Parameter(
        "after",
        SettingKind(_parse_connection, "a connection's id", {"type": "string", "pattern": "^[^-]+-[0-9]{1,18}$"}),
        "go on behind this connection",
    ),
)


def _listed(name: str, schema: str) -> Any:
    items = {"type": "array", "items": reference(schema)}
    return as_json(record({"open": COUNT, name: items, "next": or_null(TEXT)}))


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/connections",
        Right.MONITOR,
        connections,
        "who is connected, at all doors of this daemon",
        {200: Success("the oldest first", _listed("connections", "Connection"))},
        query=_PAGING,
    ),
    Operation(
        "DELETE",
        "/-/connections/CONNECTION",
        Right.ADMINISTER,
        close_connection,
        "closes a connection",
        {200: Success("it ends")},
        refusals=(404,),
        audited={200: "connection-closed"},
    ),
    Operation(
        "GET",
        "/-/consumers",
        Right.MONITOR,
        consumers_at_work,
        "who consumes over AMQP, and which requests wait for messages",
        {200: Success("by connection, the oldest first", _listed("consumers", "ConsumerAtWork"))},
        query=_PAGING,
    ),
    Operation(
        "GET",
        "/-/exchanges",
        Right.MONITOR,
        exchanges,
        "exchanges and bindings that are declared over AMQP, and where dead letters go by them",
        {200: Success("at most 1,000 of each", as_json(reference("Declared")))},
    ),
)
"""What there is to see of connections."""
