"""The real daemon with a wall clock that is wrong: libfaketime sets it, and leaves the clock since the boot alone.

These wait by the real clock: the daemon is a process of its own.
"""

from __future__ import annotations

import glob
import http.client
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cases import proof
from tests.e2e.daemon import Daemon

LIBRARY: Final = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY, reason="libfaketime is not installed (tests/setup-system.sh --yes)"),
]

COUNT: Final = 10


class FakedDaemon(Daemon):
    """A daemon whose wall clock is set through a file."""

    def __init__(self, root: Path, log: Path, clock: Path) -> None:
        super().__init__(root, log)
        self._clock = clock
        self.set_clock("+0")

    def set_clock(self, offset: str) -> None:
        """Let the wall clock show another time, as faketime(1) writes an offset."""
        self._clock.write_text(f"{offset}\n")

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Ask over HTTP; the status, and the JSON of the answer, or its bytes."""
        link = http.client.HTTPConnection(self.address, self.port, timeout=30)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            link.request(method, path, content, named)
            answer = link.getresponse()
            text = answer.read()
        finally:
            link.close()
        is_json = (answer.getheader("content-type") or "").startswith(("application/json", "application/x-amz-json"))
        return answer.status, json.loads(text) if is_json and text else text

    def sqs(self, action: str, **values: Any) -> Any:
        """Ask the SQS API."""
        target = f"AmazonSQS.{action}"
        status, found = self.ask("POST", "/", values, content_type="application/x-amz-json-1.0", x_amz_target=target)
        assert status == 200, found
        return found

    def messages(self, queue: str) -> int:
        status = self.ask("GET", f"/{queue}")[1]
        return int(status["ready"] + status["leased"] + status["delayed"])

    def _environment(self) -> dict[str, str]:
        return {
            **super()._environment(),
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # else each wait of a thread with a limit ends at once, and it spins
            "DONT_FAKE_MONOTONIC": "1",
        }


@pytest.fixture
def daemon(temp_root: Path, tmp_path: Path) -> Iterator[FakedDaemon]:
    with FakedDaemon(temp_root, tmp_path / "log", tmp_path / "clock") as daemon:
        yield daemon


def fill(daemon: FakedDaemon) -> None:
    """Messages that live for days: in a queue of SQS, and in one with a `ttl`."""
    url = daemon.sqs("CreateQueue", QueueName="jobs")["QueueUrl"]
    assert daemon.ask("PUT", "/h")[0] == 201
    assert daemon.ask("PATCH", "/h", {"ttl": 400_000}, content_type="application/json")[0] == 200
    for number in range(COUNT):
        daemon.sqs("SendMessage", QueueUrl=url, MessageBody=f"{number}")
        assert daemon.ask("POST", "/h/messages", b"%d" % number)[0] == 201


def consume(daemon: FakedDaemon) -> None:
    """Ask for messages, and give them back."""
    url = daemon.sqs("GetQueueUrl", QueueName="jobs")["QueueUrl"]
    assert len(daemon.sqs("ReceiveMessage", QueueUrl=url, VisibilityTimeout=1).get("Messages", [])) == 1
    assert daemon.ask("GET", "/h/messages?visibility=1")[0] == 200


def until(is_so: Callable[[], bool], seconds: float) -> float:
    """Seconds until something is so."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + seconds, "it never was"
        time.sleep(0.1)
    return time.monotonic() - began


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("offset", ["+30y", "-20y", "+5d", "+2y", "-1d"])
def test_wrong_clock_removes_no_message_with_a_time_to_live(daemon: FakedDaemon, offset: str) -> None:
    fill(daemon)
    daemon.set_clock(offset)
    time.sleep(1)
    consume(daemon)
    time.sleep(2)
    daemon.set_clock("+0")
    time.sleep(1)
    assert (daemon.messages("jobs"), daemon.messages("h")) == (COUNT, COUNT)


@pytest.mark.parametrize("pause", [0.02, *map(proof, (0.0, 0.1, 0.4))])
def test_delay_lasts_no_longer_when_the_clock_is_set_back(daemon: FakedDaemon, pause: float) -> None:
    daemon.ask("PUT", "/q")
    assert daemon.ask("POST", "/q/messages", b"x", X_Message_Delay="3")[0] == 201
    time.sleep(pause)
    daemon.set_clock("-30m")
    assert 2 <= until(lambda: daemon.ask("GET", "/q/messages")[0] == 200, 20) + pause <= 8


@pytest.mark.in_turn(3)
def test_given_instant_comes_within_a_minute_after_the_clock_was_set(daemon: FakedDaemon) -> None:
    daemon.ask("PUT", "/q")
    at = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    assert daemon.ask("POST", "/q/messages", b"x", X_Message_At=at)[0] == 201
    daemon.set_clock("+1h")
    # Nothing reports the step, as libfaketime makes it: it is found at the second look, 40 s later.
    until(lambda: daemon.ask("GET", "/q")[1]["ready"] == 1, 90)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("offset", ["+2y", "-2y"])
def test_start_with_a_clock_in_doubt_expires_nothing_and_fires_no_schedule(
    daemon: FakedDaemon, offset: str, *, is_killed: bool
) -> None:
    fill(daemon)
    schedule = {"cron": "* * * * *", "queue": "fired", "message": {"body": "x"}}
    daemon.ask("PUT", "/fired")
    assert daemon.ask("PUT", "/-/schedules/s", schedule, content_type="application/json")[0] == 201
    daemon.ask("DELETE", "/fired/messages")
    if is_killed:
        daemon.kill()
    else:
        daemon.stop()
    daemon.set_clock(offset)
    daemon.start()
    status, ready = daemon.ask("GET", "/-/ready")
    assert status == 200
    assert "the wall clock is 7" in ready["clock"]
    assert b"mq_clock_untrusted 1.0" in daemon.ask("GET", "/-/metrics")[1]
    consume(daemon)
    time.sleep(2)
    assert (daemon.messages("jobs"), daemon.messages("h")) == (COUNT, COUNT)
    assert daemon.messages("fired") == 0
    assert daemon.ask("PATCH", "/-/clock", {"trusted": True}, content_type="application/json")[1]["problem"] is None
    assert daemon.ask("GET", "/-/ready")[1] == {"ready": True}
    assert (daemon.messages("jobs"), daemon.messages("h")) == (COUNT, COUNT), "on one boot of the machine it knows"


def test_time_to_live_that_ends_while_no_daemon_runs_is_over(daemon: FakedDaemon) -> None:
    daemon.ask("PUT", "/q")
    assert daemon.ask("POST", "/q/messages", b"x", X_Message_TTL="2")[0] == 201
    daemon.stop()
    time.sleep(2.5)
    daemon.start()
    until(lambda: daemon.messages("q") == 0, 10)
