"""The calendar: delayed messages whose time is more than twelve hours away, and the clock by which they wait.

A deadline is an instant of the wall clock, and the wall clock is set now and then. So a message that is far off has no
timer: the calendar compares its deadline with the clock every minute. Once the message is due within twelve hours the
mover has it, and its delay runs by the steady clock, as a lease does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from mq.broker.catalog import Catalog
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS
from mq.broker.index import QueueIndex
from mq.message import MessageId, MessageIds
from mq.storage.interface import Entry

LOOK_SECONDS: Final = 60.0
"""How often the calendar is compared with the clock. A clock that was set is noticed as late as that."""
JUMP_SECONDS: Final = 7 * 86_400.0
"""A clock that is further ahead of all that is known may be wrong."""
DOUBT_SECONDS: Final = 300.0
"""How long such a clock is doubted. A machine that starts with a wrong clock has set it by then."""
NEAR_SECONDS: Final = LONGEST_LEASE_SECONDS + MARGIN_SECONDS
"""What falls due sooner has a timer."""
_MOST_TAKEN: Final = 1000
"""Messages that get their timers before other tasks run."""

logger = logging.getLogger("mq.broker")


class Calendar:
    """Keeps what is far off in the indexes of the queues, until it is near. Has a task only as long as something is.

    Args:
        catalog: has the queues.
        ids: tells how late it was when the youngest message came.
        clock_ns: wall clock, nanoseconds since 1970.
        is_near: called with each message that falls due within :data:`NEAR_SECONDS`, and the seconds until then.
    """

    def __init__(
        self,
        catalog: Catalog,
        ids: MessageIds,
        clock_ns: Callable[[], int],
        is_near: Callable[[QueueIndex, Entry, float], None],
    ) -> None:
        self._catalog = catalog
        self._ids = ids
        self._clock_ns = clock_ns
        self._is_near = is_near
        self._is_loading = True
        self._is_watching = False
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery | None) -> None:
        """Note that all messages of the store are there: what comes from now on has its deadline by today's clock.

        Args:
            nursery: gets the task; None where others move what is due.
        """
        self._is_loading, self._nursery = False, nursery
        if any(index.far_off for index in self._catalog.queues.values()):
            self._watch()

    def add(self, index: QueueIndex, entry: Entry, *, is_new: bool = False) -> bool:
        """Take a delayed message that stands in the index, if it is far off; else False.

        Args:
            index: its queue.
            entry: the message.
            is_new: whether its deadline is from its publishing, perhaps in an earlier life.
        """
        deadline_ms, _, receipt, _, _ = entry.meta
        if receipt is not None or deadline_ms is None:
            return False  # a lease: no clock makes one longer than the longest
        # At a start the clock may be years off: only a delay that was short from the beginning is taken for short.
        key = entry.id.key
        is_dated = self._is_loading or is_new
        since_ns = MessageId.time_ns(MessageId.time_in(key)) if is_dated else self._clock_ns()
        if deadline_ms / 1e3 - since_ns / 1e9 <= NEAR_SECONDS:
            return False
        index.put_off(entry, key)
        self._watch()
        return True

    def _watch(self) -> None:
        if self._nursery is not None and not self._is_watching:
            self._is_watching = True
            clock = DoubtedClock(self._clock_ns, MessageId.time_ns(self._ids.last), "delayed messages", "come")
            self._nursery.start_soon(self._run, clock)

    async def _run(self, clock: DoubtedClock) -> None:
        """Watch until nothing is far off any more."""
        # Without an await between the look at the queues and the end: what comes then begins anew.
        while any(index.far_off for index in self._catalog.queues.values()):
            await self._look(clock.now_ns())
            await trio.sleep(LOOK_SECONDS)
        self._is_watching = False

    async def _look(self, now_ns: int) -> None:
        """Hand over what is near by now."""
        up_to_ms = now_ns // 1_000_000 + round(NEAR_SECONDS * 1000)
        for index in list(self._catalog.queues.values()):
            while not index.deleted and (taken := index.far_off.take(up_to_ms, _MOST_TAKEN)):
                for entry in taken:
                    index.add(entry)
                    self._is_near(index, entry, max(0.0, (entry.meta.deadline_ms or 0) / 1e3 - now_ns / 1e9))
                await trio.lowlevel.checkpoint()


class DoubtedClock:
    """A wall clock that is doubted for a while when it is far ahead of everything known.

    A machine may start with a clock that is years ahead, and set it soon. Without the doubt every delayed message would
    come at once, for good, and what has a time to live would go. A clock that is behind does no harm: all that waits
    for an instant goes on waiting until it is set.

    Args:
        clock_ns: wall clock, nanoseconds since 1970.
        youngest_ns: when the youngest message came. It is later than that.
        what: waits for an instant, for the log.
        does: what it does then.
    """

    def __init__(self, clock_ns: Callable[[], int], youngest_ns: int, what: str, does: str) -> None:
        self._what, self._does = what, does
        self._clock_ns = clock_ns
        self._youngest_ns = youngest_ns
        self._believed_ns = youngest_ns
        self._looked = trio.current_time()
        self._doubted_since: float | None = None

    def now_ns(self) -> int:
        """How late it is, in nanoseconds since 1970."""
        now, shown_ns = trio.current_time(), self._clock_ns()
        expected_ns = self._believed_ns + round((now - self._looked) * 1e9)
        ahead = (shown_ns - max(expected_ns, self._youngest_ns)) / 1e9
        if ahead <= JUMP_SECONDS:
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = now
            logger.warning(
                "the clock is %.0f days ahead of what this store knows: %s that would be due by it wait "
                "for %.0f seconds more, in which it may be set. Set it if it is wrong",
                ahead / 86_400,
                self._what,
                DOUBT_SECONDS,
            )
        elif now - self._doubted_since >= DOUBT_SECONDS:
            logger.warning("the clock has not been set: %s that are due by it %s now", self._what, self._does)
            self._doubted_since = None
            self._believed_ns, self._looked = shown_ns, now
            return shown_ns
        self._believed_ns, self._looked = (shown_ns if self._doubted_since is None else expected_ns), now
        return self._believed_ns
