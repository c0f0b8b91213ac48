"""Claims: a consumer takes batch after batch of a queue, each of them known by its number until it is acknowledged.

For consumers that must be able to read a batch again: a restarted one asks for the number that it had, and gets the
same messages. What a claim holds is durable in the consumer's record *before* the messages are leased, so a crash in
between leaves a claim that the next asking completes. An acknowledgement is durable there, too, before the messages are
removed: all of them go, or none. Leases end by themselves, as everybody's do; who asks again gets what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple

import trio

from mq.broker.claimed import LONGEST_SLICE, Claimed
from mq.broker.consumers import Claim, Consumer, Consumers
from mq.broker.consumers import State as Durable
from mq.broker.index import QueueIndex
from mq.broker.keys import Settle
from mq.broker.upkeep import Upkeep
from mq.errors import Conflict, NoSuchQueue, QueueHeld
from mq.lifecycle import Kind, State
from mq.message import Message, MessageIds
from mq.storage.interface import Entry

LARGEST_CLAIM: Final = 10_000
"""Messages of one claim at the most: their ids are one record."""
_WORTH_RENEWING: Final = 0.75
"""A lease of which more than this is left is not renewed: to do so moves every message."""


class Batch(NamedTuple):
    """A claim, as it stands.

    Attributes:
        batch: its number.
        messages: how many messages it has.
        lost: how many it had before, whose lease ended, and which are not to be had any more.
        first: the least sequence of its messages; None without messages.
        last: the greatest.
        is_new: whether it was made just now.
    """

    batch: int
    messages: int
    lost: int = 0
    first: int | None = None
    last: int | None = None
    is_new: bool = False


class Standing(NamedTuple):
    """How far a consumer is.

    Attributes:
        consumer: its name.
        epoch: of its last start; each one's is greater than those before. 0 for none.
        acknowledged: the number of the last batch that it acknowledged; 0 for none.
        batch: the number of the claim that is open; None without one.
        messages: how many messages that claim has.
        high: no message published from now on, while the broker runs, has a sequence as low as this.
    """

    consumer: str
    epoch: int
    acknowledged: int
    batch: int | None
    messages: int
    high: int


class Claims:
    """What consumers ask for who take batches.

    Args:
        consumers: keeps what is durable of them.
        claimed: works on the messages.
        upkeep: delivers what is in NEW, and knows what is dead.
        settle: called before messages leave their queue.
        ids: makes sequences.
        is_followed: whether others change the store, too: then claims are refused.
        random: makes tags that nobody else makes.
    """

    def __init__(
        self,
        consumers: Consumers,
        claimed: Claimed,
        upkeep: Upkeep,
        settle: Settle,
        ids: MessageIds,
        random: Random,
        *,
        is_followed: bool,
    ) -> None:
        self._consumers = consumers
        self._claimed = claimed
        self._upkeep = upkeep
        self._settle = settle
        self._ids = ids
        self._is_followed = is_followed
        self._random = random

    async def load(self, queues: Mapping[str, QueueIndex]) -> None:
        """Learn what is in the store, and end what a crash cut off. All messages are known by now, and nobody moves
        one.

        Raises:
            StorageError: it cannot be read.
        """
        if self._is_followed:
            return
        await self._consumers.load(queues)
        for index, consumer in self._consumers.unfinished(queues):
            left = await self._claimed.sort(index, consumer)
            await self._settle(consumer.ids)
            for entry in left:
                self._claimed.begin(entry, State.REMOVED, Kind.REMOVE)

    # What can be asked for

    def all(self, index: QueueIndex) -> list[Standing]:
        """Every consumer of a queue, by name."""
        return [self._standing(consumer) for consumer in self._consumers.of(index)]

    def standing(self, index: QueueIndex, name: str) -> Standing:
        """How far a consumer is; one that nobody has started is at the beginning."""
        return self._standing(self._consumers.get(index, name) or Consumer(name, index.created))

    async def start(self, index: QueueIndex, name: str) -> Standing:
        """Begin to consume, or go on where the consumer was. Whoever did it before under this name is shut out.

        Raises:
            Conflict: claims cannot be kept on this store; or the queue has too many consumers.
        """
        self._check_alone()
        while True:
            consumer = self._consumers.get_or_make(index, name)
            async with consumer.lock:
                if self._consumers.get(index, name) is consumer:  # else it was forgotten meanwhile
                    epoch = max(consumer.state.epoch + 1, self._ids.new().time)  # one made anew gets another one, too
                    await self._keep(index, consumer, consumer.state._replace(epoch=epoch))
                    return self._standing(consumer)

    async def claim(
        self,
        index: QueueIndex,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = LARGEST_CLAIM,
        most_bytes: int | None = None,
        up_to: int | None = None,
        seconds: float,
    ) -> Batch | None:
        """Make a claim, or get the one that there is: leased for `seconds` from now on, or nearly so.

        Args:
            index: the queue.
            name: the consumer.
            batch: the claim's number: the one after the last that was acknowledged.
            epoch: as :meth:`start` told it.
            most: how many messages it gets at the most; for a new one.
            most_bytes: how many bytes their bodies have together, but for a single longer one; for a new one.
            up_to: the greatest sequence that it may have; for a new one.
            seconds: length of the lease.

        Returns:
            None when there is nothing to claim.

        Raises:
            Conflict: another epoch has begun; or it is not this batch's turn.
            QueueHeld: one consumer alone has the queue's messages.
        """
        consumer = self._known(index, name, epoch)
        async with consumer.lock:
            self._check_epoch(consumer, epoch)
            self._check_turn(consumer, batch)
            if index.exclusion is not None:
                raise QueueHeld(f"queue {index.name} is one consumer's alone. Try again when it has gone")
            if consumer.state.open is not None:
                return await self._hold(index, consumer, seconds)
            return await self._make(index, consumer, batch, most, most_bytes, up_to, seconds)

    async def read(
        self, index: QueueIndex, name: str, batch: int, epoch: int, start: int, stop: int
    ) -> list[tuple[int, Message]]:
        """The messages of an open claim from place `start` to before `stop`, at most LONGEST_SLICE, with the sequence
        of each, in the order in which they will always be. Close their bodies.

        Raises:
            Conflict: another epoch has begun; or that claim is not open.
            ReceiptMismatch: a lease of the claim has ended.
        """
        consumer = self._known(index, name, epoch)
        claim = consumer.state.open
        if claim is None or claim.batch != batch:
            raise Conflict(f"batch {batch} of consumer {name} is not open: claim it first")
        return await self._claimed.read(index, consumer, consumer.ids[start : min(stop, start + LONGEST_SLICE)])

    async def acknowledge(self, index: QueueIndex, name: str, batch: int, epoch: int) -> None:
        """Remove what a claim has, for good. A batch that was acknowledged may be acknowledged again.

        Raises:
            Conflict: another epoch has begun; or no such claim was made.
        """
        consumer = self._known(index, name, epoch)
        async with consumer.lock:
            self._check_epoch(consumer, epoch)
            state = consumer.state
            if batch > state.acknowledged and (state.open is None or state.open.batch != batch):
                raise Conflict(f"batch {batch} of consumer {name} is not open: there is nothing to acknowledge")
            if batch > state.acknowledged:
                await self._settle(consumer.ids)
                await self._keep(index, consumer, state._replace(acknowledged=batch))
            await self._finish(index, consumer)

    async def forget(self, index: QueueIndex, name: str) -> None:
        """Let go of a consumer: what it has claimed is there for others at once.

        Raises:
            StorageError: not all of it, or the consumer is not forgotten.
        """
        consumer = self._consumers.get(index, name)
        if consumer is None:
            return
        async with consumer.lock:
            if consumer.state.is_acknowledged:
                await self._finish(index, consumer)
            held = [entry for entry in await self._claimed.sort(index, consumer) if _is_leased(entry)]
            await self._consumers.drop(index, consumer)
            consumer.state = Durable()  # whoever waits for its turn finds that its epoch is over
            await self._claimed.move(held, State.READY, Kind.REQUEUE)

    # How it is done

    def _standing(self, consumer: Consumer) -> Standing:
        state = consumer.state
        claim = state.open
        return Standing(
            consumer.name,
            state.epoch,
            state.acknowledged,
            None if claim is None else claim.batch,
            0 if claim is None else len(claim.ids),
            self._ids.new().time,
        )

    def _check_alone(self) -> None:
        if self._is_followed:
            raise Conflict("claims cannot be kept on a store that others change too: serve it with --peers=0")

    def _known(self, index: QueueIndex, name: str, epoch: int) -> Consumer:
        self._check_alone()
        consumer = self._consumers.get(index, name)
        if consumer is None:
            raise Conflict(f"queue {index.name} has no consumer {name}: start it first")
        self._check_epoch(consumer, epoch)
        return consumer

    def _check_epoch(self, consumer: Consumer, epoch: int) -> None:
        if epoch != consumer.state.epoch:
            raise Conflict(
                f"consumer {consumer.name} was started again (epoch {consumer.state.epoch}, you have {epoch}): "
                "somebody else consumes under this name now"
            )

    def _check_turn(self, consumer: Consumer, batch: int) -> None:
        state = consumer.state
        if batch <= state.acknowledged:
            raise Conflict(f"batch {batch} of consumer {consumer.name} was acknowledged: its messages are gone")
        if batch != state.acknowledged + 1:
            raise Conflict(f"batch {state.acknowledged + 1} of consumer {consumer.name} comes first")

    async def _keep(self, index: QueueIndex, consumer: Consumer, state: Durable) -> None:
        if index.deleted:
            raise NoSuchQueue(f"queue {index.name} was deleted meanwhile")
        await self._consumers.keep(index, consumer, state)

    async def _make(
        self,
        index: QueueIndex,
        consumer: Consumer,
        batch: int,
        most: int,
        most_bytes: int | None,
        up_to: int | None,
        seconds: float,
    ) -> Batch | None:
        """A new claim of what is READY. The messages are on their way from when they are chosen until they are leased,
        so nobody else gets one."""
        await self._finish(index, consumer)  # of the batch before
        await self._upkeep.settle(index)
        chosen = await self._claimed.choose(index, most, most_bytes, up_to)
        if not chosen:
            return None
        tag = f"{self._random.getrandbits(40):010x}"
        claim = Claim(batch, tag, tuple(entry.id for entry in chosen))
        try:
            await self._keep(index, consumer, consumer.state._replace(claim=claim))
        except BaseException:
            self._claimed.put_back(chosen)
            raise
        await self._claimed.lease(consumer, chosen, seconds, is_begun=True)
        joined = [entry.joined for entry in chosen]
        return Batch(batch, len(chosen), 0, min(joined), max(joined), is_new=True)

    async def _hold(self, index: QueueIndex, consumer: Consumer, seconds: float) -> Batch:
        """See that a claim that was made before is leased: again where its lease has ended, for longer where it is
        about to. What somebody else has got meanwhile is lost to it."""
        claim = consumer.state.open
        assert claim is not None
        there = await self._claimed.sort(index, consumer)
        there = [entry for entry in there if _is_leased(entry) or not self._upkeep.is_dead(index, entry)]
        lost = len(consumer.ids) - len(there)
        if lost:
            ids = tuple(entry.id for entry in there)
            await self._keep(index, consumer, consumer.state._replace(claim=claim._replace(ids=ids)))
        is_fresh = consumer.lease_ends - trio.current_time() > seconds * _WORTH_RENEWING
        if not (is_fresh and all(_is_leased(entry) for entry in there)):
            await self._claimed.lease(consumer, there, seconds, is_begun=False)
        joined = [entry.joined for entry in there]
        return Batch(claim.batch, len(there), lost, min(joined, default=None), max(joined, default=None))

    async def _finish(self, index: QueueIndex, consumer: Consumer) -> None:
        """Remove what an acknowledged claim had."""
        if not consumer.state.is_acknowledged or consumer.is_finished:
            return
        there = await self._claimed.sort(index, consumer)
        await self._settle(consumer.ids)
        await self._claimed.move(there, State.REMOVED, Kind.REMOVE)
        consumer.is_finished = True


def _is_leased(entry: Entry) -> bool:
    return entry.state is State.DELAYED
