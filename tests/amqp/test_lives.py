"""Seeded lives of the AMQP door: none breaks a promise, and bugs that are planted in it are found."""

from __future__ import annotations

from typing import Any, Final

import pytest

from mq.amqp import answering, settling, storing
from mq.amqp.commands import Commit, Release
from tests.amqp.lives import Lives
from tests.simulation.planted import Bug, planted

SEEDS: Final = 60
ENOUGH: Final = 100
"""Seeds in which each planted bug has to be found."""

BUGS: Final = {
    "a publish is confirmed before it is stored": Bug(
        storing.Storing,
        "_store_waiting",
        "refused = await self.store(messages)",
        "self._told(messages, True); refused = await self.store(messages)",
    ),
    "what is refused is lost with what is stored": Bug(
        storing.Storing, "_store_waiting", "refused = await self.store(messages)", "refused = []"
    ),
    "a connection that ends gives nothing back": Bug(
        answering.Answering, "_release", "await self._broker.put_back(held)", "pass"
    ),
    "what comes back has no mark": Bug(
        answering.Answering,
        "_release",
        "await self._broker.put_back(held)",
        "await self._broker.put_back(held, redelivered=False)",
    ),
    "a nack loses the message": Bug(
        settling,
        "settle",
        "await door.broker.put_back(_held(its), to_back=to_back)",
        "await door.broker.reject(_held(its))",
    ),
    "an acknowledgement puts back": Bug(
        settling,
        "settle",
        "await door.broker.acknowledge(_held(deliveries), durable=durable)",
        "await door.broker.put_back(_held(deliveries))",
    ),
    "a commit does not wait for the disk": Bug(
        answering.Answering, "_commit", "settled.deliveries, durable=True", "settled.deliveries, durable=False"
    ),
}


@pytest.mark.slow
def test_no_seed_breaks_a_promise() -> None:
    deliveries = 0
    for seed in range(SEEDS):
        lives = Lives(seed).run()
        assert not lives.violations, (seed, lives.violations)
        deliveries += lives.deliveries
    assert deliveries > 20 * SEEDS  # they do something


def test_a_few_seeds() -> None:
    for seed in range(1000, 1010):
        lives = Lives(seed).run()
        assert not lives.violations, (seed, lives.violations)


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been imported by name, or stands in a table, is looked up anew."""
    monkeypatch.setattr(answering, "settle", settling.settle)
    handlers: dict[type[Any], Any] = dict(answering._HANDLERS)
    handlers |= {Release: answering.Answering._release, Commit: answering.Answering._commit}
    monkeypatch.setattr(answering, "_HANDLERS", handlers)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(BUGS[name]):
        plant(monkeypatch)
        assert any(Lives(seed).run().violations for seed in range(ENOUGH))
