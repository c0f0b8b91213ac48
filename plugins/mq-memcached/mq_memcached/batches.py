"""A batch: all drafts of it go the same steps at the same time, so that a thousand operations take a few round trips.

    read       entries, and what queues there are; a message that is to be written is taken for new
    append     slots for new messages, then the parts of their bodies
    change     the entries: this is the instant. Then, on the same wire, look whether the slots are still ours
    clear up   bodies and slots that are needed no more

A draft that loses a race goes round again. When the connection breaks, what was sent may have been done, or may yet be:
it is in *doubt*, and before anything else is changed it is undone. Then what the broker believes, that nothing
happened, is so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mq.message import MessageId
from mq.storage.interface import QUEUE, Operation, Outcome, Result, Write
from mq_memcached import protocol
from mq_memcached.ballast import Ballast
from mq_memcached.chains import Chains
from mq_memcached.keys import Keys
from mq_memcached.link import Link, Lost, Refused
from mq_memcached.own import OwnChanges
from mq_memcached.places import UNPLACED, Draft, Incarnations, Parcel, Place, decode, encode
from mq_memcached.protocol import DELETED, NO_ROOM, STORED, Command, Item, Reply
from mq_memcached.records import Records

LONGEST_PART: Final = 512 * 1024
"""Bytes of a body under one key, where the server would take more."""
FENCE_SECONDS: Final = 60
"""How long the place of an undone message is kept, so that a command still on its way finds it taken."""
_ROUNDS: Final = 50


class Doubt(NamedTuple):
    """A change that may have been done.

    Attributes:
        id: the message.
        before: its entry before; None when there was none.
        tag: of the entry after.
    """

    id: MessageId
    before: Item | None
    tag: str


Group = list[tuple[int, Operation]]
"""Operations on one message, with where their outcomes stand in the batch."""


class Batches:
    """Does batches.

    Args:
        link: leads to the server.
        keys: names what is there.
        chains: lists what is there.
        records: knows the queues.
        ballast: gives room to moves when there is no other.
        own: told of what is done.
    """

    def __init__(
        self, link: Link, keys: Keys, chains: Chains, records: Records, ballast: Ballast, own: OwnChanges
    ) -> None:
        self._link = link
        self._keys = keys
        self._chains = chains
        self._records = records
        self._ballast = ballast
        self._own = own
        self._doubts: list[Doubt] = []

    async def commit(
        self, operations: Sequence[Operation], parcels: dict[int, Parcel]
    ) -> tuple[list[Outcome], Counter[str]]:
        """Do all of them; their outcomes, and how many slots of each queue's chain are of no more use.

        Args:
            operations: what to do.
            parcels: the body of each Write, by its place in the batch.
        """
        groups: dict[MessageId, Group] = {}
        for number, operation in enumerate(operations):
            id = operation.id if isinstance(operation, Write) else operation.entry.id
            groups.setdefault(id, []).append((number, operation))
        outcomes: dict[int, Outcome] = {}
        left: Counter[str] = Counter()
        for is_last in (False, True):
            try:
                await self._settle()
                await self._run(groups, parcels, outcomes, left)
                break
            except Lost as error:
                if is_last:
                    self._give_up(groups, outcomes, error)
            except Refused as error:
                self._give_up(groups, outcomes, error)
                break
        return [outcomes[number] for number in range(len(operations))], left

    def _give_up(self, groups: dict[MessageId, Group], outcomes: dict[int, Outcome], error: Exception) -> None:
        """What is not known to be done is in doubt, or was never tried."""
        doubtful = {doubt.id for doubt in self._doubts}
        for id, group in groups.items():
            for number, _ in group:
                outcomes[number] = Outcome(Result.UNKNOWN if id in doubtful else Result.FULL, reason=str(error))

    async def _run(
        self,
        groups: dict[MessageId, Group],
        parcels: dict[int, Parcel],
        outcomes: dict[int, Outcome],
        left: Counter[str],
    ) -> None:
        """Do what is left of `groups`; what is done is taken out of it."""
        first_try = True
        for _ in range(_ROUNDS):
            drafts = await self._read(groups, parcels, trusting=first_try)
            first_try = False
            changed = [draft for draft in drafts if draft.is_changed]
            await self._append(changed)
            done, losers = await self._change([draft for draft in changed if draft.is_changed])
            self._finish(done, groups, outcomes)  # first of all: whatever breaks now, these are done
            left.update(place.queue for draft in done for place in draft.left())
            await self._withdraw(losers)
            await self._clear_up(done)
            self._finish([draft for draft in drafts if not draft.is_changed], groups, outcomes)
            if not groups:
                return
            await self._settle()
        raise Refused("others change the same messages all the time")

    def _finish(self, drafts: Iterable[Draft], groups: dict[MessageId, Group], outcomes: dict[int, Outcome]) -> None:
        for draft in drafts:
            outcomes.update(draft.outcomes)
            del groups[draft.id]

    # -- read

    async def _read(self, groups: dict[MessageId, Group], parcels: dict[int, Parcel], *, trusting: bool) -> list[Draft]:
        queues = set()
        for group in groups.values():
            for _, operation in group:
                if not isinstance(operation, Write):
                    queues.add(operation.entry.queue)
                    queues.add(getattr(operation, "queue", None) or operation.entry.queue)
        known = [id for id, group in groups.items() if not (trusting and isinstance(group[0][1], Write))]
        wanted = {self._keys.record(QUEUE, queue): queue for queue in queues}
        found = await self._link.values([*map(self._keys.entry, known), *wanted])
        incarnations: dict[str, str | None] = {
            queue: self._records.incarnation(found.get(key)) for key, queue in wanted.items()
        }
        return [
            self._draft(id, group, found.get(self._keys.entry(id)), incarnations, parcels)
            for id, group in groups.items()
        ]

    def _draft(
        self, id: MessageId, group: Group, item: Item | None, incarnations: Incarnations, parcels: dict[int, Parcel]
    ) -> Draft:
        draft = Draft(id, item, incarnations, min(self._link.limits.value, LONGEST_PART))
        for number, operation in group:
            draft.apply(number, operation, parcels.get(number))
        return draft

    # -- append

    async def _append(self, drafts: list[Draft]) -> None:
        """Slots, then bodies. A draft for which there is no room fails."""
        writing = [draft for draft in drafts if any(place.slot == UNPLACED for place in draft.places)]
        if writing and not await self._ballast.is_whole():
            self._fail(writing, "the server has no memory left")
        by_queue: dict[str, list[tuple[Draft, int]]] = defaultdict(list)
        for draft in writing:
            for number, place in enumerate(draft.places):
                if place.slot == UNPLACED:
                    by_queue[place.queue].append((draft, number))
        for queue, wanting in by_queue.items():
            things = [thing_of(draft.id, draft.places[number]) for draft, number in wanting]
            try:
                slots = await self._chains.append(self._keys.chain_of_queue(queue), things)
            except Refused as error:
                self._fail({draft for draft, _ in wanting}, str(error))
                continue
            for (draft, number), slot in zip(wanting, slots, strict=True):
                draft.places[number] = draft.places[number]._replace(slot=slot)
        await self._store_bodies([draft for draft in writing if draft.is_changed])

    def _fail(self, drafts: Iterable[Draft], reason: str) -> None:
        for draft in drafts:
            draft.fail(Outcome(Result.FULL, reason=reason))

    async def _store_bodies(self, drafts: list[Draft]) -> None:
        owners: list[Draft] = []
        commands: list[Command] = []
        for draft in drafts:
            for place in draft.places:
                if place.mark in draft.bodies:
                    parts = self._parts(draft, place)
                    commands += parts
                    owners += [draft] * len(parts)
        replies = await self._link.ask(commands)
        refused = {draft: reply for draft, reply in zip(owners, replies, strict=True) if reply != STORED}
        await self._withdraw(refused)

    def _parts(self, draft: Draft, place: Place) -> list[Command]:
        blob = draft.bodies[place.mark]
        step = min(self._link.limits.value, LONGEST_PART)
        return [
            protocol.put(key, blob[number * step : (number + 1) * step])
            for number, key in enumerate(part_keys(self._keys, draft.id, place))
        ]

    async def _withdraw(self, drafts: Mapping[Draft, Reply]) -> None:
        """Take back what was stored for changes that are not made, and let those fail for which there was no room."""
        commands = []
        for draft in drafts:
            for place in draft.arrived():
                if place.mark in draft.bodies:
                    commands += [protocol.delete(key) for key in part_keys(self._keys, draft.id, place)]
                commands.append(self._chains.bury(self._keys.chain_of_queue(place.queue), place.slot))
        await self._link.ask(commands)
        for draft, reply in drafts.items():
            if isinstance(reply, bytes) and reply.startswith(NO_ROOM):
                self._fail([draft], f"the server says: {reply.decode(errors='replace')}")

    # -- change

    async def _change(self, drafts: list[Draft]) -> tuple[list[Draft], dict[Draft, Reply]]:
        """Make the changes; those drafts that are done, and what the server replied to those that are not."""
        if not drafts:
            return [], {}
        self._doubts += [Doubt(draft.id, draft.item, draft.tag) for draft in drafts]
        looks = [
            command for chain, numbers in self._new_slots(drafts) for command in self._chains.verify(chain, numbers)
        ]
        chains = {self._keys.chain_of_queue(place.queue) for draft in drafts for place in _touched(draft)}
        replies = await self._link.ask(
            [
                *(self._command(draft) for draft in drafts),
                *looks,
                *(protocol.increase(self._keys.changes(chain), 1) for chain in chains),
            ]
        )
        answers = await self._with_ballast(drafts, replies[: len(drafts)])
        values = {}
        for reply in replies[len(drafts) : len(drafts) + len(looks)]:
            values.update(self._link.collected(reply))
        self._doubts.clear()
        done, losers = [], {}
        for draft, answer in zip(drafts, answers, strict=True):
            if answer not in (STORED, DELETED):
                losers[draft] = answer
            elif all(
                self._chains.holds(self._keys.chain_of_queue(place.queue), place.slot, values)
                for place in draft.arrived()
            ):
                done.append(draft)
                self._own.note(self._keys.entry(draft.id), draft.value if draft.places else None)
            else:  # a tidying client took our slot for a dead writer's: as if it had not been done
                self._doubts.append(Doubt(draft.id, draft.item, draft.tag))
        return done, losers

    def _command(self, draft: Draft) -> Command:
        key = self._keys.entry(draft.id)
        if draft.item is None:
            return protocol.add(key, draft.value)
        if not draft.places:
            return protocol.delete(key)
        return protocol.swap(key, draft.value, draft.item.version)

    async def _with_ballast(self, drafts: list[Draft], replies: Sequence[Reply]) -> list[Reply]:
        """The answers, after those that found no room to move in have tried once more with the ballast's."""
        answers = list(replies)
        stuck = [
            number
            for number, reply in enumerate(answers)
            if isinstance(reply, bytes) and reply.startswith(NO_ROOM) and drafts[number].item is not None
        ]
        for number, reply in zip(
            stuck, await self._ballast.lend([self._command(drafts[number]) for number in stuck]), strict=True
        ):
            answers[number] = reply
        return answers

    def _new_slots(self, drafts: Iterable[Draft]) -> list[tuple[bytes, list[int]]]:
        by_chain: dict[bytes, list[int]] = defaultdict(list)
        for draft in drafts:
            for place in draft.arrived():
                by_chain[self._keys.chain_of_queue(place.queue)].append(place.slot)
        return list(by_chain.items())

    # -- clear up

    async def _clear_up(self, drafts: list[Draft]) -> None:
        """Bodies first: a client that finds a slot whose message is gone takes away its body, too."""
        commands = []
        for draft in drafts:
            for place in draft.unneeded():
                commands += [protocol.delete(key) for key in part_keys(self._keys, draft.id, place)]
            for place in draft.left():
                commands.append(self._chains.bury(self._keys.chain_of_queue(place.queue), place.slot))
        if commands:
            await self._link.ask(commands)

    # -- doubts

    async def _settle(self) -> None:
        """Undo what may have been done, or may yet be: each entry is written anew, so that a late command fails.

        One that is quicker than that is seen the next time round.
        """
        for _ in range(_ROUNDS):
            if not self._doubts:
                return
            found = await self._link.values(self._keys.entry(doubt.id) for doubt in self._doubts)
            undoing = {doubt: self._undo(doubt, found.get(self._keys.entry(doubt.id))) for doubt in self._doubts}
            commands = {doubt: command for doubt, command in undoing.items() if command is not None}
            replies = dict(zip(commands, await self._link.ask(commands.values()), strict=True))
            stuck = [
                doubt for doubt, reply in replies.items() if isinstance(reply, bytes) and reply.startswith(NO_ROOM)
            ]
            lent = await self._ballast.lend([commands[doubt] for doubt in stuck])
            replies.update(zip(stuck, lent, strict=True))
            self._doubts = [doubt for doubt, reply in replies.items() if reply != STORED]
        raise Refused("what was in doubt cannot be undone")

    def _undo(self, doubt: Doubt, now: Item | None) -> Command | None:
        """None where there is nothing to undo: others have gone on from there, or the message is gone for good."""
        key, before = self._keys.entry(doubt.id), doubt.before
        if now is None:
            return protocol.add(key, encode([], ""), FENCE_SECONDS) if before is None else None
        if decode(now.value).tag != doubt.tag and (before is None or now.value != before.value):
            return None
        if before is None:
            return protocol.swap(key, encode([], ""), now.version, FENCE_SECONDS)
        return protocol.swap(key, before.value, now.version)


def thing_of(id: MessageId, place: Place) -> bytes:
    """What a slot holds: enough to find the entry, and the body where there is no entry."""
    return b"%b %b" % (id.encode(), place.mark.encode())


def part_keys(keys: Keys, id: MessageId, place: Place) -> list[bytes]:
    """Where the parts of a body are."""
    return [keys.part(id.encode(), place.mark.encode(), number) for number in range(place.parts)]


def _touched(draft: Draft) -> list[Place]:
    return [*draft.places, *draft.left()]
