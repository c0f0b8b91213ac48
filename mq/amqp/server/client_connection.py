"""The base of a served connection, as its channels, consumers and publishes see it: write, start tasks, end."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from contextvars import copy_context
from functools import partial
from typing import Any

import trio

from mq.amqp.model.names import DEFAULT_VHOST
from mq.amqp.protocol.connection import Connection, ConnectionState
from mq.amqp.server.backlog import ConnectionBacklog
from mq.amqp.server.client_socket import ClientSocket
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.errors import Code, Refusal
from mq.broker.fairness import SOURCE
from mq.doors.budget import Use
from mq.doors.connections import Peer
from mq.doors.listeners import TLSStream
from mq.errors import MQError

logger = logging.getLogger("mq.amqp")


class ClientConnection(ABC):
    """The part of a client's connection that its channels, consumers and publishes use.

    They write to the client through it, start tasks of the connection, and close it after an error.
    :class:`~mq.amqp.server.served_connection.ServedConnection` completes it: it reads and carries out commands.

    Attributes:
        connection: the protocol, without a socket.
        send_answers: sends what completions have written. It never raises.
    """

    def __init__(self, state: AmqpState, stream: trio.SocketStream | TLSStream, peer: Peer, version: str) -> None:
        self.state = state
        self.peer = peer
        self.now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self.connection = Connection(state.topology, self, self.now, state.limits, version)
        session = self.connection.session
        session.address = peer.address
        session.closed_to = state.closed_to
        session.check_connection = state.quotas.check_connection
        session.longest_body = state.broker.longest_body
        session.denied = self._note_denied
        self.memory = state.memory.client(str(peer), self._drop)
        session.use_memory(self.memory)
        self.socket = ClientSocket(
            stream, peer, self.memory.reserve(Use.DELIVERY), self._start_writing, self._stop_reading
        )
        self.backlog = ConnectionBacklog(state.backlog, state.broker.progress, self.memory.reserve(Use.BACKLOG))
        self.send_answers = partial(self.complete, self.flush)
        self.source = object()
        self.context = copy_context()
        self.context.run(SOURCE.set, self.source)
        self.nursery: trio.Nursery | None = None
        self.reading = trio.CancelScope()
        self.sleep = trio.CancelScope()
        self.sleeps_until = math.inf
        self._was_open = False  # at the last flush

    @property
    def vhost(self) -> str:
        """The vhost of the connection."""
        return self.connection.session.vhost

    @property
    def owner(self) -> Hashable:
        """The owner of the client's exclusive queues."""
        return self.connection.session.owner

    @abstractmethod
    async def work_again(self) -> None:
        """Carry out what a close from this side has left to do."""

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of this connection, unless it has ended. The caller may be a completion, in another task."""
        if self.nursery is not None:
            self.context.copy().run(self.nursery.start_soon, work, *args)

    # Writing

    def flush(self) -> None:
        """Send what was written."""
        if self.backlog.why_full:
            self.connection.block(self.backlog.why_full)
        elif self.backlog.is_ahead:
            self.connection.block("publishing faster than the store can write")
        elif self.connection.is_blocked:
            self.connection.unblock()
        data = self.connection.outgoing()
        if data:
            self.socket.send(data, is_last=self.connection.state is ConnectionState.LEFT)
        was_open, self._was_open = self._was_open, self.connection.state is ConnectionState.OPEN
        if not (was_open and self._was_open):  # else it wakes later and later
            wake_at = self.connection.wake_at()
            if wake_at < self.sleeps_until:
                self.sleeps_until = self.sleep.deadline = wake_at

    def _start_writing(self) -> None:
        self.start(self.socket.write)

    def _stop_reading(self) -> None:
        self.reading.cancel()

    def _drop(self) -> None:
        self.socket.drop()

    # Errors

    def fail(self, refusal: Refusal) -> None:
        """Close the connection after a command without an answer failed, so that the client knows."""
        code = refusal.code if refusal.closes_connection else Code.INTERNAL_ERROR
        self.connection.close(code, str(refusal))
        self.start(self.work_again)

    def complete(self, completion: Callable[..., None], *args: Any) -> None:
        """Call a completion. One that raises ends this connection, and not the save worker that calls it."""
        try:
            completion(*args)
        except Exception as error:  # noqa: BLE001 - it is logged, and ends the connection alone
            self.end_after_error(error)

    def end_after_error(self, error: Exception) -> None:
        """Log an internal error, and end the connection."""
        logger.error("disconnecting AMQP client %s after an internal error", self.peer, exc_info=error)
        self.fail(Refusal(Code.INTERNAL_ERROR, "mq could not respond because of an internal error; see the mq log"))

    def log_left(self, error: MQError) -> None:
        """Log that the end of the connection could not do all of its work."""
        logger.warning("cannot clean up after AMQP client %s: %s", self.peer, error)

    def _note_denied(self, right: str, what: str, name: str | None) -> None:
        session = self.connection.session
        if session.user is not None:
            vhost = None if session.vhost == DEFAULT_VHOST else session.vhost
            about = {"right": right, "vhost": vhost, what: name}
            self.state.note_denied(session.address, session.user, **about)
