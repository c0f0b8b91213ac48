"""Two and four brokers on one root of this machine: while nobody fails nothing is lost, nothing is handed out twice."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.through import Through

MESSAGES: Final = 300
LEASE_SECONDS: Final = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [2, 4])
def test_each_message_is_handed_out_once(temp_root: Path, brokers: int) -> None:
    flags = ("--peers", str(brokers - 1), "--delay", str(LEASE_SECONDS))
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(Daemon(temp_root, temp_root.parent / f"{number}.log", *flags))
            for number in range(brokers)
        ]
        through = Through(daemons, LEASE_SECONDS)
        began = time.monotonic()
        with through.at_work(MESSAGES):
            pass
        seconds = time.monotonic() - began
        verdict = through.verdict()
        sys.stdout.write(f"{brokers} brokers: {verdict.summary()}; {verdict.messages / seconds:.0f} messages/s\n")
        assert not verdict.faults(peers=0)
        assert (verdict.again, verdict.twice) == (0, 0), "handed out twice, though nobody failed"
        assert verdict.messages >= MESSAGES
        for daemon in daemons:
            daemon.stop()
            assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.last_words(60)
    assert not list((temp_root / "state/peers").iterdir()), "who stops in order leaves nothing behind"
