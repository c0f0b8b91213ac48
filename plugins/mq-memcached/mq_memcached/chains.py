"""Chains: what memcached cannot do, list what is there. A chain is a head, a tail, and a slot for each thing.

The old way to put was: take a number from the head, then store under it. No reader could tell an empty slot from one
whose writer was still on its way, and a wrong guess lost a message. Here nothing is guessed:

* A writer *adds* its slot. A client that wants to pass over an empty slot adds a tombstone there first. Of the two one
  wins; a writer that finds its slot taken takes another number.
* A writer whose thing is stored looks again: is my slot untouched, and not behind the tail? Else it takes another
  number. A tidying client condemns a slot first, then looks whether there is the thing it points to, and only then
  buries it. Whichever of the two comes first, the other one sees it.

So every step is right whenever it comes, however long its client slept, and dying after any of them leaves garbage that
the next tidying finds. The lock saves two processes from doing the same work; nothing rests on it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import trio

from mq_memcached import protocol
from mq_memcached.keys import Keys
from mq_memcached.link import Link, Refused
from mq_memcached.protocol import NOT_FOUND, STORED, Command, Values

logger = logging.getLogger("mq.memcached")

LOCK_SECONDS: Final = 5
"""How long a lock lasts whose holder has died."""
GRACE_SECONDS: Final = 2.0 * LOCK_SECONDS
"""How long a slot must have been seen useless before it is condemned. Nothing rests on it; it saves writers trouble."""
TOMB_SECONDS: Final = 60
"""How long a tombstone stands. Should it fall before the tail passes it, the next tidying sets another."""
FIRST: Final = 1_000_000_000_000
"""The number of a chain's first slot. All numbers have as many digits, so that a head is increased in place."""
WINDOW: Final = 1024
"""How many slots one tidying looks at."""
TOMB: Final = b"#"
CONDEMNED: Final = b"!"

Living = Callable[[Iterable[bytes]], Awaitable[set[bytes]]]
"""Tells which of the things behind slots are there."""
Bury = Callable[[Iterable[bytes]], Awaitable[None]]
"""Takes away what is left of things that are not there."""


class Walk(NamedTuple):
    """What a chain points to.

    Attributes:
        slots: number -> what it points to.
        length: how many numbers there are between tail and head.
    """

    slots: Mapping[int, bytes]
    length: int


class Chains:
    """The chains of a store.

    Args:
        link: leads to the server.
        keys: names what is there.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._seen: dict[bytes, dict[int, bytes]] = {}
        self._suspects: dict[bytes, dict[int, float]] = {}

    async def append(self, chain: bytes, things: Sequence[bytes]) -> list[int]:
        """Point to each of `things`; the numbers of their slots.

        Raises:
            StorageFull: no room, or no server.
        """
        numbers: dict[int, int] = {}
        left = list(range(len(things)))
        while left:
            first = await self._reserve(chain, len(left)) - len(left)
            wanted = dict(zip(left, range(first, first + len(left)), strict=True))
            replies = await self._link.ask(
                protocol.add(self._keys.slot(chain, number), things[index]) for index, number in wanted.items()
            )
            for (index, number), reply in zip(wanted.items(), replies, strict=True):
                if reply == STORED:
                    numbers[index] = number
                elif not isinstance(reply, bytes) or reply.startswith(protocol.NO_ROOM):
                    await self.drop(chain, numbers.values())
                    raise Refused(f"the server has no room for a slot ({reply!r})")
            left = [index for index in left if index not in numbers]
        return [numbers[index] for index in range(len(things))]

    def verify(self, chain: bytes, numbers: Sequence[int]) -> list[Command]:
        """The commands that tell :meth:`holds` what it has to know; they follow what makes the things be there."""
        keys = [self._keys.slot(chain, number) for number in numbers]
        return [*protocol.get([*keys, self._keys.tail(chain)])]

    def holds(self, chain: bytes, number: int, values: Values) -> bool:
        """Whether a look will find that slot."""
        slot, tail = values.get(self._keys.slot(chain, number)), values.get(self._keys.tail(chain))
        return (
            slot is not None
            and tail is not None
            and not slot.value.startswith((TOMB, CONDEMNED))
            and int(tail.value) <= number
        )

    def bury(self, chain: bytes, number: int) -> Command:
        """The command that says: this slot is of no use any more."""
        return protocol.put(self._keys.slot(chain, number), TOMB, TOMB_SECONDS)

    async def drop(self, chain: bytes, numbers: Iterable[int]) -> None:
        """These slots are of no use any more."""
        await self._link.ask([self.bury(chain, number) for number in numbers])

    async def walk(self, chain: bytes) -> Walk:
        """What the chain points to, in use or not."""
        tail, head, _ = await self._ends(chain)
        seen = {number: thing for number, thing in self._seen.get(chain, {}).items() if number >= tail}
        self._seen[chain] = seen
        unknown = [number for number in range(tail, head) if number not in seen]
        found = await self._link.values(self._keys.slot(chain, number) for number in unknown)
        slots = dict(seen)
        for number in unknown:
            item = found.get(self._keys.slot(chain, number))
            if item is None or item.value.startswith(TOMB):
                continue
            slots[number] = item.value.removeprefix(CONDEMNED)
            if not item.value.startswith(CONDEMNED):
                seen[number] = item.value
        return Walk(slots, head - tail)

    def doubt(self, chain: bytes, numbers: Iterable[int]) -> None:
        """What these slots point to is not there: look at the slots themselves, the next time."""
        seen = self._seen.get(chain, {})
        for number in numbers:
            seen.pop(number, None)

    async def tidy(self, chain: bytes, living: Living, bury: Bury) -> None:
        """Bring the tail forward, over what is of no use, if no other client is at it."""
        lock, token = self._keys.lock(chain), secrets.token_hex(8).encode()
        [locked] = await self._link.ask([protocol.add(lock, token, LOCK_SECONDS)])
        if locked != STORED:
            return
        try:
            await self._tidy(chain, living, bury)
        finally:
            await self._unlock(lock, token)

    async def _tidy(self, chain: bytes, living: Living, bury: Bury) -> None:
        tail, head, tail_version = await self._ends(chain)
        numbers = range(tail, min(head, tail + WINDOW))
        slots = await self._link.values(self._keys.slot(chain, number) for number in numbers)
        things = {
            number: slots[key].value.removeprefix(CONDEMNED)
            for number in numbers
            if (key := self._keys.slot(chain, number)) in slots and slots[key].value != TOMB
        }
        alive = await living(things.values())
        useful = [number for number, thing in things.items() if thing in alive]
        dead = {number for number in numbers if number not in things and self._keys.slot(chain, number) in slots}
        dead |= await self._kill(
            chain, [number for number in numbers if number not in dead and number not in useful], things, living, bury
        )
        if head - tail > WINDOW // 2 and len(useful) < len(numbers) // 4:
            dead |= await self._move_on(chain, useful, things)
        passed = tail
        while passed in dead:
            passed += 1
        if passed > tail:
            [reply] = await self._link.ask([protocol.swap(self._keys.tail(chain), b"%d" % passed, tail_version)])
            if reply == STORED:
                await self._link.ask(protocol.delete(self._keys.slot(chain, number)) for number in range(tail, passed))

    async def _kill(
        self, chain: bytes, numbers: list[int], things: Mapping[int, bytes], living: Living, bury: Bury
    ) -> set[int]:
        """Those of the slots that are dead now: they have been of no use for a while, and surely are."""
        now, before = trio.current_time(), self._suspects.get(chain, {})
        suspects = self._suspects[chain] = {number: before.get(number, now) for number in numbers}
        numbers = [number for number, since in suspects.items() if now - since >= GRACE_SECONDS]
        holes = [number for number in numbers if number not in things]
        dead = set()
        for number, reply in zip(
            holes,
            await self._link.ask(protocol.add(self._keys.slot(chain, number), TOMB, TOMB_SECONDS) for number in holes),
            strict=True,
        ):
            if reply == STORED:
                dead.add(number)
        return dead | await self._condemn(chain, {n: things[n] for n in numbers if n in things}, living, bury)

    async def _condemn(self, chain: bytes, things: Mapping[int, bytes], living: Living, bury: Bury) -> set[int]:
        keys = {number: self._keys.slot(chain, number) for number in things}
        await self._replace(keys, {number: CONDEMNED + thing for number, thing in things.items()})
        alive = await living(things.values())  # after it was condemned: a writer that stores it now sees that
        useless = {number: thing for number, thing in things.items() if thing not in alive}
        await bury(useless.values())
        return await self._replace({number: keys[number] for number in useless}, dict.fromkeys(useless, TOMB))

    async def _replace(self, keys: Mapping[int, bytes], values: Mapping[int, bytes]) -> set[int]:
        """Those slots that now have their new value."""
        found = await self._link.values(keys.values())
        there = {number: found[key] for number, key in keys.items() if key in found and found[key].value != TOMB}
        replies = await self._link.ask(
            protocol.swap(keys[number], values[number], item.version, TOMB_SECONDS if values[number] == TOMB else 0)
            for number, item in there.items()
        )
        return {number for number, reply in zip(there, replies, strict=True) if reply == STORED}

    async def _move_on(self, chain: bytes, useful: list[int], things: Mapping[int, bytes]) -> set[int]:
        """Few things are left among many dead slots: give them new ones, so that the tail can go on."""
        moved = useful[: WINDOW // 4]
        await self.append(chain, [things[number] for number in moved])
        return await self._replace(
            {number: self._keys.slot(chain, number) for number in moved}, dict.fromkeys(moved, TOMB)
        )

    async def _unlock(self, key: bytes, token: bytes) -> None:
        """Only if it is still ours: one that expired meanwhile is another client's."""
        item = (await self._link.values([key])).get(key)
        if item is not None and item.value == token:
            ended = protocol.swap(key, token, item.version, protocol.AT_ONCE)
            await self._link.ask([ended, *protocol.get([key])])  # the look gives its room back

    async def _ends(self, chain: bytes) -> tuple[int, int, bytes]:
        """Tail, head, and the tail's version; an unknown chain is empty."""
        tail, head = self._keys.tail(chain), self._keys.head(chain)
        found = await self._link.values([tail, head])
        if tail not in found or head not in found:
            return FIRST, FIRST, b""
        return int(found[tail].value), int(found[head].value), found[tail].version

    async def _reserve(self, chain: bytes, count: int) -> int:
        """Take so many numbers; the one after them."""
        [reply] = await self._link.ask([protocol.increase(self._keys.head(chain), count)])
        if reply == NOT_FOUND:
            await self._begin(chain)
            [reply] = await self._link.ask([protocol.increase(self._keys.head(chain), count)])
        if not isinstance(reply, bytes) or not reply.strip().isdigit():
            raise Refused(f"the server does not count ({reply!r})")
        return int(reply)

    async def _begin(self, chain: bytes) -> None:
        """Make a chain. Its head comes last: where there is one, the rest is there, too."""
        if chain != self._keys.registry:
            await self.append(self._keys.registry, [chain])
        first = b"%d" % FIRST
        for key in (self._keys.tail(chain), self._keys.changes(chain), self._keys.head(chain)):
            [reply] = await self._link.ask([protocol.add(key, first)])
            if isinstance(reply, bytes) and reply.startswith(protocol.NO_ROOM):
                raise Refused(f"the server has no room for a chain ({reply!r})")
