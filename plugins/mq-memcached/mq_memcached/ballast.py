"""Ballast: entries of no message, which give their room to moves when the server has no other.

Storing the new value of an entry takes room before the old one gives its own back. So on a full server nothing could be
fetched or removed, and it would stay full for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq_memcached import protocol
from mq_memcached.keys import Keys
from mq_memcached.link import Link
from mq_memcached.places import SIZE
from mq_memcached.protocol import NO_ROOM, Command, Reply

COUNT: Final = 64
"""How many there are, and how many moves of one batch find room at the same time."""


class Ballast:
    """The ballast of a store.

    Args:
        link: leads to the server.
        keys: names what is there.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._all = [keys.ballast(number) for number in range(COUNT)]
        self._whole = False

    async def is_whole(self) -> bool:
        """Whether all of it is there. New messages wait until it is, so that moves never have to.

        Raises:
            StorageFull: no server.
        """
        if not self._whole:
            replies = await self._link.ask(protocol.add(key, b" " * SIZE) for key in self._all)
            self._whole = not any(isinstance(reply, bytes) and reply.startswith(NO_ROOM) for reply in replies)
        return self._whole

    async def lend(self, commands: Sequence[Command]) -> list[Reply]:
        """Try them again, each with the room of a piece of ballast; what the server replied.

        Raises:
            StorageFull: no server.
        """
        replies: list[Reply] = []
        while len(replies) < len(commands):
            some = commands[len(replies) : len(replies) + COUNT]
            lent = self._all[: len(some)]
            answers = await self._link.ask(
                [
                    *map(protocol.delete, lent),
                    *some,
                    *(protocol.add(key, b" " * SIZE) for key in lent),
                ]
            )
            replies += answers[len(lent) : len(lent) + len(some)]
            self._whole = False
        return replies
