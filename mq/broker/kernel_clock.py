"""What the kernel knows of time: seconds since the boot, whether a time server sets the clock, and when it is set.

:class:`BootClock` is a Trio clock that goes on while the machine sleeps. A daemon runs by it, so that all timers count
the sleep; :class:`StepNotice` wakes its event loop when the machine wakes up.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from mq.broker.clock import LOOK_SECONDS, Boot, Clock, Kernel

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_TIME_NAMESPACE: Final = "/proc/self/ns/time"
_TIME_ERROR: Final = 5
"""adjtimex(2): the clock is not synchronised."""
_TFD_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
_TFD_TIMER_ABSTIME: Final = 1
_TFD_TIMER_CANCEL_ON_SET: Final = 2
_ITIMERSPEC: Final = struct.Struct("=4q" if struct.calcsize("l") == 8 else "=4l")
_NEVER: Final = (1 << 31) - 2
"""A second of the wall clock that a timer of 32 bits can have: 2038, or whatever the timer makes of it."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


boot_seconds: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Returns seconds since the machine was booted, with those in which it slept. No clock that is set changes them. It is
read some forty times a message, so it is a function without a frame of Python's."""


def this_boot() -> Boot | None:
    """The boot of this machine; None where the kernel does not tell."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            name = file.read().strip()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # seconds since the boot may differ in a container with a clock of its own
        name = f"{name} {os.readlink(_TIME_NAMESPACE)}"
    return Boot(name, boot_seconds()) if name else None


def is_synchronised() -> bool:
    """Whether the kernel calls its wall clock synchronised: a time server keeps it right (adjtimex(2))."""
    with contextlib.suppress(AttributeError):
        reading = ctypes.create_string_buffer(512)  # a struct timex, all of it zero: nothing is changed
        return int(_LIBC.adjtimex(reading)) not in (-1, _TIME_ERROR)
    return False


KERNEL: Final = Kernel(this_boot, is_synchronised)


def system_clock() -> Clock:
    """A broker's clock over those of this machine."""
    return Clock(time.time_ns, boot_seconds, KERNEL)


class BootClock(trio.abc.Clock):
    """Trio's clock in seconds since the boot of the machine. All timers of a program that runs by it count its sleep.

    Attributes:
        longest_sleep: the event loop looks at the clock so many seconds after it began to wait, at the latest. The
            kernel does not count a machine's sleep while it waits, so something has to wake the loop.
        waits_since: when the event loop began to wait last (:class:`mq.turns.WaitClock`).
    """

    def __init__(self) -> None:
        self.longest_sleep = LOOK_SECONDS
        self.waits_since = boot_seconds()
        self.current_time = boot_seconds  # type: ignore[method-assign] # saves a frame in each pass of the event loop

    def start_clock(self) -> None:
        """Nothing to do: it runs."""

    def current_time(self) -> float:
        """Seconds since the boot."""
        return boot_seconds()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds to wait for a deadline. The event loop asks just before it waits."""
        self.waits_since = now = boot_seconds()
        return min(deadline - now, self.longest_sleep)


class StepNotice:
    """The kernel's notice that the wall clock was set, or that the machine has slept: a timer that such a step cancels
    (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).

    Raises:
        OSError: this kernel has none.
    """

    def __init__(self) -> None:
        try:
            self._fd = int(_LIBC.timerfd_create(time.CLOCK_REALTIME, _TFD_FLAGS))
        except AttributeError as error:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            self._arm()
        except OSError:
            os.close(self._fd)
            raise

    async def wait(self) -> None:
        """Wait for the next step."""
        await trio.lowlevel.wait_readable(self._fd)
        with contextlib.suppress(OSError):  # ECANCELED says that there was one
            os.read(self._fd, 8)
        self._arm()

    def close(self) -> None:
        """Close the timer."""
        os.close(self._fd)

    def _arm(self) -> None:
        flags = _TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET
        when = _ITIMERSPEC.pack(0, 0, max(_NEVER, int(time.time()) + _NEVER), 0)
        if _LIBC.timerfd_settime(self._fd, flags, when, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


async def heed_steps(clock: Clock) -> None:
    """Have a broker's clock looked at whenever the kernel reports a step, and until it has settled. Runs for ever.

    Where the kernel reports none it ends: then the event loop of a program that runs by a :class:`BootClock` wakes up
    every :data:`~mq.broker.clock.LOOK_SECONDS`.
    """
    try:
        notice = StepNotice()
    except OSError:
        return
    trio_clock = trio.lowlevel.current_clock()
    try:
        if isinstance(trio_clock, BootClock):
            trio_clock.longest_sleep = math.inf
        while True:
            with trio.move_on_after(math.inf if clock.is_settled else LOOK_SECONDS) as scope:
                await notice.wait()
            if scope.cancelled_caught:
                clock.wake()  # an idle broker does not look by itself
            else:
                clock.note_step()
    finally:
        notice.close()
        if isinstance(trio_clock, BootClock):
            trio_clock.longest_sleep = LOOK_SECONDS
