"""Operations on the users of a cluster, under ``/-/users``. Those of a node's own file are changed there alone.

A user is a table as a users file has it: it holds hashes, and no secret, so none is sent. See :mod:`mq.access`.
"""

from __future__ import annotations

from typing import Final

from mq.access import Right
from mq.web.exchange import Reply, document, empty
from mq.web.operations import Operation, RequestContext, Success
from mq.web.replies import NOT_CACHED
from mq.web.request_body import read_object
from mq.web.schemas import as_json, record, reference


async def users(context: RequestContext) -> Reply:
    """The users of the cluster."""
    return document(200, {"users": context.broker.node_control.users()}, NOT_CACHED)


async def put_user(context: RequestContext) -> Reply:
    """Make a user of the cluster, or replace one."""
    await context.broker.node_control.put_user(context.id, await read_object(context.request))
    return empty(200)


async def delete_user(context: RequestContext) -> Reply:
    """Remove a user of the cluster."""
    await context.broker.node_control.drop_user(context.id)
    return empty(200)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/users",
        Right.ADMINISTER,
        users,
        "the users of the cluster, with hashes of their secrets",
        {
            200: Success(
                "by name",
                as_json(record({"users": {"type": "object", "additionalProperties": reference("UserTable")}})),
            )
        },
        refusals=(409,),
    ),
    Operation(
        "PUT",
        "/-/users/ACCOUNT",
        Right.ADMINISTER,
        put_user,
        "makes a user of the cluster, or replaces one",
        {200: Success("in effect at every node that is a member")},
        refusals=(408, 409, 413, 503),
        body=as_json(reference("UserTable")),
        audited={200: "user-changed"},
    ),
    Operation(
        "DELETE",
        "/-/users/ACCOUNT",
        Right.ADMINISTER,
        delete_user,
        "removes a user of the cluster",
        {200: Success("refused at every node that is a member")},
        refusals=(409, 503),
        audited={200: "user-removed"},
    ),
)
"""What an operator does with the users of a cluster."""
