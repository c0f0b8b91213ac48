"""The table of transitions: what is legal, and the picture that is drawn from it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import trio
from trio.testing import MockClock

from mq.broker import BrokerConfig, open_broker
from mq.lifecycle import LEGAL_MOVES, TRANSITIONS, Kind, State, Transition, diagram
from mq.message import MessageIds
from tests.storage.disks import MOUNTS, open_disk

STEPS: Final = [step for steps in TRANSITIONS.values() for step in steps]


def test_states_are_the_seeds_folders() -> None:
    assert [state.value for state in State] == ["new", "queues", "delay", "remove"]


def test_every_kind_has_its_steps() -> None:
    assert set(TRANSITIONS) == set(Kind)
    assert all(TRANSITIONS.values())


async def test_a_message_is_written_once_and_unlinked_once(autojump_clock: MockClock) -> None:
    """By every call that is made on the way: handed out, come back, dead, redriven, and removed."""
    async with (
        open_disk(MOUNTS["rename"]) as disk,
        open_broker(disk.storage, BrokerConfig(visibility_seconds=5)) as broker,
    ):
        await broker.create_queue("dead")
        await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead"})
        disk.calls.log.clear()
        id = await broker.publish("q", b"x")
        for _ in range(3):  # the third finds that it has died
            await broker.fetch("q")
            await trio.sleep(20)
        assert (await broker.redrive("dead", "q")).moved == 1
        await broker.remove("q", id)
        await trio.sleep(20)
        calls = [call for call in disk.calls.log if id in f"{call.path} {call.detail}"]
        assert [call.verb for call in calls if call.detail == "new" or call.verb in ("write", "link", "unlink")] == [
            "open",
            "write",
            "unlink",
        ]
        assert len([call for call in calls if call.verb == "rename"]) >= 6


def test_removed_is_the_end() -> None:
    assert not [step for step in LEGAL_MOVES if step[0] is State.REMOVED]


def test_nothing_comes_back_to_new() -> None:
    assert not [step for step in LEGAL_MOVES if step[1] is State.NEW]


def test_legal_moves_are_the_steps_inside_the_store() -> None:
    assert {step for step in STEPS if None not in step} == LEGAL_MOVES
    assert len(LEGAL_MOVES) == 9


def test_a_message_can_be_removed_from_everywhere() -> None:
    assert TRANSITIONS[Kind.REMOVE] == {(state, State.REMOVED) for state in State if state is not State.REMOVED}


def test_every_state_can_be_reached_and_left() -> None:
    reached, waiting = set(), [None]
    while waiting:
        here = waiting.pop()
        for source, target in STEPS:
            if source is here and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert reached == {*State, None}


def test_only_death_and_reroute_share_their_steps_with_other_kinds() -> None:
    """But for a message that goes to DELAYED: held back at first, or after a failure; leased, or its lease extended."""
    plain = [
        step
        for kind, steps in TRANSITIONS.items()
        for step in steps
        if kind not in (Kind.REROUTE, Kind.EXPIRE, Kind.DEAD_LETTER)
    ]
    assert Counter(plain) - Counter(set(plain)) == dict.fromkeys(TRANSITIONS[Kind.DELAY], 1)
    assert TRANSITIONS[Kind.DEAD_LETTER] == TRANSITIONS[Kind.REROUTE] | {(State.NEW, State.READY)}
    assert TRANSITIONS[Kind.EXPIRE] <= TRANSITIONS[Kind.REMOVE]


def test_diagram_shows_every_step_once() -> None:
    arrows = re.findall(r"^    (\S+) --> (\S+): (\w+)$", diagram(), re.MULTILINE)
    names = {"[*]": None, **{state.name: state for state in State}}
    assert sorted(arrows) == sorted(set(arrows))
    drawn = {(Kind(kind), (names[source], names[target])) for source, target, kind in arrows}
    assert drawn == {(kind, step) for kind, steps in TRANSITIONS.items() for step in steps}
    assert diagram().startswith("stateDiagram-v2\n")


def test_diagram_is_the_same_each_time() -> None:
    assert diagram() == diagram()


def test_transition_is_a_frozen_value() -> None:
    id = MessageIds().new()
    event = Transition(Kind.PUBLISH, "q", id, None, State.NEW, 1)
    assert event == Transition(Kind.PUBLISH, "q", id, None, State.NEW, 1, None, 0, None)
    assert hash(event)
