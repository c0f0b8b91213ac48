"""The judge sees every kind of flaw: stores that are well are held against ledgers that promise something else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from tests.crash.judge import KINDS, Flaw, judge, recover, worst
from tests.crash.ledger import Claim, Ledger, digest
from tests.crash.mutants import planted
from tests.crash.trial import STEPS_YEARS, YEAR_NS

BODIES = {name: f"the body of {name}".encode() for name in ("ready", "leased", "gone")}


class Store(NamedTuple):
    """A store with a message that is READY, one that is leased, and one that was removed."""

    root: Path
    ids: dict[str, str]
    marks: list[str]
    now_ns: int

    def judged(self, *more: str, without: str = "\0", before: str = "", step_ns: int = 0) -> set[str]:
        """The kinds of flaws when clients were told `before` and `more` too, and nothing that says `without`."""
        marks = [before, *(mark for mark in self.marks if without not in mark), *more]
        return {flaw.kind for flaw in judge(self.root, Ledger(marks), self.now_ns, step_ns)}


@pytest.fixture
def store(temp_root: Path) -> Store:
    return trio.run(make_store, temp_root)


async def make_store(root: Path) -> Store:
    now_ns = time.time_ns()
    ids: dict[str, str] = {}
    marks = ["creating q", "created q"]
    async with open_broker(f"posix:{root}", BrokerConfig(visibility_seconds=60), clock_ns=lambda: now_ns) as broker:
        await broker.create_queue("q")
        for name in ("leased", "gone", "ready"):
            ids[name] = await publish(broker, name, marks)
        for name in ("leased", "gone"):
            message = await broker.fetch("q")
            assert message is not None
            await message.body.aclose()
            assert message.id == ids[name]
        marks.append(f"leased {ids['leased']} q {content('leased')} {now_ns + 60 * 10**9}")
        await broker.remove("q", ids["gone"])
        marks += [f"removing {ids['gone']}", f"removed {ids['gone']}"]
    return Store(root, ids, marks, now_ns)


async def publish(broker: Broker, name: str, marks: list[str]) -> str:
    id = await broker.publish("q", BODIES[name], {"content_type": "text/plain"})
    marks += [f"publishing {content(name)}", f"published {id} q {content(name)}"]
    return id


def content(name: str) -> str:
    return digest(BODIES[name], "text/plain")


def test_a_kept_promise_is_no_flaw(store: Store) -> None:
    assert store.judged() == set()


@pytest.mark.slow
@pytest.mark.parametrize("years", [years for years in STEPS_YEARS if years])
def test_a_clock_that_is_set_breaks_none(store: Store, years: int) -> None:
    assert store.judged(step_ns=years * YEAR_NS) == set()


def test_what_is_taken_for_a_deleted_queue_s_since_the_clock_was_set_is_lost(store: Store) -> None:
    with planted("compare clocks"):
        assert store.judged(step_ns=-YEAR_NS) == {"lost"}


def test_a_message_that_is_not_there_is_lost(store: Store) -> None:
    assert store.judged("published 00000000-0000-1000-8000-000000000000 q x") == {"lost"}


def test_a_message_that_should_be_gone_is_back(store: Store) -> None:
    assert store.judged(f"removed {store.ids['ready']}") == {"back"}
    assert store.judged(f"removed {store.ids['leased']}") == {"back"}


def test_a_deleted_queue_that_is_there_is_back_with_its_messages(store: Store) -> None:
    assert store.judged("deleting q", "deleted q") == {"queue back", "back"}


def test_other_bytes_are_torn(store: Store) -> None:
    assert store.judged(before=f"published {store.ids['ready']} q other") == {"torn"}


def test_bytes_that_nobody_sent_are_invented(store: Store) -> None:
    assert store.judged(without=content("ready")) == {"invented"}


def test_a_lease_that_is_not_there_is_broken(store: Store) -> None:
    until_ns = store.now_ns + 10**9
    assert store.judged(f"leased {store.ids['ready']} q {content('ready')} {until_ns}") == {"lease broken"}
    too_long_ns = store.now_ns + 3600 * 10**9
    assert store.judged(f"leased {store.ids['leased']} q {content('leased')} {too_long_ns}") == {"lease broken"}


def test_a_lease_that_has_ended_binds_nobody(store: Store) -> None:
    assert store.judged(f"leased {store.ids['ready']} q {content('ready')} {store.now_ns - 1}") == set()


def test_a_queue_that_is_not_there_is_lost(store: Store) -> None:
    assert store.judged("creating other", "created other") == {"queue lost"}


def test_what_was_only_asked_for_may_be_or_not(store: Store) -> None:
    asked = [f"removing {store.ids['ready']}", "creating other", "publishing x"]
    assert store.judged(*asked) == set()
    assert store.judged("deleting q") == set()


def test_damage_is_left_or_torn(store: Store) -> None:
    path = next(store.root.glob(f"queues/q/{store.ids['ready']}"))
    path.write_bytes(b"other")
    assert store.judged() == {"torn left", "lost"}


def test_one_message_twice_is_doubled(store: Store) -> None:
    path = next(store.root.glob(f"queues/q/{store.ids['ready']}"))
    (store.root / "queues" / "copies").mkdir()  # a start compares no plain names of two queues
    (store.root / "queues" / "copies" / path.name).hardlink_to(path)
    assert "doubled" in store.judged()


def test_a_root_that_cannot_be_opened_is_refused(temp_root: Path) -> None:
    temp_root.write_bytes(b"")
    assert [flaw.kind for flaw in judge(temp_root, Ledger(), 0)] == ["refused"]


def test_recovery_alone_changes_no_promise(store: Store) -> None:
    recover(store.root, store.now_ns)
    assert store.judged() == set()


def test_the_worst_comes_first() -> None:
    flaws = [Flaw(kind, "") for kind in reversed(KINDS)]
    assert worst(flaws) == "lost"
    assert worst([]) == ""


def test_a_lease_can_be_known_before_its_publish() -> None:
    marks = ["leased id q x 5", "removing id", "removed id", "published id q x"]
    claims = [Ledger(marks[:count]).messages["id"].claim for count in range(1, 5)]
    assert claims == [Claim.THERE, Claim.ASKED, Claim.GONE, Claim.GONE]


def test_a_queue_made_anew_has_none_of_the_old_messages() -> None:
    marks = ["created q", "published id q x", "deleting q", "deleted q", "created q", "published other q y"]
    ledger = Ledger(marks)
    assert ledger.queues == {"q": Claim.THERE}
    assert {id: message.claim for id, message in ledger.messages.items()} == {"id": Claim.GONE, "other": Claim.THERE}
