"""Who waits after a wrong secret, for how long, and who is served before whom."""

from __future__ import annotations

import pytest

from mq.access import guesses as guesses_module
from mq.access.guesses import (
    FORGOTTEN_SECONDS,
    LONGEST_DELAY_SECONDS,
    MOST_LINES,
    TRUSTED_SECONDS,
    Guesses,
    LoginLine,
    source_of,
)

ANNA = LoginLine("192.0.2.1", "anna")


@pytest.fixture
def guesses() -> Guesses:
    return Guesses()


def test_each_failure_doubles_the_wait(guesses: Guesses) -> None:
    waits = []
    for _ in range(10):
        guesses.failed(ANNA, 0)
        waits.append(guesses.wait_seconds(ANNA, 0))
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, LONGEST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, LONGEST_DELAY_SECONDS]
    assert guesses.wait_seconds(ANNA, 10) == LONGEST_DELAY_SECONDS - 10


def test_only_the_line_itself_waits(guesses: Guesses) -> None:
    guesses.failed(ANNA, 0)
    for other in (LoginLine(ANNA.source, "bob"), LoginLine("192.0.2.2", ANNA.name)):
        assert guesses.wait_seconds(other, 0) <= 0


def test_a_success_and_time_forgive(guesses: Guesses) -> None:
    guesses.failed(ANNA, 0)
    guesses.succeeded(ANNA, 0)
    assert guesses.wait_seconds(ANNA, 0) <= 0
    for _ in range(9):
        guesses.failed(ANNA, 0)
    guesses.wait_seconds(ANNA, FORGOTTEN_SECONDS)
    guesses.failed(ANNA, FORGOTTEN_SECONDS)
    assert guesses.wait_seconds(ANNA, FORGOTTEN_SECONDS) == 0.5


def test_who_comes_before_whom(guesses: Guesses) -> None:
    guesses.succeeded(ANNA, 0)
    guesses.failed(LoginLine("192.0.2.7", "bob"), 0)
    guesses.failed(LoginLine("192.0.2.8", "carl"), 0)
    in_turn = [
        guesses.rank(ANNA, 1, is_known=True),
        guesses.rank(LoginLine("192.0.2.9", "dora"), 1, is_known=True),
        guesses.rank(LoginLine("192.0.2.9", "bob"), 1, is_known=True),  # others guess that name
        guesses.rank(LoginLine("192.0.2.9", "dora"), 1, is_known=True).behind(0, 1, 0),
        guesses.rank(LoginLine("192.0.2.7", "dora"), 1, is_known=True).behind(0, 1, 0),
        guesses.rank(LoginLine("192.0.2.7", "bob"), 1, is_known=True),
        guesses.rank(LoginLine("192.0.2.9", "nobody"), 1, is_known=False),
    ]
    assert in_turn == sorted(in_turn)
    assert len(set(in_turn)) == len(in_turn)
    assert guesses.rank(ANNA, TRUSTED_SECONDS, is_known=True).is_untrusted


def test_both_tables_are_bounded_and_nothing_is_left_of_what_is_forgotten(
    guesses: Guesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guesses_module, "MOST_LINES", 10)
    for number in range(30):
        guesses.failed(LoginLine(f"192.0.2.{number}", f"u{number}"), number)
        guesses.succeeded(LoginLine(f"198.51.100.{number}", "anna"), number)
    assert len(guesses._failures) == len(guesses._successes) == 10
    assert len(guesses._of_source) == len(guesses._of_name) == 10
    guesses.wait_seconds(ANNA, 29 + FORGOTTEN_SECONDS)
    assert not guesses._failures
    assert not guesses._of_source
    assert not guesses._of_name


def test_what_a_guesser_can_check_before_its_lines_are_forgotten_fits_the_table() -> None:
    assert MOST_LINES * 0.1 > FORGOTTEN_SECONDS  # a check that takes half of what it does here


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("uid 1000", "uid 1000"),
    ],
)
def test_an_address_of_ipv6_counts_as_its_network(address: str, source: str) -> None:
    assert source_of(address) == source
