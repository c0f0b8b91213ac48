"""When a request is sent again, and after what pause: pure arithmetic, with the clock and the dice given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any, Final

from mq.client.calls import Again, Answer, Call, Source, changed_nothing
from mq.client.values import Duration, duration

_BUSY: Final = frozenset({429, 502, 503, 504})
"""Statuses that may pass. 502 and 504 are not mq's: a proxy could not reach it."""
_NOT_SERVED: Final = frozenset({429})
"""Statuses, from mq or from a proxy, after which nothing was changed. A 503 may come from a write whose outcome is
unknown."""
_LARGEST_EXPONENT: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long, and after which pauses, a client tries again.

    Attributes:
        patience: how long after the first try another may begin; 0 never tries again.
        first: the longest first pause; each further pause may be twice as long, ...
        longest: ... and none is longer than this, unless the daemon's Retry-After asks for more.

    Raises:
        TypeError, ValueError: a value is not a duration.
    """

    patience: Duration = 60.0
    first: Duration = 0.1
    longest: Duration = 10.0

    def __post_init__(self) -> None:
        for name in ("patience", "first", "longest"):
            object.__setattr__(self, name, duration(name, getattr(self, name)))


ONCE: Final = Retry(patience=0.0)
"""For a caller that makes its own pauses: the renewal of a lease."""
GIVING_BACK: Final = Retry(patience=3.0)
"""For a message that is given back: its lease ends by itself anyway."""
CONSUME_WAIT_SECONDS: Final = 20.0
"""How long one fetch of an endless consumer waits."""
PAGE: Final = 100
"""Messages of a page."""


class Tries:
    """The tries of one request.

    Args:
        clock: seconds that only ever increase.
        random: spreads the pauses, so that many clients do not come back together.
        wall_clock: seconds since 1970, for a Retry-After that is a date.
    """

    def __init__(
        self,
        call: Call[Any],
        retry: Retry,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._again = call.again
        self._is_repeatable = not isinstance(call.body, Source) or call.body.is_repeatable
        self._retry = retry
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random or Random()
        self._begun = clock()
        self._count = 0
        self.perhaps_served = False
        """Whether a try without an answer may have been served: what the next try finds done is its work."""
        self.is_unsure = False
        """Whether the effect of a try is unknown. With a 503 the daemon says whether it changed anything."""

    def after_answer(self, answer: Answer) -> float | None:
        """Seconds to pause before the next try; None when this answer counts."""
        if answer.status not in _BUSY or not self._is_repeatable or self._again is Again.NEVER:
            return None
        if answer.status not in _NOT_SERVED:
            if self._again is not Again.ALWAYS:
                return None
            self.perhaps_served = True
            self.is_unsure |= not changed_nothing(answer)
        return self._pause(self._retry_after(answer))

    def after_failure(self, *, is_sent: bool) -> float | None:
        """Seconds to pause after a try without an answer; None to give up.

        Args:
            is_sent: whether a part of the request may have reached the daemon.
        """
        if self._again is Again.NEVER:
            return None
        if is_sent:
            if self._again is not Again.ALWAYS or not self._is_repeatable:
                return None
            self.perhaps_served = self.is_unsure = True
        return self._pause(None)

    def after_refusals(self) -> float | None:
        """Seconds to pause before the refused entries of a batch go again; None to give up."""
        return self._pause(None)

    def _pause(self, asked: float | None) -> float | None:
        ceiling = min(float(self._retry.longest), float(self._retry.first) * 2 ** min(self._count, _LARGEST_EXPONENT))
        self._count += 1
        pause = self._random.uniform(0, ceiling) if asked is None else asked + self._random.uniform(0, ceiling)
        return pause if self._clock() + pause - self._begun < float(self._retry.patience) else None

    def _retry_after(self, answer: Answer) -> float | None:
        """RFC 9110, section 10.2.3: seconds, or a date."""
        value = answer.headers.get("retry-after", "").strip()
        if value.isdecimal() and value.isascii():
            return float(value)
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - self._wall_clock())
        except (ValueError, OverflowError):
            return None
