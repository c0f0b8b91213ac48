"""Claims as programs and doors ask for them: by the name of a queue, of a broker that is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mq.broker.asked import Asked
from mq.broker.claims import LARGEST_CLAIM, Batch, Claims, Standing
from mq.broker.index import QueueIndex
from mq.broker.queue_settings import QUEUE, VISIBILITY, check_value, count
from mq.message import Message

CLAIM_SECONDS = 900.0
"""How long a claim's lease lasts where nobody says otherwise."""


class Claiming:
    """Consumers that take batch after batch, and can read the last one again. Got as :attr:`Broker.claims`.

    A consumer is started, which tells an epoch; it claims a batch, reads it as often as it likes, acknowledges it, and
    claims the next. Whoever starts a consumer of the same name shuts the one before out. Everything raises
    :class:`~mq.errors.NoSuchQueue` where there is no such queue, and :class:`~mq.errors.Conflict` on a store that
    other brokers change, too.

    Args:
        claims: does it.
        look_up: gives a queue.
        asked: keeps the broker from ending meanwhile.
    """

    def __init__(
        self,
        claims: Claims,
        look_up: Callable[[str], Awaitable[QueueIndex]],
        asked: Asked,
    ) -> None:
        self._claims = claims
        self._look_up = look_up
        self._asked = asked

    async def consumers(self, queue: str) -> list[Standing]:
        """Every consumer of a queue, by name."""
        return self._claims.all(await self._look_up(queue))

    async def consumer(self, queue: str, name: str) -> Standing:
        """How far a consumer is; one that nobody has started is at the beginning."""
        return self._claims.standing(await self._look_up(queue), _checked(name))

    async def start(self, queue: str, name: str) -> Standing:
        """Begin to consume, or go on where the consumer was. Durable on return; whoever did so before under this name
        is shut out.

        Raises:
            InvalidSetting: the name is none.
            Conflict: the queue has too many consumers.
        """
        with self._asked:
            return await self._claims.start(await self._look_up(queue), _checked(name))

    async def claim(
        self,
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = LARGEST_CLAIM,
        most_bytes: int | None = None,
        up_to: int | None = None,
        lease: float = CLAIM_SECONDS,
    ) -> Batch | None:
        """Make a claim, or get the one that there is; None when there is nothing to claim. Durable on return.

        Asked for again it has the same messages, is leased again where that had ended, and is renewed.

        Args:
            queue: the queue's name.
            name: the consumer.
            batch: the claim's number: the one after the last that was acknowledged.
            epoch: as :meth:`start` told it.
            most: how many messages a new claim gets at the most.
            most_bytes: how many bytes their bodies have together, but for a single longer one.
            up_to: the greatest sequence that a new claim may have.
            lease: seconds until its messages are there for others.

        Raises:
            InvalidSetting: a number is out of its range.
            Conflict: another epoch has begun; or it is not this batch's turn.
            QueueHeld: one consumer alone has the queue's messages.
        """
        check_value("max", most, count(LARGEST_CLAIM))
        check_value("lease", lease, VISIBILITY)
        with self._asked:
            index = await self._look_up(queue)
            return await self._claims.claim(
                index, name, batch, epoch, most=most, most_bytes=most_bytes, up_to=up_to, seconds=lease
            )

    async def read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int
    ) -> list[tuple[int, Message]]:
        """Messages of an open claim, each with its sequence: from place `start` to before `stop`, at most 500.

        However often it is read, a place has the same message. Close the bodies.

        Raises:
            Conflict: another epoch has begun; or that claim is not open.
            ReceiptMismatch: the claim's lease has ended. Claim it again.
        """
        with self._asked:
            return await self._claims.read(await self._look_up(queue), name, batch, epoch, start, stop)

    async def acknowledge(self, queue: str, name: str, batch: int, epoch: int) -> None:
        """Remove the messages of a claim for good: all or, when it raises, all or none. May be repeated.

        Raises:
            Conflict: another epoch has begun; or no such claim was made.
        """
        with self._asked:
            await self._claims.acknowledge(await self._look_up(queue), name, batch, epoch)

    async def forget(self, queue: str, name: str) -> None:
        """Let go of a consumer: what it has claimed is there for others at once."""
        with self._asked:
            await self._claims.forget(await self._look_up(queue), name)


def _checked(name: str) -> str:
    return str(check_value("consumer", name, QUEUE))
