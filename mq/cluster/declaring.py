"""What a node's doors declare: queues of its own, or of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mq.amqp.arguments import EXPIRES
from mq.broker import Broker
from mq.broker.heirs import Heir
from mq.cluster.directory import Directory
from mq.cluster.remote import Remote
from mq.cluster.sessions import Sessions
from mq.errors import Conflict
from mq.message import QueueName


class JointDeclarations:
    """As :class:`~mq.broker.declarations.Declarations`, for both kinds of queues. A name that is here is not looked for
    in the cluster."""

    def __init__(self, local: Broker, remote: Remote, directory: Directory, sessions: Sessions) -> None:
        self._local = local.declarations
        self._remote = remote
        self._directory = directory
        self._sessions = sessions
        self._ready: dict[str, int] = {}
        self.heir: Heir | None = None

    def knows(self, queue: str) -> bool:
        """Whether there is such a queue, as far as is known here; or one that links use."""
        return self._local.knows(queue) or queue in self._directory.queues or self._sessions.owns(queue)

    def ready(self, queue: str) -> int:
        """How many messages there were when it was last looked (:meth:`look`)."""
        return self._ready.pop(queue, 0) if self.is_remote(queue) else self._local.ready(queue)

    async def look(self, queue: str) -> None:
        """Let :meth:`ready` be right, once."""
        if self.is_remote(queue):
            self._ready[queue] = await self._remote.ready(queue)

    def is_remote(self, queue: str) -> bool:
        """Whether a queue is the cluster's, as far as is known here."""
        return queue in self._directory.queues and not self._local.knows(queue)

    async def is_there(self, queue: str) -> bool:
        """Whether the cluster has a queue, which the master may know a moment before it is known here."""
        if queue not in self._directory.queues and await self._remote.has_queue(queue):
            self._directory.opened(queue, None)
        return queue in self._directory.queues

    def queues(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The queues that something was declared of, and what."""
        yield from self._local.queues()
        for name, declared in self._directory.queues.items():
            if declared is not None and not self._local.knows(name):
                yield name, declared

    async def create(
        self,
        queue: QueueName,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        *,
        is_transient: bool,
        is_replicated: bool = False,
    ) -> bool:
        """Make a queue, here or in the cluster."""
        if not is_replicated:
            if not is_transient and self._directory.place is not None and await self.is_there(queue):
                raise Conflict(f"queue {queue} is there already, and highly available")
            return await self._local.create(queue, settings, declared, is_transient=is_transient)
        _check_lasting(queue, declared or {})
        made = await self._remote.declare(queue, settings, declared)
        self._directory.opened(queue, declared)  # whoever made it uses it before the master has told of it
        return made

    def on_closed(self, told: Callable[[str], None]) -> None:
        """Let somebody know of queues that are no more."""
        self._local.on_closed(told)
        self._directory.on_closed(told)

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Let somebody know of queues that were declared on other nodes."""
        self._directory.on_opened(told)

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None:
        """Let somebody know of queues whose consumers have to begin anew."""
        self._directory.on_failover(told)

    def inherit(self, heir: Heir) -> None:
        """Let a door send on what dies, here and while this node is master."""
        self.heir = heir
        self._local.inherit(heir)

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep a record of this node's."""
        await self._local.put(kind, key, value)

    async def drop(self, kind: str, key: str) -> None:
        """Forget a record of this node's; not as long as nobody has said which queues the cluster has: what seems to
        belong to none may belong to one of these."""
        if self._directory.term:
            await self._local.drop(kind, key)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of this node's of a kind."""
        return await self._local.records(kind)


def _check_lasting(queue: str, declared: Mapping[str, Any]) -> None:
    """No node knows who uses a queue at the others, so none can know when nobody does any more.

    Raises:
        Conflict: it is to end then.
    """
    if declared.get("auto_delete") or EXPIRES in declared.get("arguments", {}):
        raise Conflict(f"queue {queue} is highly available: it cannot be auto-delete, nor have {EXPIRES}")
