"""The checker finds what it is there to find: for every promise a history that breaks it."""

from __future__ import annotations

import pytest

from mq.web.exchange import problem
from tests.e2e.clients import Answer, is_unsure
from tests.e2e.history import Delivered, Event, Published, Removed, judge

LEASE = 2.0

GOOD: list[Event] = [
    Published("red", "1", 0.0, 1.0),
    Delivered("1", "red", 1.0, 2.0),
    Removed("1", True, 2.0, 3.0),
    Published("blue", None, 0.0, 1.0),
    Published("blue", "3", 1.0, 2.0),
    Delivered("2", "blue", 3.0, 4.0),
    Delivered("3", "blue", 3.0, 4.0),
    Removed("2", None, 4.0, 5.0),
    Removed("2", False, 5.0, 6.0),
    Removed("3", True, 4.0, 5.0),
]

BAD: dict[str, list[Event]] = {
    "missing": [Published("green", "9", 0.0, 1.0)],
    "damaged": [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "grey", 2.0, 3.0),
        Removed("9", True, 3.0, 4.0),
    ],
    "invented": [Delivered("9", "green", 2.0, 3.0), Removed("9", True, 3.0, 4.0)],
    "resurrected": [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "green", 2.0, 3.0),
        Removed("9", True, 3.0, 4.0),
        Delivered("9", "green", 5.0, 6.0),
    ],
    "overlapping": [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "green", 2.0, 2.1),
        Delivered("9", "green", 2.2, 3.9),
        Removed("9", True, 4.0, 5.0),
    ],
    "vanished": [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "green", 2.0, 3.0),
        Removed("9", False, 3.0, 4.0),
    ],
    "left": [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "green", 2.0, 3.0),
        Removed("9", None, 3.0, 4.0),
    ],
}


def test_good_history_has_no_faults() -> None:
    verdict = judge(GOOD, LEASE)
    assert verdict.faults(peers=0) == []
    assert (verdict.messages, verdict.twice, verdict.again, verdict.unanswered) == (3, 1, 0, 1)


@pytest.mark.parametrize("kind", BAD)
def test_broken_promise_is_found(kind: str) -> None:
    faults = judge([*BAD[kind], *GOOD], LEASE).faults(peers=0)
    assert [fault.split()[1].rstrip(":") for fault in faults] == [kind]


def test_a_double_needs_an_unanswered_publish_of_the_same_body() -> None:
    third: list[Event] = [Delivered("4", "blue", 3.0, 4.0), Removed("4", True, 4.0, 5.0)]
    assert judge([*GOOD, *third], LEASE).invented


def test_overlapping_leases_are_no_fault_among_peers() -> None:
    verdict = judge([*GOOD, *BAD["overlapping"]], LEASE)
    assert verdict.overlapping
    assert verdict.faults(peers=1) == []


def test_a_message_may_come_again_when_its_lease_is_over() -> None:
    again: list[Event] = [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "green", 2.0, 3.0),
        Delivered("9", "green", 3.0, 4.5),
        Removed("9", True, 4.0, 5.0),
    ]
    verdict = judge([*GOOD, *again], LEASE)
    assert verdict.faults(peers=0) == []
    assert verdict.again == 1


def test_fetch_asked_for_before_the_removal_was_answered_may_bring_the_message() -> None:
    crossing: list[Event] = [
        Published("green", "9", 0.0, 1.0),
        Delivered("9", "green", 2.0, 3.0),
        Removed("9", True, 5.0, 6.0),
        Delivered("9", "green", 5.5, 7.0),
    ]
    assert judge([*GOOD, *crossing], LEASE).faults(peers=0) == []


@pytest.mark.parametrize("unsure", [True, False])
def test_clients_know_a_refusal_that_may_have_been_done(unsure: bool) -> None:
    refusal = problem(503, "the medium is out of reach", is_unsure=unsure)
    assert isinstance(refusal.body, bytes)
    assert is_unsure(Answer(503, "", refusal.body, 0.0, 1.0)) == unsure
