"""Two daemons that take turns on one root: whichever a client talks to, it is served as by one daemon alone; and either
may be killed again and again."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import httpx
import pika
import pika.exceptions
import pytest

from mq.client import Client
from mq.testing.ports import HeldPort
from tests.e2e.daemon import Daemon, DaemonFailed
from tests.e2e.through import Through

MESSAGES: Final = 200
LEASE_SECONDS: Final = 60.0
SHORT_LEASE_SECONDS: Final = 6.0
"""What a killed daemon had handed out comes back while the test runs."""
KILLS: Final = 50
PAUSE_SECONDS: Final = 1.0
RESOURCE_LOCKED: Final = 405

pytestmark = pytest.mark.slow


@contextmanager
def daemons_on(
    root: Path, first: Sequence[str] = (), second: Sequence[str] = (), *, lease_seconds: float = LEASE_SECONDS
) -> Iterator[list[Daemon]]:
    """Two daemons on one root, of which the first serves. Stopped in order, they leave nothing of theirs."""
    shared = ("--standby", "--visibility", str(lease_seconds))
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(Daemon(root, root.parent / f"{number}.log", *shared, *flags))
            for number, flags in enumerate((first, second))
        ]
        yield daemons
        for daemon in daemons:
            daemon.stop()
            assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.last_words(60)
    assert not (root / "state/turn").exists()
    assert not list((root / "state/stage").iterdir())


def is_served_by(daemon: Daemon) -> bool:
    return re.search(r"^mq \S+( \([\w, -]+\))? is serving ", daemon.log.read_text(), re.MULTILINE) is not None


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_each_message_is_handed_out_once(temp_root: Path) -> None:
    with daemons_on(temp_root) as daemons:
        through = Through(daemons, LEASE_SECONDS)
        with through.at_work(MESSAGES):
            pass
        verdict = through.verdict()
        assert [is_served_by(daemon) for daemon in daemons] == [True, False]
    assert not verdict.faults(peers=0)
    assert (verdict.again, verdict.twice) == (0, 0), "handed out twice, though nobody failed"
    assert verdict.messages >= MESSAGES


def test_what_one_daemon_keeps_is_kept_through_either(temp_root: Path) -> None:
    """Order, keys, unique queues and message groups: peers refuse them all."""
    with daemons_on(temp_root) as daemons, ExitStack() as stack:
        one, other = (stack.enter_context(Client(f"http://127.0.0.1:{daemon.port}")) for daemon in daemons)
        one.create_queue("q")
        for number in range(50):
            (one, other)[number % 2].publish("q", b"%d" % number)
        got = [(other, one)[number % 2].fetch("q") for number in range(50)]
        assert [int(message.body) for message in got if message is not None] == list(range(50))

        assert len({client.publish("q", b"paid", key="order-17").id for client in (one, other, one)}) == 1
        other.create_queue("once")
        one.configure("once", unique=True)
        assert other.publish("once", b"a").is_new
        assert not one.publish("once", b"a").is_new
        one.create_queue("groups")
        other.configure("groups", groups=True)
        for client, body in ((one, b"1"), (other, b"2")):
            client.publish("groups", body, group="g")
        first = other.fetch("groups")
        assert first is not None
        assert first.body == b"1"
        assert one.fetch("groups") is None, "the first of its group is not done yet"
        one.remove(first)
        second = one.fetch("groups")
        assert second is not None
        assert second.body == b"2"
        assert [queue.name for queue in one.queues()] == [queue.name for queue in other.queues()]


def test_a_request_that_waits_at_one_hears_of_a_message_of_the_other(temp_root: Path) -> None:
    with daemons_on(temp_root) as daemons, ExitStack() as stack:
        one, other = (stack.enter_context(Client(f"http://127.0.0.1:{daemon.port}")) for daemon in daemons)
        one.create_queue("q")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(other.fetch, "q", wait=30)
        wait_until(lambda: bool(one.consumers()["consumers"]), "it waits")
        one.publish("q", b"x")
        found = waiting.result(PAUSE_SECONDS)
        assert found is not None
        assert found.body == b"x"


def test_amqp_through_the_daemon_that_stands_by(temp_root: Path) -> None:
    """An exclusive queue and what is declared are there for all, whichever port they came by."""
    with ExitStack() as stack:
        ports = [stack.enter_context(closing(HeldPort())).number for _ in range(2)]
        stack.enter_context(daemons_on(temp_root, *(("--amqp-port", str(port)) for port in ports)))
        channels = []
        for port in ports:
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            stack.callback(connection.close)
            channels.append(connection.channel())
        one, other = channels
        one.exchange_declare("letters", "fanout", durable=True)
        other.queue_declare("q", durable=True)
        other.queue_bind("q", "letters")
        one.basic_publish("letters", "", b"x")
        other.queue_declare("mine", exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            one.queue_declare("mine", passive=True)
        assert caught.value.reply_code == RESOURCE_LOCKED
        wait_until(lambda: other.basic_get("q", auto_ack=True)[2] == b"x", "the message")


def test_both_listen_on_one_port(temp_root: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(Daemon(temp_root, temp_root.parent / "1.log", "--standby", "--reuse-port"))
        shared = ("--standby", "--reuse-port", "--port", str(first.port))
        second = stack.enter_context(Daemon(temp_root, temp_root.parent / "2.log", *shared))
        url = f"http://127.0.0.1:{first.port}"
        for number in range(40):
            with Client(url) as client:  # a connection of its own, of which half comes to each
                client.create_queue(f"q{number}")
        first.stop()
        with Client(url) as client:
            assert len(client.queues()) == 40
        second.stop()


def test_one_after_another_is_stopped_and_started_while_clients_go_on(temp_root: Path) -> None:
    """As an upgrade goes."""
    with daemons_on(temp_root) as daemons:
        through = Through(daemons, LEASE_SECONDS)
        with through.at_work(MESSAGES // 2):
            for daemon in daemons:
                through.go_on(MESSAGES // 8)
                daemon.stop()
                through.go_on(MESSAGES // 8)
                daemon.start()
        verdict = through.verdict()
    sys.stdout.write(f"stopped and started in turn: {verdict.summary()}\n")
    assert not verdict.faults(peers=0)
    assert verdict.again == 0, "handed out twice, though each was stopped in order"


def test_a_daemon_stops_that_had_no_turn(temp_root: Path) -> None:
    with daemons_on(temp_root) as daemons:
        daemons[1].stop()
        assert not is_served_by(daemons[1])
        daemons[1].start()


def test_a_daemon_that_hangs_is_named_and_replaced_once_it_is_killed(temp_root: Path) -> None:
    with daemons_on(temp_root) as daemons:
        first, second = daemons
        os.kill(first.pid, signal.SIGSTOP)
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{second.port}/-/live", timeout=4).json() == {"live": True}
        wait_until(lambda: f"kill -9 {first.pid}" in second.log.read_text(), "it is named")
        assert not is_served_by(second), "two daemons have one root"
        first.kill()
        with Client(f"http://127.0.0.1:{second.port}") as client:
            client.create_queue("q")
        first.start()


def test_one_with_other_users_is_refused(temp_root: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text("")
    users.chmod(0o600)
    with (
        Daemon(temp_root, temp_root.parent / "1.log", "--standby"),
        pytest.raises(
            DaemonFailed, match="started with a different users file or different TLS files than this daemon"
        ),
    ):
        Daemon(temp_root, temp_root.parent / "2.log", "--standby", "--users", str(users)).start()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--peers", "1"), "--standby cannot be combined with --peers or --cluster"),
        (("--storage", "memory:"), "--standby requires a root on this machine"),
    ],
)
def test_what_does_not_go_together_is_refused(temp_root: Path, flags: tuple[str, ...], says: str) -> None:
    with pytest.raises(DaemonFailed, match=says):
        Daemon(temp_root, temp_root.parent / "1.log", "--standby", *flags).start()


def test_one_that_takes_no_turns_keeps_the_root_for_itself(temp_root: Path) -> None:
    with (
        Daemon(temp_root, temp_root.parent / "1.log"),
        pytest.raises(DaemonFailed, match="already served by another daemon"),
    ):
        Daemon(temp_root, temp_root.parent / "2.log", "--standby").start()


def killed_in_turn(root: Path, kills: int) -> str:
    """What came of it when either is killed again and again: the one that serves, and the one that stands by."""
    with daemons_on(root, lease_seconds=SHORT_LEASE_SECONDS) as daemons:
        through = Through(daemons, SHORT_LEASE_SECONDS)
        pauses = through.kill_in_turn(daemons, kills)
        verdict = through.verdict()
    assert not verdict.faults(peers=0)
    assert not verdict.overlapping, "handed out twice during a lease"
    return f"{kills} kills: {verdict.summary()}; {pauses}"


def test_either_is_killed_while_clients_go_on(temp_root: Path) -> None:
    sys.stdout.write(f"{killed_in_turn(temp_root, 2)}\n")


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_either_is_killed_again_and_again(temp_root: Path) -> None:
    sys.stdout.write(f"{killed_in_turn(temp_root, KILLS)}\n")
