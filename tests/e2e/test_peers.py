"""Two and four brokers on one root of this machine: while none fails nothing is lost, nothing is handed out twice; and
what either may do that is killed again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.through import Through

MESSAGES: Final = 200
LEASE_SECONDS: Final = 60.0
SHORT_LEASE_SECONDS: Final = 6.0
"""What a killed broker had handed out comes back while the test runs."""
KILLS: Final = 50


pytestmark = pytest.mark.slow


@contextmanager
def brokers_on(root: Path, number: int, lease_seconds: float = LEASE_SECONDS) -> Iterator[list[Daemon]]:
    """So many daemons on one root; stopped in order, they leave no trace of themselves."""
    flags = ("--peers", str(number - 1), "--visibility", str(lease_seconds))
    with ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(root, root.parent / f"{each}.log", *flags)) for each in range(number)]
        yield daemons
        for daemon in daemons:
            daemon.stop()
            assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.last_words(60)
    assert not list((root / "state/peers").iterdir())
    assert not list((root / "state/stage").iterdir())


@pytest.mark.parametrize("number", [2, 4])
def test_each_message_is_handed_out_once(temp_root: Path, number: int) -> None:
    with brokers_on(temp_root, number) as daemons:
        through = Through(daemons, LEASE_SECONDS)
        began = time.monotonic()
        with through.at_work(MESSAGES):
            pass
        verdict = through.verdict()
        rate = verdict.messages / (time.monotonic() - began)
    sys.stdout.write(f"{number} brokers: {verdict.summary()}; {rate:.0f} messages/s\n")
    assert not verdict.faults(peers=0)
    assert (verdict.again, verdict.twice) == (0, 0), "handed out twice, though nobody failed"
    assert verdict.messages >= MESSAGES


def test_one_after_another_is_stopped_and_started_while_the_other_serves(temp_root: Path) -> None:
    """As an upgrade goes, one machine at a time."""
    with brokers_on(temp_root, 2) as daemons:
        through = Through(daemons, LEASE_SECONDS)
        with through.at_work(MESSAGES // 2):
            for daemon in daemons:
                through.go_on(MESSAGES // 8)
                daemon.stop()
                through.go_on(MESSAGES // 8)
                daemon.start()
        verdict = through.verdict()
    sys.stdout.write(f"stopped and started in turn: {verdict.summary()}\n")
    assert not verdict.faults(peers=1)
    assert verdict.again == 0, "handed out twice, though each was stopped in order"


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_either_is_killed_again_and_again_while_the_other_serves(temp_root: Path) -> None:
    with brokers_on(temp_root, 2, SHORT_LEASE_SECONDS) as daemons:
        through = Through(daemons, SHORT_LEASE_SECONDS)
        pauses = through.kill_in_turn(daemons, KILLS)
        verdict = through.verdict()
    sys.stdout.write(f"{KILLS} kills: {verdict.summary()}; {pauses}\n")
    assert not verdict.faults(peers=1)
    assert not verdict.overlapping, "handed out twice during a lease"
    assert verdict.messages >= 30 * KILLS
