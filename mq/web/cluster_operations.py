"""Operations on a cluster: its nodes, under ``/-/cluster``, and its users, under ``/-/users``.

A user is a table as a users file has it: it holds hashes, and no secret, so none is sent. See :mod:`mq.access`. The
users of a node's own file are changed there alone.
"""

from __future__ import annotations

from typing import Final

from mq.access import Right
from mq.errors import InvalidRequest
from mq.web.exchange import NOT_CACHED, Reply, document, empty
from mq.web.operations import Operation, RequestContext, Success
from mq.web.request_body import read_object
from mq.web.schemas import as_json, record, reference


async def cluster(context: RequestContext) -> Reply:
    """The nodes of the cluster, and which is master."""
    found = context.broker.membership
    nodes, links = ([each._asdict() for each in some] for some in (found.nodes, found.links))
    return document(200, {**found._asdict(), "nodes": nodes, "links": links})


async def drain_node(context: RequestContext) -> Reply:
    """Hand over mastership, and take no new clients."""
    await context.broker.node_control.drain()
    return await cluster(context)


async def resume_node(context: RequestContext) -> Reply:
    """Take clients again."""
    await context.broker.node_control.resume()
    return await cluster(context)


async def replace_node(context: RequestContext) -> Reply:
    """Look for a neighbour elsewhere."""
    wanted = await read_object(context.request)
    values = [wanted.pop(key, None) for key in ("node", "address")]
    if wanted or not all(isinstance(value, str) for value in values):
        raise InvalidRequest('the request body must be {"node": "NAME", "address": "HOST:PORT"}')
    await context.broker.node_control.replace(*map(str, values))
    return await cluster(context)


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
        "/-/cluster",
        Right.MONITOR,
        cluster,
        "shows the nodes of the cluster and its master",
        {200: Success("the cluster from this node's view", as_json(reference("Cluster")))},
    ),
    Operation(
        "POST",
        "/-/cluster/drain",
        Right.ADMINISTER,
        drain_node,
        "drains this node: it hands over mastership and accepts no new clients",
        {200: Success("it does", as_json(reference("Cluster")))},
        refusals=(409, 503),
        audited={200: "node-drained"},
    ),
    Operation(
        "DELETE",
        "/-/cluster/drain",
        Right.ADMINISTER,
        resume_node,
        "ends draining: this node accepts clients again",
        {200: Success("it does", as_json(reference("Cluster")))},
        refusals=(409, 503),
        audited={200: "node-resumed"},
    ),
    Operation(
        "POST",
        "/-/cluster/replace",
        Right.ADMINISTER,
        replace_node,
        "sets the address of a replaced neighbor, also after a restart",
        {200: Success("from now on", as_json(reference("Cluster")))},
        refusals=(408, 409, 413, 503),
        body=as_json(reference("NodeMove")),
        audited={200: "node-replaced"},
    ),
    Operation(
        "GET",
        "/-/users",
        Right.ADMINISTER,
        users,
        "lists the cluster's users, with hashes of their secrets",
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
        "creates or replaces a user of the cluster",
        {200: Success("in effect on all member nodes")},
        refusals=(408, 409, 413, 503),
        body=as_json(reference("UserTable")),
        audited={200: "user-changed"},
    ),
    Operation(
        "DELETE",
        "/-/users/ACCOUNT",
        Right.ADMINISTER,
        delete_user,
        "deletes a user of the cluster",
        {200: Success("the user is refused on all member nodes")},
        refusals=(409, 503),
        audited={200: "user-removed"},
    ),
)
"""What an operator does with a cluster."""
