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
from mq.amqp.server.link import ClientLink
from mq.amqp.wire.errors import Code, Refusal
from mq.doors.audit import note
from mq.lifecycle import made_for


async def in_order(link: ClientLink, do: Callable[[], Awaitable[Result]]) -> Result:
    """Do it after everything published before, and to its end, even if the connection ends meanwhile."""
    if not link.backlog.is_empty:
        await link.backlog.wait_until_empty()
    with link.state.broker.progress.shielded():
        return await do()


async def _change(link: ClientLink, plan: Callable[[], TopologyChange]) -> TopologyChange:
    """Change the topology, and write down what changed. Bindings that go with a queue or an exchange are not."""
    with made_for(owner_of(link.connection.session.user)):
        change = await link.state.topology_store.change(plan, link.memory)
    for exchange in change.exchanges:
        _note(link, "exchange-created", **_about(exchange))
    for queue in change.queues:
        _note(link, "queue-created", queue=queue.key)
    for binding in change.bindings:
        _note(link, "binding-created", **_about(binding))
    for queue in change.lost_queues:
        _note(link, "queue-deleted", queue=queue.key)
    for exchange in change.lost_exchanges:
        _note(link, "exchange-deleted", **_about(exchange))
    for binding in () if change.lost_queues or change.lost_exchanges else change.lost_bindings:
        _note(link, "binding-deleted", **_about(binding))
    return change


async def _declare_exchange(link: ClientLink, command: commands.DeclareExchange) -> Result:
    await _change(link, lambda: link.state.topology.declare_exchange(command.exchange))
    return Done()


async def _delete_exchange(link: ClientLink, command: commands.DeleteExchange) -> Result:
    name, if_unused = command.name, command.if_unused
    await _change(link, lambda: link.state.topology.delete_exchange(link.vhost, name, if_unused=if_unused))
    return Done()


async def _bind(link: ClientLink, command: commands.Bind) -> Result:
    await _change(link, lambda: link.state.topology.bind(command.binding, link.owner))
    return Done()


async def _unbind(link: ClientLink, command: commands.Unbind) -> Result:
    await _change(link, lambda: link.state.topology.unbind(command.binding, link.owner))
    return Done()


async def _declare_queue(link: ClientLink, command: commands.DeclareQueue) -> Result:
    wanted = _with_default_type(link, command.queue)
    if wanted.name:  # and before any other declaration has to wait for this one
        is_replicated = wanted.arguments.get(QUEUE_TYPE) == QUORUM
        await link.state.broker.declarations.admit(wanted.key, is_replicated=is_replicated)

    async def do() -> Result:
        change = await _change(link, lambda: link.state.topology.declare_queue(wanted))
        [queue] = change.queues or [link.state.topology.queue(link.vhost, wanted.name, link.owner)]
        link.state.unused.note_use(queue)
        return await _status(link, queue)

    return await in_order(link, do)


def _with_default_type(link: ClientLink, queue: Queue) -> Queue:
    """Return a quorum queue if the client names no type, and new queues of this node are the cluster's."""
    is_placed = QUEUE_TYPE in queue.arguments or not can_be_quorum(queue)
    if is_placed or not link.state.broker.declarations.replicates(queue.key):
        return queue
    return replace(queue, arguments={**queue.arguments, QUEUE_TYPE: QUORUM})


async def _find_queue(link: ClientLink, command: commands.FindQueue) -> Result:
    await link.state.broker.declarations.find(command.queue)
    return Done()


async def _inspect_queue(link: ClientLink, command: commands.InspectQueue) -> Result:
    async def do() -> Result:
        return await _status(link, command.queue)

    return await in_order(link, do)


async def _delete_queue(link: ClientLink, command: commands.DeleteQueue) -> Result:
    messages = 0

    def plan() -> TopologyChange:
        nonlocal messages
        topology, name = link.state.topology, command.name
        change = topology.delete_queue(link.vhost, name, link.owner, if_unused=command.if_unused)
        messages = sum(link.state.broker.declarations.ready(queue.key) for queue in change.lost_queues)
        if command.if_empty and messages:
            raise Refusal(Code.PRECONDITION_FAILED, f"queue '{name}' in vhost '{link.vhost}' is not empty")
        return change

    async def do() -> Result:
        await link.state.broker.declarations.look(encode(link.vhost, command.name))
        await _change(link, plan)
        return commands.Counted(messages)

    return await in_order(link, do)


async def _purge_queue(link: ClientLink, command: commands.PurgeQueue) -> Result:
    async def do() -> Result:
        count = await link.state.broker.purge(command.queue.key)
        _note(link, "queue-purged", queue=command.queue.key)
        return commands.Counted(count)

    return await in_order(link, do)


def _note(link: ClientLink, event: str, **about: str | None) -> None:
    session = link.connection.session
    user = None if session.user is None else session.user.name
    note(event, protocol="amqp", address=session.address, user=user, **about)


async def _status(link: ClientLink, queue: Queue) -> QueueDeclared:
    await link.state.broker.declarations.look(queue.key)
    ready = link.state.broker.declarations.ready(queue.key)
    return QueueDeclared(queue.name, ready, link.state.topology.consumers.count(queue.key))


def _about(declared: Exchange | Binding) -> dict[str, str | None]:
    """An exchange, or a binding's ends and key, for the audit log. The default vhost goes without saying."""
    vhost = None if declared.vhost == DEFAULT_VHOST else declared.vhost
    if isinstance(declared, Exchange):
        return {"vhost": vhost, "exchange": declared.name}
    to = None if declared.to.is_queue else declared.to.name
    ends = {"exchange": declared.source, "queue": declared.queue, "to_exchange": to}
    return {"vhost": vhost, **ends, "routing_key": declared.routing_key}


DECLARATIONS: Final[Mapping[type[Any], Callable[[ClientLink, Any], Awaitable[Result]]]] = {
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
