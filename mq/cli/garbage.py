"""Garbage in cycles is collected little by little.

CPython collects once enough more objects were made than freed. A message is some ten objects without a cycle, so a
collection looks at them for nothing: 100 ms for 100,000 messages, in one step of the event loop, in which no client is
served. And while as many messages go as come, CPython counts nothing: what comes to be collected in the end are all the
objects that were made meanwhile.

So the daemon collects by the time: of the objects that were made within a few passes of the event loop, those that
nothing refers to. Once very many are left, they are frozen: not looked at again before
:meth:`GarbageRounds.collect_all`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

import trio

ROUND_SECONDS: Final = 0.05
"""From one round to the next, while the event loop has work. In so short a time some ten thousand objects are made, at
which a collection looks in 1 to 5 ms. Rounds of 20 ms cost an AMQP publish up to 5 % of its processor time."""
MIDDLE_SECONDS: Final = 0.25
"""From one round that also looks at what survived the rounds before to the next one."""
OLD_SECONDS: Final = 1.0
"""From one round that looks at all objects that are not frozen to the next one; less while very many are made."""
FROZEN_OBJECTS: Final = 50_000
"""If at least so many are left, it freezes them: some 5,000 messages. What is frozen while it is in use, and ends in a
cycle, stays until :meth:`GarbageRounds.collect_all`. So a daemon that makes exceptions, and no messages, freezes
nothing: it kept 1.5 MB a second where publishers were refused."""
FEW_FROZEN: Final = 10_000
"""Objects that may be frozen beside those from the daemon's start, which are most: a collection that looks at these as
well takes 60 ms, in one step of the event loop."""
_YOUNG, _MIDDLE, _OLD = range(3)
"""CPython's generations: a collection takes the younger ones, too."""
_NEW_OBJECTS: Final = 100_000
_NEVER: Final = 1_000_000
"""CPython's own thresholds: a step that makes very many objects collects within it, and never looks at all objects."""


class GarbageRounds(trio.abc.Instrument):
    """Collects after passes of the event loop, when a round is due: nothing in a loop without work.

    Args:
        now: seconds.
        new: how many more objects were made than freed since the last collection.
        left: how many objects are not frozen.
    """

    __slots__ = (
        "_at_start",
        "_collect",
        "_due",
        "_freeze",
        "_frozen",
        "_left",
        "_made",
        "_middle_due",
        "_new",
        "_now",
        "_old_due",
    )

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        collect: Callable[[int], object] = gc.collect,
        new: Callable[[], int] = lambda: gc.get_count()[0],
        left: Callable[[], int] = lambda: len(gc.get_objects()),
        freeze: Callable[[], object] = gc.freeze,
    ) -> None:
        self._at_start = 0  # objects that were frozen then, and were left at the last whole collection
        self._frozen = gc.get_freeze_count()  # others, whether they are in use by now or not
        self._now = now
        self._collect = collect
        self._new = new
        self._made = 0  # since the last round that looked at all objects
        self._left = left
        self._freeze = freeze
        self._due = now() + ROUND_SECONDS
        self._middle_due = now() + MIDDLE_SECONDS
        self._old_due = now() + OLD_SECONDS

    def begin(self) -> None:
        """Collect garbage in the event loop that runs here from now on, and freeze what the daemon's start has made."""
        self.collect_all()
        gc.freeze()
        self._at_start, self._frozen = gc.get_freeze_count(), 0
        gc.set_threshold(_NEW_OBJECTS, _NEVER, _NEVER)
        trio.lowlevel.add_instrument(self)

    def collect_all(self) -> None:
        """Free what nothing refers to, with what CPython keeps at hand. It takes 1.2 ms for each 1,000 messages.

        Objects from the daemon's start stay frozen as long as few others are: hardly any of them is garbage. What was
        frozen is counted, not what is left of it: as many objects of a backlog from the start may have gone.
        """
        # The cache of attributes has a reference to each name that was looked up, among them the many equal ones that
        # exception groups make. A few hundred of these kept a third of a mebibyte each from being returned.
        clear = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
        if clear is not None:
            clear()
        is_whole = self._frozen > FEW_FROZEN
        if is_whole:
            gc.unfreeze()
        gc.collect()
        left = self._left()
        if is_whole:
            self._at_start = min(self._at_start, left)
            self._frozen = left - self._at_start
        elif left >= FROZEN_OBJECTS:
            self._frozen += left
        if is_whole or left >= FROZEN_OBJECTS:
            gc.freeze()

    def before_io_wait(self, timeout: float) -> None:
        """Collect if a round is due. The tasks that the pass made runnable wait for it."""
        now = self._now()
        if now < self._due:
            return
        self._due = now + ROUND_SECONDS
        self._made += self._new()
        # So many objects at once, as a table of headers may bring, are frozen before the next round looks at them.
        if now >= self._old_due or self._made >= FROZEN_OBJECTS:
            self._made = 0
            self._middle_due, self._old_due = now + MIDDLE_SECONDS, now + OLD_SECONDS
            self._collect(_OLD)
            if (left := self._left()) >= FROZEN_OBJECTS:
                self._frozen += left
                self._freeze()
        elif now >= self._middle_due:
            self._middle_due = now + MIDDLE_SECONDS
            self._collect(_MIDDLE)
        else:
            self._collect(_YOUNG)
