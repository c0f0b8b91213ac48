"""No thread and no task dies and leaves the process half alive: each one's end ends the broker, and the daemon."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.lowlevel

from mq import threads
from mq.broker import Broker, BrokerConfig, open_broker
from mq.observers.journal import Journal
from mq.observers.journal_segments import BrokerLife, SegmentWriter
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.logged.log import Log
from mq.storage.files.stepwise import peers
from mq.storage.registry import open_storage
from tests.cases import for_each

TREE: Final = Path(__file__).resolve().parent.parent

WATCHED: Final = {"mq-checkpoint", "mq-commit", "mq-heart", "mq-journal", "mq-read"}
"""Threads that :func:`mq.threads.start` starts. Each is killed below."""

OTHERS: Final = {
    "mq/cli/programs.py": "a timer that ends the process",
    "mq/client/leases.py": "a client's: its lease counts as lost when the thread ends (tests/client)",
    "mq/spark/stream.py": "in Spark's driver: a batch whose lease has ended is claimed again",
    "mq/storage/files/backup_folder.py": "a pool in a program that ends: what a worker raises is raised in its caller",
    "mq/threads.py": "starts those that are watched",
}
"""Files that start threads in another way -> why that is all right."""
STARTS: Final = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.slow
def test_every_thread_is_listed() -> None:
    """One that is new is watched, or has a reason."""
    others, watched = set(), Counter[str]()
    for path in (TREE / "mq").rglob("*.py"):
        file = path.relative_to(TREE).as_posix()
        for call in calls(ast.parse(path.read_text())):
            if name_of(call) in STARTS:
                others.add(file)
            if ast.unparse(call.func) == "threads.start":
                [name] = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
                watched[file] += 1
                if isinstance(name, ast.Constant):
                    assert name.value in WATCHED
    assert others == OTHERS.keys()
    assert watched == {
        "mq/observers/journal.py": 1,
        "mq/storage/files/hop.py": 1,  # two threads of a store
        "mq/storage/files/logged/log.py": 1,
        "mq/storage/files/stepwise/peers.py": 1,
    }


def kinds(error: BaseException) -> set[type[BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        return set().union(*map(kinds, error.exceptions))
    return {type(error)}


def errors_of(function: Callable[..., Awaitable[Any]], *args: Any) -> set[type[BaseException]]:
    """The kinds of errors by which a program ends."""
    try:
        trio.run(function, *args)
    except BaseException as error:  # noqa: BLE001 - of whatever kind
        return kinds(error)
    return set()


def kill(name: str) -> threading.Thread:
    """Raise SystemExit in the thread of that name, which ends a thread without a word."""
    [thread] = [each for each in threading.enumerate() if each.name == name]
    assert thread.ident is not None
    done = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    assert done == 1
    return thread


async def poke_commit(broker: Broker) -> None:
    await broker.publish("q", b"x")


async def poke_read(broker: Broker) -> None:
    await broker.peek("q")


async def poke_heart(broker: Broker) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("name", "poke"),
    [
        ("mq-commit", poke_commit),
        ("mq-read", poke_read),
        ("mq-heart", poke_heart),
    ],
)
def test_broker_ends_when_a_thread_of_its_store_dies(
    temp_root: Path, name: str, poke: Callable[[Broker], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what waits for the thread ends."""
    monkeypatch.setattr(peers, "HEARTBEAT_SECONDS", 0.05)
    config = BrokerConfig(peers=int(name == "mq-heart"))
    before = set(threading.enumerate())  # a client that another test has left keeps its own

    async def serve() -> None:
        with trio.fail_after(30):
            async with (
                open_storage(f"posix:{temp_root}", sharing=config.sharing) as storage,
                open_broker(storage, config) as broker,
            ):
                await broker.create_queue("q")
                await broker.publish("q", b"first")
                thread = kill(name)
                await poke(broker)
                await trio.to_thread.run_sync(thread.join, 20)
                await trio.sleep_forever()

    assert errors_of(serve) == {threads.ThreadDied}
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("mq-")]


def test_watcher_ends_when_the_thread_of_checkpoints_dies(tmp_path: Path) -> None:
    """And no commit waits for a checkpoint that does not come."""
    failures: list[OSError] = []

    async def serve() -> None:
        log = Log(LinuxCalls(), str(tmp_path / "log"), lambda *_: None, failures.append)
        log.begin()
        try:
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(threads.watch)
                    await trio.testing.wait_all_tasks_blocked()
                    kill("mq-checkpoint")
                    with log.lock:
                        log.append(b"x")
                    await trio.sleep_forever()
        finally:
            with log.lock, pytest.raises(OSError, match="log has failed"):
                log.append(b"y")
            log.close(failed=True)

    with pytest.RaisesGroup(threads.ThreadDied):
        trio.run(serve)
    assert failures


def test_broker_ends_when_the_thread_of_its_journal_dies(tmp_path: Path) -> None:
    life = BrokerLife("1-00000000", "here", 1, "0", "memory:", 0, time.time_ns())

    async def serve() -> None:
        journal = Journal(SegmentWriter(tmp_path, life))
        journal.start()
        with trio.fail_after(30):
            async with open_broker("memory:", observers=[journal]) as broker:
                kill("mq-journal")
                await broker.create_queue("q")
                await broker.publish("q", b"x")
                await trio.sleep_forever()

    assert errors_of(serve) == {threads.ThreadDied}


def test_a_thread_that_is_told_to_end_ends_nothing() -> None:
    async def watch() -> None:
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(threads.watch)
                threads.start(lambda: None, name="mq-short").join()

    trio.run(watch)


def test_a_thread_of_a_library_is_watched_too() -> None:
    def fail() -> None:
        raise ValueError("a bug")

    async def watch() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.watch)
            await trio.lowlevel.checkpoint()
            threading.Thread(target=fail, name="library").start()

    with threads.hooked(), pytest.RaisesGroup(pytest.RaisesExc(threads.ThreadDied, match="thread library failed")):
        trio.run(watch)


DAEMON: Final = """
    import ctypes, http.client, os, sys, threading, time
    from mq.cli import main

    def ask(method, path, body=None):
        link = http.client.HTTPConnection("127.0.0.1", int(os.environ["PORT"]), timeout=30)
        link.request(method, path, body)
        return link.getresponse().status

    def kill():
        while True:
            try:
                if ask("GET", "/-/ready") == 200:
                    break
            except OSError:
                time.sleep(0.05)
        ask("PUT", "/q")
        [thread] = [each for each in threading.enumerate() if each.name == os.environ["VICTIM"]]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        try:
            print(ask("POST", "/q/messages", b"x"), ask("GET", "/q/peek"), flush=True)
        except (OSError, http.client.HTTPException) as error:
            print("refused", flush=True)

    threading.Thread(target=kill, daemon=True).start()
    sys.argv = ["mq", "--root", os.environ["ROOT"], "--port", os.environ["PORT"], "--amqp-port=0"]
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["mq-commit", "mq-read"])
def test_daemon_ends_when_a_thread_of_its_store_dies(temp_root: Path, free_port: int, victim: str) -> None:
    environment = {**os.environ, "ROOT": str(temp_root), "PORT": str(free_port), "VICTIM": victim}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DAEMON)], env=environment, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert f"thread {victim} failed" in done.stderr.decode()


# Tasks


TASKS: Final = Counter(
    {
        "mq.broker.commit.SaveWorker.run": 2,
        "mq.broker.dispatch.Deliverer.run": 3,
        "mq.broker.dispatch.FetchWorker.run": 2,
        "mq.broker.upkeep.Upkeep._retry_orphans": 1,
        "mq.broker.dead_letters.DeadLetters.run": 1,
        "mq.broker.dead_letters.DeadLetters._report_expired": 1,
        "mq.broker.upkeep.Expiry.run": 1,
        "mq.broker.mover.Mover.run": 1,
        "mq.broker.publishing.KeyedJobs._run": 1,
        "mq.broker.mover.Reaper.run": 1,
        "mq.broker.clock.Clock.run": 1,
        "mq.threads.watch": 1,
    }
)
"""Background tasks of a broker with two workers, whose store nobody else changes."""


class Injected(Exception):
    """Raised in a task."""


def below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from below(child)


def inject(task: trio.lowlevel.Task) -> None:
    """Raise an error where the task waits."""

    def raise_it() -> None:
        raise Injected

    task._attempt_abort(raise_it)


async def broker_with_task(number: int, seen: list[str]) -> None:
    async with open_broker("memory:", BrokerConfig(workers=2)) as broker:
        await broker.create_queue("q")
        await trio.testing.wait_all_tasks_blocked()
        tasks = sorted(below(trio.lowlevel.current_task()), key=lambda task: task.name)
        seen[:] = [task.name for task in tasks]
        inject(tasks[number])
        await trio.sleep_forever()


def test_every_background_task_of_a_broker_is_listed() -> None:
    seen: list[str] = []
    with suppress(BaseExceptionGroup):
        trio.run(broker_with_task, 0, seen)
    assert Counter(name for name in seen if name.startswith("mq.")) == TASKS


@for_each("number", range(TASKS.total()))
def test_broker_ends_when_a_background_task_fails(number: int) -> None:
    assert errors_of(broker_with_task, number, []) == {Injected}
