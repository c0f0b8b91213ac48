"""The channel on which messages go out, each until it is confirmed."""

from __future__ import annotations

from pamqp import commands as methods

from mq.amqp.errors import Refused
from mq.amqp.properties import Properties
from mq.client.amqp.channels import Channel, Waiting, Why
from mq.client.amqp.confirms import Confirms
from mq.client.amqp.errors import NotConfirmed, refusal
from mq.client.amqp.events import ChannelRefused, Confirmed, Returned
from mq.client.amqp.link import Link
from mq.client.errors import Interrupted, NotFound


class Publication(Waiting):
    """A message that went out.

    Attributes:
        queue: where to.
        message_id: by which it is known again when the server sends it back.
        returned: why the server had no queue for it; "" while it has not said so.
    """

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__()
        self.queue = queue
        self.message_id = message_id
        self.returned = ""


class Publishing(Channel):
    """Messages out, confirms in. The channel is in confirm mode once :meth:`begin` has returned."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self._confirms: Confirms[Publication] = Confirms()

    async def begin(self) -> None:
        """Ask for confirms."""
        await self.ask(methods.Confirm.Select)

    async def publish(self, queue: str, message_id: str, properties: bytes, body: bytes) -> None:
        """Send a message, and wait until the server has kept it.

        Raises:
            NotFound: no such queue.
            NotConfirmed: the server did not keep it.
            Refused: the server closed the channel over it.
            Interrupted: the channel or the connection ended before its confirm came.
        """
        self.check()
        self._link.publish(self.number, queue, properties, body)
        publication = Publication(queue, message_id)
        self._confirms.published(publication)
        await publication.result()

    def returned(self, message: Returned) -> None:
        """There is no queue for it. Its confirm comes after that."""
        message_id = _message_id(message.properties)
        for publication in self._confirms:
            if publication.message_id == message_id:
                publication.returned = message.text

    def confirmed(self, confirm: Confirmed) -> None:
        """One message, or all up to it."""
        for publication in self._confirms.settle(confirm.sequence, multiple=confirm.multiple):
            if publication.returned:
                publication.fail(_no_queue(publication))
            elif not confirm.is_kept:
                publication.fail(_not_kept(publication))
            else:
                publication.answer(None)

    def refused(self, event: ChannelRefused) -> None:
        """The server does not say which message it closed the channel over: with one, it is that."""
        waiting = self._confirms.drain()
        for publication in waiting:
            if len(waiting) == 1:
                publication.fail(lambda: refusal(event.code, event.text))
            else:
                publication.fail(lambda: Interrupted(f"one of {len(waiting)} messages was refused: {event.text}"))
        super().refused(event)

    def end(self, why: Why) -> None:
        """Whatever is not confirmed may be kept or lost."""
        super().end(why)
        for publication in self._confirms.drain():
            publication.fail(why)


def _message_id(properties: bytes) -> str:
    try:
        return Properties(properties).text("message_id")
    except Refused:
        return ""


def _no_queue(publication: Publication) -> Why:
    return lambda: NotFound(312, f"no queue {publication.queue!r}: the message was not kept ({publication.returned})")


def _not_kept(publication: Publication) -> Why:
    return lambda: NotConfirmed(f"queue {publication.queue!r} did not take the message: it, or its store, is full")
