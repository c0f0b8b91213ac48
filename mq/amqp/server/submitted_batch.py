"""Published messages that are stored and answered together, and the errors of those that queues refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mq.amqp.model.arguments import OVERFLOW
from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import PublishedMessage
from mq.amqp.server.copies import Copy
from mq.amqp.server.message_codec import Publishable
from mq.errors import BodyTooLarge, MQError, NoSuchQueue, NotServed, PublishPaused, QueueFull

_UNSERVED: Final = (NotServed, PublishPaused)
_REFUSALS: Final = (QueueFull, BodyTooLarge, *_UNSERVED)


@dataclass(eq=False, slots=True)
class SubmittedBatch:
    """Messages that are stored and answered together, and the errors of those that are refused.

    Attributes:
        messages: in order.
        left: queues whose outcomes are not known.
        failed: copies that are not stored after the first try, and why.
        is_done: whether all messages are stored or refused.
        is_stored: whether every message is stored in all of the queues to which it was routed when it came.
        is_stuck: whether a task has to store the rest of it, before which no other batch begins.
    """

    messages: Sequence[PublishedMessage]
    left: int = 0
    failed: list[tuple[Copy, MQError]] = field(default_factory=list)
    is_done: bool = False
    is_stored: bool = True
    is_stuck: bool = False
    _routes: Mapping[int, tuple[Queue, ...]] = field(default_factory=dict)
    _refusals: list[tuple[int, MQError]] = field(default_factory=list)  # `id` of a message, and why a queue refused it

    def copies(self) -> list[Copy]:
        """Return a copy of each message for each of its queues, in order."""
        copies = [Copy(message, queue) for message in self.messages for queue in self._queues(message)]
        return [copy for copy in copies if not copy.queue.is_unrouted]

    def route(self, routes: Mapping[int, tuple[Queue, ...]]) -> None:
        """Set the queues of messages that could not be routed when they came, by the messages' `id`."""
        self._routes, self.is_stored = routes, False

    def refuse(self, message: Publishable, error: MQError) -> bool:
        """Note why a queue has not stored a message. False for an error that does not refuse it."""
        if not isinstance(error, (*_REFUSALS, NoSuchQueue)):
            return False
        self._refusals.append((id(message), error))
        self.is_stored = False
        return True

    def refuse_failed(self) -> bool:
        """Refuse the failed copies. False, and nothing is done, if one is to be dead-lettered or tried again."""
        if any(is_dead_lettered(*each) for each in self.failed):
            return False
        refusals = [(copy.publication, error) for copy, error in self.failed if self.refuse(copy.publication, error)]
        if len(refusals) < len(self.failed):
            self._refusals.clear()
            self.is_stored = True
            return False
        return True

    @property
    def why(self) -> str:
        """The last error that is not just a full queue's, or a deleted one's."""
        found = [error for _, error in self._refusals if isinstance(error, (BodyTooLarge, *_UNSERVED))]
        return str(found[-1]) if found else ""

    def refused(self) -> list[PublishedMessage]:
        """Return messages that a queue has refused, in order."""
        refused = self._ids(_REFUSALS)
        return [message for message in self.messages if id(message) in refused]

    def stored(self) -> list[PublishedMessage]:
        """Return all other messages, in order."""
        refused = self._ids(_REFUSALS)
        return [message for message in self.messages if id(message) not in refused]

    def beyond_nack(self) -> list[PublishedMessage]:
        """Return messages for which a nack would not help: their channel has no confirms, or no queue will ever take
        them."""
        too_large, unserved = self._ids((BodyTooLarge,)), self._ids(_UNSERVED)
        return [
            message
            for message in self.messages
            if id(message) in too_large or (id(message) in unserved and message.number is None)
        ]

    def unrouted(self) -> list[PublishedMessage]:
        """Return mandatory messages that are stored nowhere because all of their queues were deleted meanwhile."""
        unserved = self._ids(_UNSERVED)
        missing = Counter(id_ for id_, error in self._refusals if isinstance(error, NoSuchQueue))
        return [
            message
            for message in self.messages
            if message.mandatory and id(message) not in unserved and missing[id(message)] == len(self._queues(message))
        ]

    def _queues(self, message: PublishedMessage) -> Sequence[Queue]:
        return self._routes.get(id(message), message.queues)

    def _ids(self, kinds: tuple[type[MQError], ...]) -> set[int]:
        return {id_ for id_, error in self._refusals if isinstance(error, kinds)}


def is_dead_lettered(copy: Copy, error: MQError | None) -> bool:
    """Return whether a refused copy goes to a dead-letter exchange."""
    return isinstance(error, QueueFull) and copy.queue.arguments.get(OVERFLOW) == "reject-publish-dlx"
