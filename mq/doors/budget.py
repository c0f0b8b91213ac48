"""The memory and the disk that clients may take, all protocols of a daemon together.

A client's connection, an HTTP/2 request or an AMQP session reserves memory from its :class:`ClientMemory` before it
makes mq build, buffer or queue something large, and gives it back when that is gone. A body that is staged reserves
disk in the same way. A reservation that does not fit is refused at once. The whole size of a body is reserved before
its first byte is read, so that no two requests wait half-way for each other.

A reservation of memory counts in three places, and each has its limit: in the whole budget, in one of its two
directions, and in the share of its client. One of disk counts in the whole and in the client's share. A client that
sends or reads slowly has to give up what it has when others want it, the slowest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from types import TracebackType
from typing import Final, NamedTuple

import trio

from mq.doors.connections import Refusals
from mq.errors import BodyTooLarge, NoDisk, NoMemory, OverBudget

DEFAULT_BYTES: Final = 256 << 20
DEFAULT_DISK_BYTES: Final = 1 << 30
CLIENT_PART: Final = 4
"""One user, or one connection where there are no users, may have this fraction of the budget: a quarter."""
STRANGER_PART: Final = 8
"""All clients that have not logged in may have this fraction of the budget together, where there are users."""
DECLARED_PART: Final = 2
"""What is declared may take as much memory as this fraction of the budget, besides: a half. One client may have a half
of that."""
UNSETTLED_PART: Final = 2
"""All unsettled deliveries together may have this fraction of the budget: a half."""
UNCOUNTED_BYTES: Final = 4096
"""What a connection or a request may keep in memory without a reservation, besides what each takes anyway."""
PATIENCE_SECONDS: Final = 10
"""How long a sender or reader cannot be slow yet."""
ENOUGH_BYTES_PER_SECOND: Final = 128 * 1024
"""On average since a client was last as fast as that; a slower one makes room as soon as others want it. A request that
has the memory to itself may be slower."""
MUCH_BYTES: Final = 8 << 20
"""Freed memory that is worth being returned to the operating system."""
CONNECTION_BYTES: Final = 32 * 1024
"""What the end of a connection frees, besides what it has reserved."""
RETRY_SECONDS: Final = 1.0
"""After so long a client that waits for memory tries again, even if none was reported free."""
_WOKEN_TOGETHER: Final = 64


class Use(StrEnum):
    """What memory is reserved for. The metric of refusals has these names."""

    INPUT = "input"
    """The beginning of a request's head, or of a frame."""
    REQUEST = "request"
    """A request itself: its headers, and what a server keeps for it; a channel over AMQP."""
    BODY = "body"
    """What a request sends."""
    PUBLISH = "publish"
    """Messages over AMQP that are unfinished, or uncommitted."""
    BACKLOG = "backlog"
    """Messages over AMQP that wait for the store."""
    ANSWER = "answer"
    """What a request is answered."""
    UNSETTLED = "unsettled"
    """Messages over AMQP that a client has not acknowledged."""
    DELIVERY = "delivery"
    """Messages on their way to a consumer over AMQP."""
    DECLARED = "declared"
    """Exchanges, bindings and queues over AMQP that do not last. They have memory of their own."""
    STAGED = "staged"
    """A long body on disk that is not a message yet. This and the next use take disk, all others memory."""
    ROWS = "rows"
    """Rows of a write job on disk that are no messages yet."""


_OUTGOING: Final = (Use.ANSWER, Use.DELIVERY, Use.UNSETTLED)
ON_DISK: Final = (Use.STAGED, Use.ROWS)
ADMINISTRATORS: Final = ""
"""In place of a user's name: the administrators together."""


class Resource(NamedTuple):
    """A thing of which clients have shares."""

    name: str
    most: int
    setting: str
    refusal: type[OverBudget]


class Share:
    """A part of the budget.

    Args:
        part: the divisor: 4 makes it a quarter of the resource. None makes it three quarters. One reservation alone
            may be larger.

    Attributes:
        used: bytes that are reserved.
        waiters: how many tasks wait until some of them are given back.
    """

    __slots__ = ("_disk", "_part", "_waiting", "most", "name", "resource", "used", "waiters")

    def __init__(self, name: str, resource: Resource, part: int | None) -> None:
        self.name = name
        self.resource = resource
        self.most = resource.most - resource.most // CLIENT_PART if part is None else resource.most // part
        self.used = 0
        self.waiters = 0
        self._waiting = trio.lowlevel.ParkingLot()
        self._part = part
        self._disk: Share | None = None

    async def wait(self) -> None:
        """Wait until some bytes are given back."""
        self.waiters += 1
        try:
            await self._waiting.park()
        finally:
            self.waiters -= 1

    def wake(self) -> None:
        """Wake some of those that wait."""
        self._waiting.unpark(count=_WOKEN_TOGETHER)

    def of_disk(self, disk: Resource) -> Share:
        """The share of the disk that the same clients have."""
        if self._disk is None:  # few clients stage bodies
            self._disk = Share(self.name, disk, self._part)
        return self._disk


class Budget:
    """Bytes of memory and of disk that clients share.

    Args:
        disk: how many of disk there are for bodies that are staged.
        has_users: whether clients log in: then a share is one user's, and all others have a small one together; else
            it is one connection's.

    Attributes:
        refused: reservations that were refused, by their use.
        ended: reservations that slow clients had to give up, by their use.
    """

    def __init__(self, most: int = DEFAULT_BYTES, disk: int = DEFAULT_DISK_BYTES, *, has_users: bool = False) -> None:
        memory = Resource("memory", most, "--memory", NoMemory)
        self.most = most
        self.disk = Resource("disk space", disk, "--staging", NoDisk)
        self.declarations = Resource("memory", most // DECLARED_PART, "--memory", NoMemory)
        self.has_users = has_users
        self.refused: Counter[Use] = Counter()
        self.ended: Counter[Use] = Counter()
        self._memory = memory
        self._all = Share("all clients", memory, 1)
        # What is sent to clients empties queues: publishers alone cannot take all the memory, nor readers alone.
        self._incoming = Share("all requests", memory, None)
        self._outgoing = Share("all responses", memory, None)
        self._declared = Share("all AMQP declarations", self.declarations, 1)
        # Rows wait for a day: arriving bodies keep a quarter of the disk.
        self._rows = Share("all write jobs", self.disk, None)
        # Clients hold deliveries as long as they like: answers and deliveries of others keep the rest.
        self._unsettled = Share("all unacknowledged deliveries", memory, UNSETTLED_PART)
        self._strangers = Share("clients that have not logged in", memory, STRANGER_PART)
        self._users: dict[str, Share] = {}
        self._slow: dict[Paced, None] = {}
        self._freed = 0
        self._much_is_freed = trio.Event()
        self._refusals = {
            use: Refusals(
                f"could not reserve %d bytes of %s for %s (use: {use}), because %d of %d bytes are already in use by "
                "%s (setting: %s)"
            )
            for use in Use
        }
        self._endings = {
            use: Refusals(
                f"disconnected a slow client to free %d bytes of %s: %s (use: {use}). Before the disconnection, %d of "
                "%d bytes were in use by %s (setting: %s)"
            )
            for use in Use
        }

    @property
    def free(self) -> int:
        """How many are not reserved."""
        return self.most - self._all.used

    @property
    def used(self) -> int:
        """How many are reserved."""
        return self._all.used

    @property
    def staged(self) -> int:
        """How many of disk are reserved."""
        return self._all.of_disk(self.disk).used

    def reserve(self, size: int = 0, use: Use = Use.BODY) -> Room:
        """Bytes for mq itself, and for requests of no connection: as :meth:`ClientMemory.reserve`, without a share."""
        return self.own().reserve(use, size)

    def own(self) -> ClientMemory:
        """The memory of a client that has no share: all that is free is its own."""
        return ClientMemory(self, "mq itself", None, None)

    def client(self, name: str, let_go: Callable[[], None] | None = None) -> ClientMemory:
        """The memory of a new connection.

        Args:
            let_go: ends the connection soon; called when it reads slowly, and others want the memory.
        """
        share = self._strangers if self.has_users else Share("this connection", self._memory, CLIENT_PART)
        return ClientMemory(self, name, share, let_go)

    def share_of(self, user: str) -> Share:
        """The share of a user."""
        share = self._users.get(user)
        if share is None:
            # Users come from a file or from the cluster, so there are not too many.
            name = "administrators" if user == ADMINISTRATORS else f"user {user}"
            share = self._users[user] = Share(name, self._memory, CLIENT_PART)
        return share

    def declarations_of(self, client: str) -> Room:
        """The memory of what one client declares: it stays when the connection has gone."""
        share = Share(client or "declarations of other nodes and earlier runs", self.declarations, DECLARED_PART)
        return Room(ClientMemory(self, share.name, share), Use.DECLARED, (self._declared, share))

    def write_job(self, name: str, owner: str | None) -> Room:
        """The disk of a write job. It is its owner's, whatever becomes of the connection.

        Args:
            owner: the user who began it; None for an administrator, or where there are no users. There, each job has a
                share of its own.
        """
        if self.has_users:
            share = self.share_of(owner or ADMINISTRATORS)
        else:
            share = Share("this write job", self._memory, CLIENT_PART)
        client = ClientMemory(self, f"write job {name}", share)
        client.user = owner
        return Room(client, Use.ROWS, client.shares(Use.ROWS))

    @contextmanager
    def arriving(self, chunks: AsyncIterator[bytes], room: Room, let_go: Callable[[], None]) -> Iterator[PacedChunks]:
        """A block in which a client sends a body, after its memory was reserved.

        Args:
            let_go: called at most once: the client is slow, and others want the memory. Ends the block soon.
        """
        arrival = PacedChunks(chunks, room, let_go)
        self._slow[arrival] = None
        try:
            yield arrival
        finally:
            self._slow.pop(arrival, None)

    def watch(self, paced: Paced) -> None:
        """Let a client go when it is slow, and others want its memory."""
        self._slow[paced] = None

    def unwatch(self, paced: Paced) -> None:
        """Leave a client alone again."""
        self._slow.pop(paced, None)

    def note_freed(self, size: int) -> None:
        """Count memory that the process has freed."""
        self._freed += size
        if self._freed >= MUCH_BYTES:
            self._much_is_freed.set()

    async def until_much_is_freed(self) -> None:
        """Wait until clients have given back :data:`MUCH_BYTES` since :meth:`forget_freed`."""
        await self._much_is_freed.wait()

    def forget_freed(self) -> None:
        """Begin to count anew."""
        self._freed = 0
        self._much_is_freed = trio.Event()

    def make_room(self, share: Share, size: int) -> bool:
        """Make slow clients give up what they have of a share, the slowest first, until `size` bytes are free soon.

        Returns:
            Whether they will be.
        """
        lacking = size - (share.most - share.used)
        slow = [each for each in self._slow if share in each.room.shares and each.is_slow()]
        for each in sorted(slow, key=_bytes_per_second):
            if lacking <= 0:
                break
            room = each.room
            lacking -= room.size
            self.ended[room.use] += 1
            resource = share.resource
            limits = share.used, share.most, share.name, resource.setting
            self._endings[room.use].add(room.size, resource.name, room.client, *limits)
            self.unwatch(each)
            each.let_go()
        return lacking <= 0

    def refuse(self, room: Room, size: int, share: Share) -> OverBudget:
        """Count and log a refusal; return the error for the client.

        Args:
            room: is too small.
        """
        resource = share.resource
        self.refused[room.use] += 1
        limits = share.used, share.most, share.name, resource.setting
        self._refusals[room.use].add(size, resource.name, room.client, *limits)
        self.make_room(share, size - room.size)
        return resource.refusal(
            f"not enough {resource.name} for {size} bytes: the limit for {share.name} is {share.most} bytes. "
            + ("Commit or abort other write jobs" if room.use is Use.ROWS else "Try again, or send less data at once")
        )

    def shares(self, share: Share | None, use: Use) -> tuple[Share, ...]:
        """The shares in which a reservation counts.

        Args:
            share: the client's, of the memory; None counts in the whole alone.
        """
        if use in ON_DISK:
            shares = tuple(each.of_disk(self.disk) for each in (self._all, share) if each is not None)
            return (*shares, self._rows) if use is Use.ROWS else shares
        if share is None:
            return (self._all,)
        if use is Use.UNSETTLED:
            return (self._all, self._outgoing, self._unsettled, share)
        return (self._all, self._outgoing if use in _OUTGOING else self._incoming, share)


class ClientMemory:
    """The memory of one client: of a connection, or of one of several requests on a connection.

    Args:
        share: counts it; None for none.
        let_go: ends the connection, or the request; None where that cannot be ended.
        connection: the memory of the connection, where this is one request's.

    Attributes:
        user: the name of the one that has logged in; None before.
        rooms: what it has reserved now. Not to be changed.
    """

    __slots__ = ("_connection", "_requests", "_share", "budget", "let_go", "logins", "name", "rooms", "user")

    def __init__(
        self,
        budget: Budget,
        name: str,
        share: Share | None,
        let_go: Callable[[], None] | None = None,
        connection: ClientMemory | None = None,
    ) -> None:
        self.budget = budget
        self.name = name
        self.user: str | None = None
        self.let_go = let_go
        self.logins = 0
        self._connection = connection
        self._share = share
        self.rooms: set[Room] = set()
        self._requests: set[ClientMemory] = set()

    def __str__(self) -> str:
        return f"user {self.user or '-'}, connection {self.name}"

    @property
    def reserved(self) -> int:
        """Bytes of memory that it has reserved now."""
        return sum(room.size for room in self.rooms if room.use not in ON_DISK)

    def reserve(self, use: Use, size: int = 0) -> Room:
        """Reserve bytes. Give them back with :meth:`Room.give_back`, or at the end of the block.

        Raises:
            BodyTooLarge: more than there are.
            OverBudget: more than are free just now: :class:`~mq.errors.NoDisk` of disk, else
                :class:`~mq.errors.NoMemory`.
        """
        room = Room(self, use, self.shares(use))
        room.cover(size)
        return room

    def shares(self, use: Use) -> tuple[Share, ...]:
        """The shares in which a reservation counts now."""
        return self.budget.shares(self._share, use)

    def log_in(self, user: str) -> None:
        """Count what is reserved, now and later, in the share of a user.

        Raises:
            NoMemory: the user has reserved too much for that.
        """
        if user == self.user or self._share is None:
            return
        if self.budget.has_users:
            share, size = self.budget.share_of(user), self.reserved
            if size and share.used and share.used + size > share.most:
                raise self.budget.refuse(next(iter(self.rooms)), size, share)
            self._share = share
            for room in self.rooms:
                room.move()
            self.logins += 1
        self.user = user
        if self._connection is not None:
            self._connection.log_in(user)

    def request(self, let_go: Callable[[], None] | None = None) -> ClientMemory:
        """The memory of one request of several on the connection. It counts in the same share until it logs in."""
        memory = ClientMemory(self.budget, self.name, self._share, let_go, self)
        memory.user = self.user
        self._requests.add(memory)
        return memory

    def close(self, keep: Room | None = None) -> None:
        """Give back everything that is still reserved: the client has gone, or its request is answered.

        Args:
            keep: stays reserved; None at the end of the client.
        """
        if keep is None:
            self.budget.note_freed(CONNECTION_BYTES)
        for room in [room for room in self.rooms if room is not keep]:
            room.give_back()
        while self._requests:
            self._requests.pop().close()
        if self._connection is not None:
            self._connection._requests.discard(self)

    def note_new(self, room: Room) -> None:
        """Note that a reservation is in use."""
        self.rooms.add(room)

    def note_free(self, room: Room) -> None:
        """Note that a reservation is not in use any more."""
        self.rooms.discard(room)


class Room:
    """The memory, or the disk, that is reserved for one thing."""

    __slots__ = ("_logins", "_released", "_sends_since", "client", "shares", "size", "use")

    def __init__(self, client: ClientMemory, use: Use, shares: tuple[Share, ...]) -> None:
        self.client = client
        self.use = use
        self.shares = shares
        self.size = 0
        self._logins = client.logins
        self._released = 0
        self._sends_since: float | None = None

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_back()

    @property
    def resource(self) -> Resource:
        """What is reserved."""
        return self.shares[0].resource

    @property
    def room(self) -> Room:
        """Itself, as :class:`Paced` has it."""
        return self

    @property
    def free(self) -> int:
        """How many bytes more it could have now."""
        self._heed_login()
        return max(0, min(share.most - share.used for share in self.shares))

    def cover(self, size: int) -> None:
        """Have at least `size` bytes from now on. What is refused changes nothing.

        Raises:
            BodyTooLarge: more than the whole budget.
            OverBudget: more than are free just now.
        """
        more = size - self.size
        if more <= 0:
            return
        if self._logins != self.client.logins:
            self._heed_login()
        for share in self.shares:
            if share.used + more > share.most and share.used > self.size:
                raise self._refused(size, share)
        if size > self.shares[0].most:
            raise _too_large(size, self.shares[0].resource)
        for share in self.shares:
            share.used += more
        if not self.size:
            self.client.note_new(self)
        self.size = size

    def cover_if_free(self, size: int) -> bool:
        """As :meth:`cover`, but return False where so much is not free, and count no refusal."""
        more = size - self.size
        if more > 0:
            if self._logins != self.client.logins:
                self._heed_login()
            for share in self.shares:
                if share.used + more > share.most:
                    return False
            self.take(size)
        return True

    def cover_strictly(self, size: int) -> None:
        """As :meth:`cover`, but a reservation alone is not larger than its shares, either.

        Raises:
            BodyTooLarge: more than one of its shares.
            OverBudget: more than are free just now.
        """
        if self.cover_if_free(size):
            return
        for share in self.shares:
            if size > share.most:
                raise BodyTooLarge(
                    f"{self.client.name} needs {size} bytes of {share.resource.name}, but the limit for "
                    f"{share.name} is {share.most} bytes ({share.resource.setting}). Write less data at once"
                )
        share = next(share for share in self.shares if share.used + size - self.size > share.most)
        raise self.client.budget.refuse(self, size, share)

    def take(self, size: int) -> None:
        """Have at least `size` bytes from now on, however few are free."""
        more = size - self.size
        if more > 0:
            for share in self.shares:
                share.used += more
            if not self.size:
                self.client.note_new(self)
            self.size = size

    async def cover_soon(self, size: int) -> None:
        """As :meth:`cover`, but wait until the memory is free.

        Raises:
            BodyTooLarge: more than the whole budget.
        """
        while (lacking := self._lacking(size)) is not None:
            self.client.budget.make_room(lacking, size - self.size)
            with trio.move_on_after(RETRY_SECONDS):
                await lacking.wait()
        self.cover(size)

    async def cover_after_slow(self, size: int) -> None:
        """As :meth:`cover`, but if slow clients have to make room for it, wait until they have.

        Raises:
            BodyTooLarge: more than the whole budget.
            OverBudget: more than are free, and are free soon.
        """
        lacking = self._lacking(size)
        if lacking is not None and self.client.budget.make_room(lacking, size - self.size):
            with trio.move_on_after(RETRY_SECONDS):
                while (lacking := self._lacking(size)) is not None:
                    await lacking.wait()
        self.cover(size)

    def _lacking(self, size: int) -> Share | None:
        self._heed_login()
        more = size - self.size
        return next((each for each in self.shares if each.used + more > each.most and each.used > self.size), None)

    def _refused(self, size: int, share: Share) -> OverBudget | BodyTooLarge:
        resource = share.resource
        return _too_large(size, resource) if size > resource.most else self.client.budget.refuse(self, size, share)

    def shrink(self, size: int) -> None:
        """Give back what is over `size` bytes."""
        less = self.size - size
        if less <= 0:
            return
        self.size = size
        for share in self.shares:
            share.used -= less
            if share.waiters:
                share.wake()
        if self._sends_since is not None:
            self._released += less
            if not self._is_behind():
                self._sends_since, self._released = trio.current_time(), 0
        if self.use not in ON_DISK:
            self.client.budget.note_freed(less)
        if not size:
            if self._sends_since is not None:
                self._sends_since = None
                self.client.budget.unwatch(self)
            self.client.note_free(self)

    def move(self) -> None:
        """Count it in the present shares of its client from now on."""
        for share in self.shares:
            share.used -= self.size
        self.shares = self.client.shares(self.use)
        for share in self.shares:
            share.used += self.size

    def _heed_login(self) -> None:
        """Take up the shares of a client that has logged in since. It knows its reservations in use alone."""
        if self._logins != self.client.logins:
            self._logins = self.client.logins
            self.move()

    def arriving(self, chunks: AsyncIterator[bytes], let_go: Callable[[], None]) -> AbstractContextManager[PacedChunks]:
        """As :meth:`Budget.arriving`, of what is to fill this room."""
        return self.client.budget.arriving(chunks, self, let_go)

    def begin_sending(self) -> None:
        """Note that what is in it is being sent, and shrinks as the client reads. A client that reads slowly is let go
        when others want the memory."""
        if self.size and self._sends_since is None and self.client.let_go is not None:
            self._sends_since, self._released = trio.current_time(), 0
            self.client.budget.watch(self)

    def is_slow(self) -> bool:
        """Whether the client reads so slowly that it makes room for others."""
        return self._seconds > PATIENCE_SECONDS and self._is_behind()

    @property
    def bytes_per_second(self) -> float:
        """How fast the client reads, since it was last fast enough."""
        return self._released / max(self._seconds, 1.0)

    @property
    def _seconds(self) -> float:
        return 0.0 if self._sends_since is None else trio.current_time() - self._sends_since

    def _is_behind(self) -> bool:
        return self._released < ENOUGH_BYTES_PER_SECOND * self._seconds

    def let_go(self) -> None:
        """End the client, for it is slow."""
        if self.client.let_go is not None:
            self.client.let_go()

    def give_back(self) -> None:
        """Give back all of it."""
        self.shrink(0)


class PacedChunks:
    """The chunks of something large, as they come from a client. The time spent waiting for them is the client's.

    Args:
        let_go: as given to :meth:`Budget.arriving`.
    """

    def __init__(self, chunks: AsyncIterator[bytes], room: Room, let_go: Callable[[], None]) -> None:
        self.room = room
        self.let_go = let_go
        self._chunks = chunks
        self._size = 0
        self._waited = 0.0
        self._waits_since: float | None = None

    def __aiter__(self) -> PacedChunks:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk."""
        self._waits_since = trio.current_time()
        try:
            chunk = await anext(self._chunks)
        finally:
            self._waited, self._waits_since = self._waited_until_now(), None
        self._size += len(chunk)
        if self._size >= ENOUGH_BYTES_PER_SECOND * self._waited:
            # What came fast before does not allow a longer pause now.
            self._size, self._waited = 0, 0.0
        return chunk

    def is_slow(self) -> bool:
        """Whether it arrives so slowly that it makes room for others."""
        waited = self._waited_until_now()
        return waited > PATIENCE_SECONDS and self._size < ENOUGH_BYTES_PER_SECOND * waited

    @property
    def bytes_per_second(self) -> float:
        """How fast it arrives, since it was last fast enough."""
        return self._size / max(self._waited_until_now(), 1.0)

    def _waited_until_now(self) -> float:
        now_waiting = 0.0 if self._waits_since is None else trio.current_time() - self._waits_since
        return self._waited + now_waiting


Paced = PacedChunks | Room
"""What a slow client may have to give up."""


def _bytes_per_second(paced: Paced) -> float:
    return paced.bytes_per_second


def _too_large(size: int, resource: Resource) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request needs {size} bytes of {resource.name}, but the limit is {resource.most} bytes "
        f"({resource.setting}). Send less data at once"
    )
