"""Message move tasks: messages of a dead-letter queue go back to where they died, or elsewhere, while the client does
other things.

A task that runs is a record of the store, so it goes on after a restart of the daemon; what it had moved stays moved.
Tasks that are over are remembered as long as the daemon lives. Among peers there are no records: two of them would go
on with one task.
"""

from __future__ import annotations

import base64
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from mq.broker.api import BrokerAPI
from mq.broker.queues import LARGEST_SLICE
from mq.errors import MQError, QueueFull, StorageError
from mq.quantities import show_count
from mq.sqs.errors import SqsError

logger = logging.getLogger(__name__)

KIND: Final = "sqs-move"
"""Of the records: the key is the source queue."""
MOST_SHOWN: Final = 10
"""Tasks of one queue that are remembered."""
MOST_QUEUES: Final = 1000
"""Queues whose tasks are remembered."""
RUNNING: Final = "RUNNING"
COMPLETED: Final = "COMPLETED"
CANCELLED: Final = "CANCELLED"
FAILED: Final = "FAILED"
_STALL_SECONDS: Final = 1.0
"""The unit of a task's speed."""


class MoveTask:
    """One task.

    Args:
        target: the queue to move them to; None for those in which they died.
        per_second: how many at the most; None for no limit.
        to_move: how many there were at its start.

    Attributes:
        status: :data:`RUNNING` or what became of it.
    """

    def __init__(self, source: str, target: str | None, per_second: int | None, to_move: int) -> None:
        self.source = source
        self.target = target
        self.per_second = per_second
        self.to_move = to_move
        self.status = RUNNING
        self.moved = 0
        self.reason = ""
        self.started_ms = time.time_ns() // 1_000_000
        self.handle = base64.urlsafe_b64encode(f"{secrets.token_hex(16)}:{source}".encode()).decode()
        self.scope = trio.CancelScope()

    def kept(self) -> dict[str, Any]:
        """The record of the task, as JSON values."""
        names = ("target", "per_second", "to_move", "started_ms", "handle")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def restored(cls, source: str, kept: Mapping[str, Any]) -> MoveTask:
        """A task from its record."""
        task = cls(source, kept["target"], kept["per_second"], kept["to_move"])
        task.started_ms, task.handle = kept["started_ms"], kept["handle"]
        return task

    async def run(self, broker: BrokerAPI) -> None:
        """Move until no message is left that can be moved."""
        with self.scope:
            try:
                await self._move_all(broker)
                self.status = COMPLETED
            except MQError as error:
                self.status, self.reason = FAILED, " ".join(str(error).split())
        if self.status == RUNNING:
            self.status = CANCELLED

    async def _move_all(self, broker: BrokerAPI) -> None:
        while True:
            done = await broker.redrive(self.source, self.target, self.per_second or LARGEST_SLICE)
            self.moved += done.moved
            if not done.moved and done.left:
                raise QueueFull(
                    f"{show_count(done.left, 'message')} could not be moved, because the destination queue is full or "
                    "no longer exists"
                )
            if not done.moved:
                return
            await trio.sleep(0 if self.per_second is None else _STALL_SECONDS)

    def shown(self) -> dict[str, Any]:
        """As ListMessageMoveTasks answers it, without its ARNs."""
        said: dict[str, Any] = {"Status": self.status}
        if self.status == RUNNING:
            said["TaskHandle"] = self.handle
        if self.per_second is not None:
            said["MaxNumberOfMessagesPerSecond"] = self.per_second
        said["ApproximateNumberOfMessagesMoved"] = self.moved
        said["ApproximateNumberOfMessagesToMove"] = self.to_move
        if self.reason:
            said["FailureReason"] = self.reason
        return said | {"StartedTimestamp": self.started_ms}


class MoveTasks:
    """The tasks of a daemon."""

    def __init__(self, broker: BrokerAPI, nursery: trio.Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self._of_queue: dict[str, deque[MoveTask]] = {}
        self._is_kept = not broker.description.shared
        self._is_ending = False

    async def resume(self) -> None:
        """Go on with the tasks that were running when the daemon ended."""
        try:
            records = await self._broker.declarations.records(KIND) if self._is_kept else {}
        except StorageError as error:
            logger.warning("cannot resume the message move tasks that were interrupted when mq stopped: %s", error)
            return
        for source in sorted(records):
            task = MoveTask.restored(source, records[source])
            with suppress(MQError):  # without its queue it fails
                task.moved = max(0, task.to_move - (await self._broker.status(source)).ready)
            if source not in self._of_queue:  # else a client was faster
                self._admit(task)
                self._nursery.start_soon(self._run, task)

    async def start(self, task: MoveTask) -> None:
        """Start a task. It goes on over restarts once this returns.

        Raises:
            SqsError: one of that queue is running, or too many queues have some.
        """
        self._admit(task)
        if self._is_kept:
            try:
                await self._broker.declarations.put(KIND, task.source, task.kept())
            except BaseException:
                task.status = FAILED
                raise
        self._nursery.start_soon(self._run, task)

    async def cancel(self, task: MoveTask) -> None:
        """End a task, for good.

        Raises:
            StorageError: it would go on after a restart.
        """
        await self._forget(task)
        task.scope.cancel()

    def _admit(self, task: MoveTask) -> None:
        """Take a task into the list of its queue."""
        tasks = self._of_queue.get(task.source)
        if tasks and tasks[0].status == RUNNING:
            raise SqsError(
                "UnsupportedOperation", "There is already a task running. A source queue can have one task at a time."
            )
        if tasks is None and len(self._of_queue) >= MOST_QUEUES:
            self._forget_one()
        self._of_queue.setdefault(task.source, deque(maxlen=MOST_SHOWN)).appendleft(task)

    async def _run(self, task: MoveTask) -> None:
        await task.run(self._broker)
        if not self._is_ending:
            with suppress(MQError):  # at worst it goes on after a restart, and finds nothing
                await self._forget(task)

    async def _forget(self, task: MoveTask) -> None:
        """Drop the record of a task; another one of its queue may have one by then."""
        tasks = self._of_queue.get(task.source)
        if self._is_kept and (not tasks or tasks[0] is task):
            await self._broker.declarations.drop(KIND, task.source)

    def of_queue(self, source: str) -> list[MoveTask]:
        """The tasks of a queue, the latest first."""
        return list(self._of_queue.get(source, ()))

    def running(self, handle: str) -> MoveTask:
        """The running task of that handle.

        Raises:
            SqsError: there is none.
        """
        for tasks in self._of_queue.values():
            if tasks[0].handle == handle and tasks[0].status == RUNNING:
                return tasks[0]
        raise SqsError("ResourceNotFoundException", "The task does not exist or has finished.")

    def end(self) -> None:
        """Cancel all tasks: mq stops."""
        self._is_ending = True
        for tasks in self._of_queue.values():
            tasks[0].scope.cancel()

    def _forget_one(self) -> None:
        over = next((source for source, tasks in self._of_queue.items() if tasks[0].status != RUNNING), None)
        if over is None:
            raise SqsError("RequestThrottled", "too many message move tasks are running. Try again later")
        del self._of_queue[over]
