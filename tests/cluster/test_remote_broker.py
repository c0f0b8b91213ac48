"""Asking masters that are none any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mq.broker import Draft, Published
from mq.cluster.directory import MOMENT_SECONDS, PATIENCE_SECONDS, Directory
from mq.cluster.leadership import Holder, Leadership
from mq.cluster.remote_broker import RemoteBroker
from mq.errors import CallerError, NoSuchMessage, NotServed
from mq.message import MessageIds


class Fake:
    """A leader that answers so many times at once that it serves no more."""

    def __init__(self, term: int, refusals: float) -> None:
        self.term = term
        self.asked: list[tuple[str, Sequence[Any]]] = []
        self._refusals = refusals

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        self.asked.append((method, args))
        if len(self.asked) <= self._refusals:
            raise NotServed("not any more")
        if method == "remove":
            raise NoSuchMessage("gone")
        return [Published(draft.id) for draft in args[1]]

    def end_exclusion(self, number: int) -> None:
        pass

    def leave(self) -> None:
        pass


async def test_one_that_always_says_no_is_asked_with_pauses(autojump_clock: MockClock) -> None:
    """It stops nobody else from being served meanwhile."""
    directory, leader = Directory(), Fake(1, float("inf"))
    directory.begin(leader)
    with pytest.raises(NotServed):
        await RemoteBroker(directory).publish_many("q", [Draft(b"x")])
    assert trio.current_time() >= PATIENCE_SECONDS
    assert 10 < len(leader.asked) < 2 * PATIENCE_SECONDS / MOMENT_SECONDS


async def test_it_is_the_same_message_wherever_it_is_asked_for(autojump_clock: MockClock) -> None:
    directory, first, second = Directory(), Fake(1, float("inf")), Fake(2, 0)
    directory.begin(first)
    async with trio.open_nursery() as nursery:

        async def change() -> None:
            await trio.sleep(0.05)
            directory.begin(second)

        nursery.start_soon(change)
        [outcome] = await RemoteBroker(directory).publish_many("q", [Draft(b"x")])
    [(_, (_, [at_first], is_again))] = first.asked
    [(_, (_, [at_second], is_again_then))] = second.asked
    assert (is_again, is_again_then) == (False, True)
    assert at_first == at_second
    assert isinstance(outcome, Published)
    assert outcome.id == at_first.id


async def test_what_is_removed_already_when_one_asks_again_was_removed(autojump_clock: MockClock) -> None:
    directory = Directory()
    directory.begin(Fake(1, 1))
    id = MessageIds().new()
    await RemoteBroker(directory).remove("q", id)
    with pytest.raises(NoSuchMessage):
        await RemoteBroker(directory).remove("q", id)


async def test_a_term_that_is_over_is_not_believed_again(autojump_clock: MockClock) -> None:
    directory, newer = Directory(), Fake(2, 0)
    directory.begin(newer)
    directory.begin(Fake(1, 0))
    assert directory.leader is newer


class Asked:
    """A broker that is asked for what every release knows, with what this one knows."""

    async def status(self, queue: str) -> str:
        if queue == "broken":
            raise TypeError("an error of ours")
        return queue


def leadership_of(broker: Any) -> Leadership:
    anything: Any = None
    return Leadership(1, broker, anything, anything, lambda: True)


@pytest.mark.parametrize(
    ("method", "args", "named"),
    [("later_verb", [], {}), ("status", ["q"], {"later": 1}), ("hold", ["q", 1, 0, None], {"later": 1})],
)
async def test_a_method_or_an_argument_that_is_not_known_is_refused(
    method: str, args: list[Any], named: dict[str, Any]
) -> None:
    with pytest.raises(CallerError, match=rf"^(unknown method|invalid arguments for the method) {method}$"):
        await leadership_of(Asked()).perform(Holder(), method, args, named)


async def test_an_error_of_ours_is_not_taken_for_a_later_release() -> None:
    leadership = leadership_of(Asked())
    assert await leadership.perform(Holder(), "status", ["q"], {}) == "q"
    with pytest.raises(TypeError, match="of ours"):
        await leadership.perform(Holder(), "status", ["broken"], {})
