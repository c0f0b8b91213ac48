"""Transactions that are done once, whatever becomes of their replies.

A request that was sent and not answered may be done yet: by a member that was asleep and wakes up minutes later, when
its message has long been removed. So every change goes along a *lane*: a key whose value is the number of the last
transaction there. Each transaction demands that the number is the one before its own, and writes its own. It can be
sent as often as it takes: it is done once, and when a later one has been done, never more.

Every transaction also demands the *fence*: a key that the next broker to take the store makes anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from mq.errors import StorageFailed, StorageFenced
from mq_etcd.address import Fence
from mq_etcd.client import Client
from mq_etcd.errors import Uncertain
from mq_etcd.values import Answer, Get, KeyValue, Nested, Operation, Outcome, Page, Put, created_at, value_is


class Done(NamedTuple):
    """What became of changes that were sent together.

    Attributes:
        answers: one for each; None where the reply was lost, and it is known only that they have been tried.
        revision: at which that was.
    """

    answers: list[Outcome] | None
    revision: int


class Lane:
    """One lane, for one transaction at a time.

    Attributes:
        is_in_doubt: the last transaction may have been done.

    Args:
        session: tells the numbers of this opening of the store from those of others.
    """

    def __init__(self, client: Client, key: str, fence: Fence, session: str) -> None:
        self._client = client
        self._key = key
        self._fence = fence
        self._session = session
        self._numbers = itertools.count(1)
        self._value = b""
        self._before = b""
        self._doubtful = b""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last transaction may have been done: before the next one, that has to be settled."""
        return bool(self._doubtful)

    async def open(self) -> None:
        """From here on nothing lands that was sent along it before.

        Raises:
            StorageFenced: another broker is in charge.
            EtcdError: etcd does not answer, or says no.
        """
        value = self._next()
        held = [created_at(*self._fence)]
        if not (await self._client.txn(held, [Put(self._key, value)], repeats=True)).succeeded:
            raise shut_out(self._fence)
        self._value = value

    async def send(self, changes: Sequence[Nested]) -> Done:
        """Do changes, each where its own conditions hold.

        Raises:
            StorageFenced: another broker is in charge; nothing was changed.
            Uncertain: they may be done, or may be yet.
            EtcdError: nothing was changed.
        """
        assert not self.is_in_doubt, "sent along a lane in doubt"
        value = self._next()
        try:
            outcome = await self._demanding(self._value, [Put(self._key, value), *changes])
        except Uncertain:
            self._doubtful = value
            raise
        self._before = self._value
        if outcome.succeeded:
            self._value = value
            return Done([answer for answer in outcome.answers if isinstance(answer, Outcome)], outcome.revision)
        found = self._expect(value, self._seen(outcome))
        self._value = value
        return Done(None, found.modified)

    async def look(self, looks: Sequence[Sequence[Get]]) -> list[list[Answer]]:
        """What there is; for each of `looks` its answers.

        Raises:
            StorageFenced: another broker is in charge, and may have changed it.
            EtcdError: etcd does not answer, or says no.
        """
        seen = await self._client.txn([created_at(*self._fence)], [Nested([], each) for each in looks])
        if not seen.succeeded:
            raise shut_out(self._fence)
        return [answer.answers for answer in seen.answers if isinstance(answer, Outcome)]

    def doubt(self) -> None:
        """Take the last transaction for doubtful: it has been done, but what came of it is unknown."""
        self._value, self._doubtful = self._before, self._value

    async def withdraw(self) -> int:
        """See to it that what is in doubt is not done any more.

        Returns:
            The revision at which it has been done: take it back by :meth:`undo`. 0 when it has not.

        Raises:
            StorageFenced: another broker is in charge.
            EtcdError: it is still in doubt.
        """
        value = self._next()
        closed = await self._demanding(self._value, [Put(self._key, value)])
        if not closed.succeeded:
            found = self._seen(closed)
            if found.value == self._doubtful:
                return found.modified
            self._expect(value, found)
        self._value, self._doubtful = value, b""
        return 0

    async def undo(self, changes: Sequence[Nested]) -> None:
        """Take back what was in doubt and has been done.

        Raises:
            StorageFenced: another broker is in charge.
            EtcdError: it is not known to be taken back.
        """
        undone = await self._demanding(self._doubtful, changes)
        if not undone.succeeded:
            self._expect(self._doubtful, self._seen(undone))
        self._value, self._doubtful = self._doubtful, b""

    async def _demanding(self, value: bytes, operations: Sequence[Operation]) -> Outcome:
        held = [created_at(*self._fence), value_is(self._key, value)]
        return await self._client.txn(held, operations, [Get(self._key), Get(self._fence.key)], repeats=True)

    def _seen(self, outcome: Outcome) -> KeyValue:
        """The lane, as a transaction found it whose conditions did not hold."""
        lane, fence = (answer.found for answer in outcome.answers if isinstance(answer, Page))
        if not fence or fence[0].created != self._fence.revision:
            raise shut_out(self._fence)
        if not lane:
            raise StorageFailed(f"the etcd key {self._key} was deleted by another program; only mq may delete it")
        return lane[0]

    def _expect(self, value: bytes, found: KeyValue) -> KeyValue:
        if found.value != value:
            raise StorageFailed(f"the etcd key {self._key} was changed by another program; only mq may change it")
        return found

    def _next(self) -> bytes:
        return f"{self._session}.{next(self._numbers)}".encode("ascii")


def shut_out(fence: Fence) -> StorageFenced:
    """The error for a broker that is in charge no more."""
    return StorageFenced(
        f"another daemon has taken over the store: the key {fence.key} in etcd no longer has the revision "
        f"{fence.revision}. Restart mq"
    )
