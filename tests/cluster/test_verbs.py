"""The table of verbs, and the brokers whose methods are made from it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import pytest

from mq.broker.api import BrokerAPI, DeclarationsAPI
from mq.broker.batch_consumers import BatchConsumers
from mq.broker.peek import SequenceBrowser
from mq.broker.verbs import VERBS, Repeat
from mq.broker.write_jobs import WriteJobs
from mq.cluster.cluster_broker import ClusterBroker
from mq.cluster.directory import Directory
from mq.cluster.remote_broker import RemoteBroker
from mq.errors import NoSuchMessage, NoSuchQueue
from tests.cases import for_each

PARTS = {"": BrokerAPI, "claims": BatchConsumers, "browsing": SequenceBrowser, "writes": WriteJobs}
NOT_ASKED = {
    "": {"stage", "inventory"},
    "claims": {"load", "resume", "finish", "leased"},
    "writes": {"load", "start", "settle"},
}
"""Methods that no node passes on: "stage" gives a local body, the others are for the node that has the messages."""


def asked_for() -> Iterator[tuple[str, str]]:
    """Every part and coroutine of the API."""
    for part, api in PARTS.items():
        for name, member in vars(api).items():
            is_public = not name.startswith("_")
            if is_public and inspect.iscoroutinefunction(member) and name not in NOT_ASKED.get(part, ()):
                yield part, name


def of(broker: object, part: str) -> Any:
    return getattr(broker, part) if part else broker


class Anything:
    """Stands for what the constructor only keeps."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


def made() -> dict[str, object]:
    anything: Any = Anything()
    return {
        "remote": RemoteBroker(Directory()),
        "cluster": ClusterBroker(anything, anything, anything, anything, Directory(), anything, anything),
    }


@for_each("part, name", sorted(asked_for()))
def test_a_verb_of_the_api_has_its_row_and_is_there_on_every_node(part: str, name: str) -> None:
    verb = VERBS[f"{part}.{name}" if part else name]
    assert (verb.part, verb.method) == (part, name)
    for broker in made().values():
        assert callable(vars(of(broker, part)).get(name) or getattr(type(of(broker, part)), name))


def test_no_row_stands_for_nothing() -> None:
    apis = {**PARTS, "declarations": DeclarationsAPI}
    assert [verb for verb in VERBS.values() if not hasattr(apis[verb.part], verb.method)] == []


class Leader:
    """Answers what it is told to, and keeps what it is asked."""

    def __init__(self, *answers: Any) -> None:
        self.term = 1
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answers = list(answers)

    async def call(self, method: str, args: Any, named: Any) -> Any:
        self.asked.append((method, tuple(args), dict(named)))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def leave(self) -> None:
        """It is not waited for any more."""


async def ask(name: str, *answers: Any, **named: Any) -> tuple[Any, Leader]:
    leader = Leader(*answers)
    directory = Directory()
    directory.begin(cast(Any, leader))
    part, _, method = name.rpartition(".")
    return await getattr(of(RemoteBroker(directory), part), method)("q", **named), leader


@pytest.mark.parametrize("name", ["status", "claims.consumers", "browsing.ranges"])
async def test_a_plain_verb_is_asked_of_the_leader_by_its_name(name: str) -> None:
    answer, leader = await ask(name, "answer", most=3)
    assert answer == "answer"
    assert leader.asked == [(name, ("q",), {"most": 3})]


@pytest.mark.parametrize(("name", "error"), [("remove", NoSuchMessage), ("delete_queue", NoSuchQueue)])
async def test_the_first_request_hears_that_nothing_was_there(name: str, error: type[Exception]) -> None:
    """Only a repeated one may have done it itself."""
    assert VERBS[name].was_done is error
    with pytest.raises(error):
        await ask(name, error("nothing"))


def test_what_hands_out_for_good_is_never_asked_twice() -> None:
    never = {name for name, verb in VERBS.items() if verb.repeat is Repeat.NEVER}
    assert {"take", "hold", "exclude", "give_back", "acknowledge", "put_back", "reject"} == never
    assert VERBS["fetch_many"].repeat is Repeat.UNLESS_IT_WAITS
