"""The checker of histories finds what it is there to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.history import History


def line(event: str, body: str, at: int, **more: Any) -> dict[str, Any]:
    return {"at": at, "event": event, "body": body, "node": "a", **more}


def good() -> History:
    """A message that was stored, received and removed; a master that died, and the next oldest in its place."""
    clients = [
        line("try", "m", 1),
        line("stored", "m", 2),
        line("got", "m", 5, asked=4, id="1"),
        line("removed", "m", 6, id="1"),
        line("made", "", 1, queue="q", place="cluster"),
        line("try", "p", 6),
        line("stored", "p", 6),
        line("purging", "p", 6),
        line("extended", "m", 2, asked=1, seconds=2e-9),
    ]
    members = [(2, "a", 2), (3, "b", 3), (4, "c", 4), (9, "a", None), (12, "a", 12)]
    answers = [(2, 2, "publish"), (5, 2, "remove"), (8, 3, "publish")]
    return History(clients, answers, [(2, "a"), (3, "b")], members)


def test_a_good_history_is_good() -> None:
    assert good().violations() == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (line("stored", "lost", 3), "lost was confirmed, and nobody ever got it"),
        (line("got", "dreamt", 3), "dreamt was received, and nobody published it"),
        (line("got", "m", 5, asked=4, id="2"), "m was stored twice"),
        (line("got", "m", 9, asked=7, id="1"), "m was removed, and somebody got it who asked later"),
        (line("made", "", 3, queue="q", place="b"), "there are two queues q: ['b', 'cluster']"),
        (line("ghost", "q", 3, status=201), "queue q was deleted, and node a answers 201"),
        (line("extended", "m", 2, asked=1, seconds=1e-8), "m was handed out again while its lease"),
    ],
)
def test_what_clients_see_is_found(planted: dict[str, Any], said: str) -> None:
    history = good()
    history.clients.append(planted)
    if planted["event"] == "stored":
        history.clients.append(line("try", planted["body"], 1))
    assert [said in each for each in history.violations()] == [True]


def test_an_answer_that_comes_too_late_is_found() -> None:
    history = good()
    history.answers.append((9, 2, "acknowledge"))
    assert [each.startswith("term 2 answered acknowledge") for each in history.violations()] == [True]


def test_a_master_that_is_not_the_oldest_is_found() -> None:
    history = good()
    history.masters.append((4, "c"))
    assert [each.startswith("node c became master in term 4") for each in history.violations()] == [True]


def test_a_lease_that_a_new_master_has_ended_is_no_fault() -> None:
    history = good()
    history.clients.append(line("extended", "m", 2, asked=1, seconds=1e-8))
    history.begins = {3: 4}
    assert history.violations() == []
    history.begins = {3: 6}
    assert len(history.violations()) == 1


def test_two_masters_of_one_term_are_found() -> None:
    history = good()
    history.masters.append((3, "c"))
    assert any("two nodes have served in the same term" in each for each in history.violations())


def test_seconds_until_it_is_served_again() -> None:
    assert good().served_after(5, 2) == pytest.approx(3e-9)
    assert good().served_after(5, 3) is None


def test_logs_are_read(tmp_path: Path) -> None:
    clients, node, witness = (tmp_path / name for name in ("clients", "node", "witness"))
    clients.write_text('{"at": 1, "event": "try", "body": "m"}\n{"at": 2, "event": "cut o')
    node.write_text(
        "... node a is serving 3 queues in term 7\n"
        "... the master for term 7 answered request publish at monotonic time 41 ns\n"
        "... the master for term 7 answered request hold at monotonic time 42 ns\n"
    )
    witness.write_text('{"node": "a", "made": 7, "revision": 7}\n')
    history = History.read([clients], [node], witness)
    assert history.bodies("try") == {"m"}
    assert (history.masters, history.answers) == ([(7, "a")], [(41, 7, "publish")])
    assert history.begins == {7: 41}
    assert history.members == [(7, "a", 7)]
