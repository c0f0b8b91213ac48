"""Wrong and right secrets of late, which decide the order of password checks.

A line is an address and a name. Its own failures delay it, and nothing else does; failures of the same address with
other names, and of the same name from other addresses, only put it behind others. Both tables are bounded.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from typing import Final, NamedTuple

FIRST_DELAY_SECONDS: Final = 0.5
"""How long a line waits after its first wrong secret; each further one doubles that."""
LONGEST_DELAY_SECONDS: Final = 60.0
FORGOTTEN_SECONDS: Final = 900.0
"""How long a failure counts: without a further one the line is as any other then."""
TRUSTED_SECONDS: Final = 86_400.0
"""How long a success puts a line before those that have had none."""
MOST_LINES: Final = 16_384
"""Of each kind. A check takes a fifth of a second, so lines are forgotten before guessing can push them out."""

_IPV6_NETWORK: Final = 64
"""Bits. A client with one address of IPv6 has such a network of them."""


class LoginLine(NamedTuple):
    """An address and a name, under which failures and successes are counted.

    Attributes:
        source: its address, as :func:`source_of` has it.
    """

    source: str
    name: str


class Rank(NamedTuple):
    """The order of checks: the smallest rank is next.

    Attributes:
        is_untrusted: there was no login from this source under this name lately.
        of_line, of_source, of_name: wrong secrets of the same line, source and name.
    """

    is_untrusted: bool
    is_unknown: bool
    of_line: int
    of_source: int
    of_name: int

    def behind(self, of_line: int, of_source: int, of_name: int) -> Rank:
        """The rank of a login that came while others of the same line, source and name waited."""
        return Rank(*self[:2], self.of_line + of_line, self.of_source + of_source, self.of_name + of_name)


class _Failures(NamedTuple):
    times: int
    last: float


class Guesses:
    """The failures and successes of all lines. All times are seconds on one clock that only goes on."""

    def __init__(self) -> None:
        self._failures: OrderedDict[LoginLine, _Failures] = OrderedDict()  # the one that failed last is the last
        self._successes: OrderedDict[LoginLine, float] = OrderedDict()
        self._of_source: Counter[str] = Counter()
        self._of_name: Counter[str] = Counter()

    def wait_seconds(self, line: LoginLine, now: float) -> float:
        """How long the line has to wait before another secret is looked at. 0 or less is no longer."""
        self._forget(now)
        count, last = self._failures.get(line, (0, now))
        if not count:
            return 0.0
        return last + min(FIRST_DELAY_SECONDS * 2.0 ** min(count - 1, 32), LONGEST_DELAY_SECONDS) - now

    def rank(self, line: LoginLine, now: float, *, is_known: bool) -> Rank:
        """The rank of a login of this line."""
        trusted_until = self._successes.get(line, now) + TRUSTED_SECONDS
        failures = self._failures.get(line)
        return Rank(
            line not in self._successes or now >= trusted_until,
            not is_known,
            0 if failures is None else failures.times,
            self._of_source[line.source],
            self._of_name[line.name],
        )

    def failed(self, line: LoginLine, now: float) -> None:
        """Note that the secret was wrong."""
        self._forget(now)
        count = self._failures.pop(line, _Failures(0, now)).times
        self._failures[line] = _Failures(count + 1, now)
        self._of_source[line.source] += 1
        self._of_name[line.name] += 1
        if len(self._failures) > MOST_LINES:
            self._drop_oldest()

    def succeeded(self, line: LoginLine, now: float) -> None:
        """Note that the secret was right: the line is as one that never failed."""
        self._drop(line)
        self._successes.pop(line, None)
        self._successes[line] = now
        if len(self._successes) > MOST_LINES:
            self._successes.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._failures and next(iter(self._failures.values())).last + FORGOTTEN_SECONDS <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._failures)))

    def _drop(self, line: LoginLine) -> None:
        failures = self._failures.pop(line, None)
        if failures is not None:
            _subtract(self._of_source, line.source, failures.times)
            _subtract(self._of_name, line.name, failures.times)


def _subtract(counts: Counter[str], key: str, count: int) -> None:
    counts[key] -= count
    if not counts[key]:
        del counts[key]


def source_of(address: str) -> str:
    """The source of an address: itself, or for IPv6 its network of 64 bits. A text that is no address is its own
    source."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, _IPV6_NETWORK), strict=False))
