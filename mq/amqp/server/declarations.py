"""Exchanges, queues and bindings: each command that declares, changes or inspects one, carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from mq.access import owner_of
from mq.amqp.model.arguments import QUEUE_TYPE, QUORUM, can_be_quorum
from mq.amqp.model.declared import Binding, Exchange, Queue
from mq.amqp.model.names import DEFAULT_VHOST, encode
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import Done, QueueDeclared, Result
from mq.amqp.server.client_connection import ClientConnection
from mq.amqp.wire.errors import Code, Refusal
from mq.doors.audit import note
from mq.lifecycle import made_for


async def in_order(client: ClientConnection, do: Callable[[], Awaitable[Result]]) -> Result:
    """Do it after everything published before, and to its end, even if the connection ends meanwhile."""
    await client.wait_until_stored()
    with client.state.broker.progress.shielded():
        return await do()


async def _change(client: ClientConnection, plan: Callable[[], TopologyChange]) -> TopologyChange:
    """Change the topology, and write down what changed. Bindings that go with a queue or an exchange are not."""
    with made_for(owner_of(client.connection.session.user)):
        change = await client.state.topology_store.change(plan, client.memory)
    for exchange in change.exchanges:
        _note(client, "exchange-created", **_about(exchange))
    for queue in change.queues:
        _note(client, "queue-created", queue=queue.key)
    for binding in change.bindings:
        _note(client, "binding-created", **_about(binding))
    for queue in change.lost_queues:
        _note(client, "queue-deleted", queue=queue.key)
    for exchange in change.lost_exchanges:
        _note(client, "exchange-deleted", **_about(exchange))
    for binding in () if change.lost_queues or change.lost_exchanges else change.lost_bindings:
        _note(client, "binding-deleted", **_about(binding))
    return change


async def _declare_exchange(client: ClientConnection, command: commands.DeclareExchange) -> Result:
    await _change(client, lambda: client.state.topology.declare_exchange(command.exchange))
    return Done()


async def _delete_exchange(client: ClientConnection, command: commands.DeleteExchange) -> Result:
    name, if_unused = command.name, command.if_unused
    await _change(client, lambda: client.state.topology.delete_exchange(client.vhost, name, if_unused=if_unused))
    return Done()


async def _bind(client: ClientConnection, command: commands.Bind) -> Result:
    await _change(client, lambda: client.state.topology.bind(command.binding, client.owner))
    return Done()


async def _unbind(client: ClientConnection, command: commands.Unbind) -> Result:
    await _change(client, lambda: client.state.topology.unbind(command.binding, client.owner))
    return Done()


async def _declare_queue(client: ClientConnection, command: commands.DeclareQueue) -> Result:
    wanted = _with_default_type(client, command.queue)
    if wanted.name:  # and before any other declaration has to wait for this one
        is_replicated = wanted.arguments.get(QUEUE_TYPE) == QUORUM
        await client.state.broker.declarations.admit(wanted.key, is_replicated=is_replicated)

    async def do() -> Result:
        change = await _change(client, lambda: client.state.topology.declare_queue(wanted))
        [queue] = change.queues or [client.state.topology.queue(client.vhost, wanted.name, client.owner)]
        client.state.unused.note_use(queue)
        return await _status(client, queue)

    return await in_order(client, do)


def _with_default_type(client: ClientConnection, queue: Queue) -> Queue:
    """Return a quorum queue if the client names no type, and new queues of this node are the cluster's."""
    is_placed = QUEUE_TYPE in queue.arguments or not can_be_quorum(queue)
    if is_placed or not client.state.broker.declarations.replicates(queue.key):
        return queue
    return replace(queue, arguments={**queue.arguments, QUEUE_TYPE: QUORUM})


async def _find_queue(client: ClientConnection, command: commands.FindQueue) -> Result:
    await client.state.broker.declarations.find(command.queue)
    return Done()


async def _inspect_queue(client: ClientConnection, command: commands.InspectQueue) -> Result:
    return await in_order(client, lambda: _status(client, command.queue))


async def _delete_queue(client: ClientConnection, command: commands.DeleteQueue) -> Result:
    messages = 0

    def plan() -> TopologyChange:
        nonlocal messages
        topology, name = client.state.topology, command.name
        change = topology.delete_queue(client.vhost, name, client.owner, if_unused=command.if_unused)
        messages = sum(client.state.broker.declarations.ready(queue.key) for queue in change.lost_queues)
        if command.if_empty and messages:
            raise Refusal(Code.PRECONDITION_FAILED, f"queue '{name}' in vhost '{client.vhost}' is not empty")
        return change

    async def do() -> Result:
        await client.state.broker.declarations.look(encode(client.vhost, command.name))
        await _change(client, plan)
        return commands.Counted(messages)

    return await in_order(client, do)


async def _purge_queue(client: ClientConnection, command: commands.PurgeQueue) -> Result:
    async def do() -> Result:
        count = await client.state.broker.purge(command.queue.key)
        _note(client, "queue-purged", queue=command.queue.key)
        return commands.Counted(count)

    return await in_order(client, do)


def _note(client: ClientConnection, event: str, **about: str | None) -> None:
    session = client.connection.session
    user = None if session.user is None else session.user.name
    note(event, protocol="amqp", address=session.address, user=user, **about)


async def _status(client: ClientConnection, queue: Queue) -> QueueDeclared:
    await client.state.broker.declarations.look(queue.key)
    ready = client.state.broker.declarations.ready(queue.key)
    return QueueDeclared(queue.name, ready, client.state.topology.consumers.count(queue.key))


def _about(declared: Exchange | Binding) -> dict[str, str | None]:
    """An exchange, or a binding's ends and key, for the audit log. The default vhost goes without saying."""
    vhost = None if declared.vhost == DEFAULT_VHOST else declared.vhost
    if isinstance(declared, Exchange):
        return {"vhost": vhost, "exchange": declared.name}
    to = None if declared.to.is_queue else declared.to.name
    ends = {"exchange": declared.source, "queue": declared.queue, "to_exchange": to}
    return {"vhost": vhost, **ends, "routing_key": declared.routing_key}


DECLARATIONS: Final[Mapping[type[Any], Callable[[ClientConnection, Any], Awaitable[Result]]]] = {
    commands.DeclareExchange: _declare_exchange,
    commands.DeleteExchange: _delete_exchange,
    commands.Bind: _bind,
    commands.Unbind: _unbind,
    commands.DeclareQueue: _declare_queue,
    commands.FindQueue: _find_queue,
    commands.InspectQueue: _inspect_queue,
    commands.DeleteQueue: _delete_queue,
    commands.PurgeQueue: _purge_queue,
}
"""Command -> what carries it out."""
