"""A batch: its operations in as few transactions as etcd takes, several of them on their way at once.

Operations on one message or record go one after the other, for a transaction looks at its conditions before it does
anything.

What was sent and not answered until the deadline is in doubt, and its outcome is UNKNOWN. Before anything else is
changed it is withdrawn, and undone where it was done: then what the broker believes, that nothing happened, is so. A
record of before is read as etcd had it one revision earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from mq.errors import StorageFailed, StorageFenced
from mq.storage.interface import AnyOperation, Drop, Group, Outcome, Put, Result, Write
from mq_etcd.bodies import LARGEST_VALUE
from mq_etcd.client import Client
from mq_etcd.errors import Compacted, EtcdError, NoSpace, TooLarge, Unavailable, Uncertain
from mq_etcd.keys import Keys
from mq_etcd.lanes import Lane
from mq_etcd.steps import AnyStep, step
from mq_etcd.values import Answer, Nested
from mq_etcd.values import Outcome as EtcdOutcome

MOST_OPERATIONS: Final = 128
"""That etcd takes in one transaction, those of the widest nested one included."""
MOST_IN_GROUP: Final = (MOST_OPERATIONS - 2) // 2
"""Operations of a group: each takes two of etcd's, beside the lane's and the group itself."""
MOST_BYTES: Final = 1 << 19
"""In one transaction, if it has more than one step. etcd takes 1.5 MiB."""
MOST_GROUP_BYTES: Final = 1 << 20
"""Of the bodies, attributes and values of a group."""


class Batches:
    """Does batches.

    Attributes:
        met_no_space: etcd has said that it is full, since this was last set to False.

    Args:
        lives: the queues that there are, with the revisions at which they were made.
    """

    def __init__(self, client: Client, keys: Keys, lives: Mapping[str, int], lanes: Sequence[Lane]) -> None:
        self._client = client
        self._keys = keys
        self._lives = lives
        self._lanes = lanes
        self._sent: dict[Lane, list[AnyStep]] = {}
        self.met_no_space = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether something that was sent may have been done."""
        return any(lane.is_in_doubt for lane in self._lanes)

    async def commit(self, numbered: Sequence[tuple[int, AnyOperation]]) -> dict[int, Outcome]:
        """Do all of them; their outcomes, by number.

        Raises:
            StorageFenced: another broker is in charge.
            StorageFailed: another program meddles with the store's keys.
            EtcdError: what was in doubt before still is; nothing was changed.
        """
        await self.settle()
        outcomes: dict[int, Outcome] = {}
        for round_ in _rounds(numbered):
            steps = self._steps(round_, outcomes)
            if steps:
                await self._send(steps, outcomes)
        return outcomes

    async def change(self, change: Nested) -> EtcdOutcome | None:
        """Do something else than operations; None where the reply was lost, and it is known only that it was tried.

        Raises:
            StorageFenced: another broker is in charge.
            StorageFailed: another program meddles with the store's keys.
            Uncertain: it may have been done. What was done stays.
            EtcdError: nothing was changed.
        """
        await self.settle()
        lane = self._lanes[0]
        self._sent[lane] = []
        done = await lane.send([change])
        return None if done.answers is None else done.answers[0]

    async def settle(self) -> None:
        """Bring what is in doubt to an end. Raises as :meth:`commit` does."""
        for lane in self._lanes:
            if lane.is_in_doubt:
                revision = await lane.withdraw()
                if revision:
                    await lane.undo(await self._undoing(self._sent.get(lane, ()), revision))

    async def _undoing(self, steps: Sequence[AnyStep], revision: int) -> list[Nested]:
        """What takes back steps that were done at that revision."""
        before: dict[str, bytes | None] = {}
        for key in [key for each in steps for key in each.record_keys()]:
            try:
                found = (await self._client.range(key, revision=revision - 1)).found
            except Compacted as error:
                raise StorageFailed(
                    f"the outcome of a change to record {key} is unknown, and etcd has compacted the earlier version "
                    "of the record, which mq needs to determine the outcome. Restart mq: it then accepts the "
                    "current version"
                ) from error
            before[key] = found[0].value if found else None
        return [nested for each in steps for nested in each.undoing(revision, before)]

    def _steps(self, numbered: Sequence[tuple[int, AnyOperation]], outcomes: dict[int, Outcome]) -> list[AnyStep]:
        steps = []
        for number, operation in numbered:
            made = step(number, operation, self._keys, self._lives)
            if isinstance(made, Outcome):
                outcomes[number] = made
            elif made.longest_body > LARGEST_VALUE:
                outcomes[number] = Outcome(
                    Result.FULL, reason="the message's attributes exceed the size that etcd supports"
                )
            else:
                steps.append(made)
        return steps

    async def _send(self, steps: Sequence[AnyStep], outcomes: dict[int, Outcome]) -> None:
        """Send them. Nothing follows a change in doubt, which may be taken back."""
        if self.is_in_doubt:
            _tell(steps, Result.FULL, "etcd has not yet reported the outcome of an earlier change", outcomes)
            return
        parts = iter(_parts(steps))
        failures: list[StorageFenced | StorageFailed] = []

        async def drive(lane: Lane) -> None:
            for part in parts:  # whichever lane is free takes the next
                try:
                    await self._carry(lane, part, outcomes)
                except (StorageFenced, StorageFailed) as error:
                    failures.append(error)
                if failures or lane.is_in_doubt:
                    return

        async with trio.open_nursery() as nursery:
            for lane in self._lanes:
                nursery.start_soon(drive, lane)
        if failures:
            raise failures[0]
        for part in parts:  # no lane was left for them
            _tell(part, Result.FULL, "etcd is not responding", outcomes)

    async def _carry(self, lane: Lane, part: Sequence[AnyStep], outcomes: dict[int, Outcome]) -> None:
        self._sent[lane] = list(part)
        try:
            done = await lane.send([each.txn() for each in part])
            if done.answers is None:
                for each, seen in zip(part, await self._find_out(lane, part), strict=True):
                    outcomes[each.number] = each.landed(seen, done.revision)
                return
        except Uncertain as error:
            _tell(part, Result.UNKNOWN, str(error), outcomes)
        except (Unavailable, NoSpace, TooLarge) as error:
            self.met_no_space |= isinstance(error, NoSpace)
            _tell(part, Result.FULL, str(error), outcomes)
        except EtcdError as error:
            raise StorageFailed(str(error)) from error
        else:
            refused = []
            for each, answer in zip(part, done.answers, strict=True):
                if answer.succeeded:
                    outcomes[each.number] = each.done()
                else:
                    refused.append(each)
            if refused:
                await self._ask_why(lane, refused, outcomes)

    async def _find_out(self, lane: Lane, part: Sequence[AnyStep]) -> list[list[Answer]]:
        """What is where these steps, which have been tried, were to change something."""
        try:
            return await lane.look([each.looks() for each in part])
        except Unavailable as error:
            lane.doubt()
            raise Uncertain(str(error)) from error

    async def _ask_why(self, lane: Lane, refused: Sequence[AnyStep], outcomes: dict[int, Outcome]) -> None:
        """Look why steps were not done. What they would have changed is as it was: no other step of the round is about
        the same, and no other broker has the store."""
        try:
            seen = await lane.look([each.looks() for each in refused])
        except Unavailable as error:
            _tell(refused, Result.FULL, str(error), outcomes)
        except EtcdError as error:
            raise StorageFailed(str(error)) from error
        else:
            for each, its in zip(refused, seen, strict=True):
                outcomes[each.number] = each.refused(its)


def _rounds(numbered: Sequence[tuple[int, AnyOperation]]) -> list[list[tuple[int, AnyOperation]]]:
    """In each, no message and no record is changed twice."""
    rounds: list[list[tuple[int, AnyOperation]]] = []
    counts: defaultdict[object, int] = defaultdict(int)
    for number, operation in numbered:
        things = _things(operation)
        at = max((counts[thing] for thing in things), default=0)
        if at == len(rounds):
            rounds.append([])
        rounds[at].append((number, operation))
        counts.update(dict.fromkeys(things, at + 1))
    return rounds


def _things(operation: AnyOperation) -> list[object]:
    """What an operation changes: ids of messages, and records."""
    match operation:
        case Group(operations):
            return [thing for each in operations for thing in _things(each)]
        case Put() | Drop():
            return [(operation.kind, operation.key)]
        case Write():
            return [operation.id]
        case _:
            return [operation.entry.id]


def _parts(steps: Sequence[AnyStep]) -> list[list[AnyStep]]:
    """What goes into one transaction each."""
    parts: list[list[AnyStep]] = []
    size = widest = 0
    for each in steps:
        if not parts or size + each.size > MOST_BYTES or 2 + len(parts[-1]) + max(each.width, widest) > MOST_OPERATIONS:
            parts.append([])
            size = widest = 0
        parts[-1].append(each)
        size += each.size
        widest = max(widest, each.width)
    return parts


def _tell(part: Sequence[AnyStep], result: Result, reason: str, outcomes: dict[int, Outcome]) -> None:
    for each in part:
        outcomes[each.number] = Outcome(result, reason=reason)
