"""What happens to keys, as it happens: a reply that does not end, taken up again at another member where it breaks.

No event is told twice or left out. A stream that is silent may be that of a member that is asleep or cut off: so after
a silence the member has to answer a read that takes a majority, or the stream is taken up elsewhere.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import trio

from mq_etcd.connection import BROKEN, Connection, Endpoint
from mq_etcd.errors import Compacted, EtcdError, Rejected, Unavailable, Uncertain
from mq_etcd.members import BETWEEN_ROUNDS_SECONDS, Members
from mq_etcd.refusals import error_of, refusal
from mq_etcd.values import Event, Get, Json, event, get_json, revision_of, text


class Watch:
    """Events of a range of keys, from :meth:`mq_etcd.client.Client.watch`: an asynchronous iterator inside its block.

    Attributes:
        revision: everything up to it has been told.

    Args:
        key: the first key.
        end: where the range ends; None for that key alone.
        revision: of the first event to be told; None for those after the block is entered.
        silence: seconds after which a member that says nothing is asked whether it is still there.
    """

    def __init__(self, members: Members, key: str, end: str | None, revision: int | None, silence: float) -> None:
        self._members = members
        self._key = key
        self._end = end
        self._silence = silence
        self.revision: int | None = None if revision is None else revision - 1
        self._told: deque[Event] = deque()
        self._stack = AsyncExitStack()
        self._stream: tuple[Endpoint, Connection] | None = None
        self._line = bytearray()

    async def __aenter__(self) -> Watch:
        """From here on nothing is missed.

        Raises:
            Compacted: `revision` is too old; or the first event that is asked for raises it.
            Unavailable: no member answers.
        """
        failure: EtcdError | None = None
        for _ in self._members.endpoints:
            try:
                await self._take_up()
            except Unavailable as error:
                failure = error
            else:
                return self
        assert failure is not None
        raise failure

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._let_go()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        """The next event, in the order of revisions. Waits for it, and for members to come back, as long as it takes.

        Raises:
            Compacted: it was taken up again at a revision that has been thrown away: read everything anew.
            Rejected: it is not allowed any more.
        """
        while not self._told:
            try:
                if self._stream is None:
                    await self._take_up()
                else:
                    await self._read()
            except Unavailable:
                await self._let_go()
                await trio.sleep(BETWEEN_ROUNDS_SECONDS)
        return self._told.popleft()

    async def _take_up(self) -> None:
        create: dict[str, Any] = {"key": text(self._key.encode())}
        if self._end is not None:
            create["range_end"] = text(self._end.encode())
        if self.revision is not None:
            create["start_revision"] = str(self.revision + 1)
        self._line.clear()
        self._stream = await self._stack.enter_async_context(
            self._members.stream("/v3/watch", {"create_request": create})
        )
        await self._read()

    async def _read(self) -> None:
        """Take what the member says next.

        Raises:
            Unavailable: it says nothing more.
        """
        assert self._stream is not None
        member, connection = self._stream
        try:
            with trio.move_on_after(self._silence) as waiting:
                part = await connection.part()
        except BROKEN as error:
            await self._let_go(member)
            raise Unavailable(f"the watch on etcd at {member} was lost: {error}") from error
        if waiting.cancelled_caught:
            await self._check(member)
            return
        if not part:
            await self._let_go(member)
            raise Unavailable(f"etcd at {member} ended the watch")
        self._line += part
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            if line:
                self._take(json.loads(line), bytes(line), member)

    def _take(self, said: Json, line: bytes, member: Endpoint) -> None:
        result = said.get("result")
        if result is None:
            error = error_of(refusal(200, line), str(member))
            raise Unavailable(str(error)) if isinstance(error, Uncertain) else error
        oldest = int(result.get("compact_revision", 0))
        if oldest:
            raise Compacted(f"etcd has compacted revisions before {oldest}. Read the data again", oldest)
        if result.get("canceled"):
            reason = str(result.get("cancel_reason", ""))
            if "permission" in reason:
                raise Rejected(f"etcd at {member} ended the watch: {reason}")
            raise Unavailable(f"etcd at {member} ended the watch: {reason}")
        if self.revision is None:  # it has been created: what comes after this is told
            self.revision = revision_of(result)
        for found in map(event, result.get("events", ())):
            self._told.append(found)
            self.revision = max(self.revision, found.revision)

    async def _check(self, member: Endpoint) -> None:
        try:
            await self._members.ask_member(member, "/v3/kv/range", get_json(Get(self._key, count_only=True)))
        except (Unavailable, Uncertain) as error:
            await self._let_go(member)
            raise Unavailable(str(error)) from error

    async def _let_go(self, failed: Endpoint | None = None) -> None:
        self._stream = None
        await self._stack.aclose()
        if failed is not None:
            self._members.pass_over(failed)
