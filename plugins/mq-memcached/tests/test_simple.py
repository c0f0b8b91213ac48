"""SimpleMessageQueue: what its text asks for, what its program of 2013 got wrong, a client killed at every command."""

from __future__ import annotations

import itertools
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from mq_memcached import QueueLocked, SimpleMessageQueue
from mq_memcached.testing.wire import wire_to
from pymemcache.client.base import Client

from mq.errors import BodyTooLarge, InvalidName, StorageFull, StorageUnusable
from tests.cases import for_each

logger = logging.getLogger("test_simple")
names = (f"queue{number}" for number in itertools.count())

LOCK_SECONDS = 1
"""Short, so that tests of dead holders are; a memcached counts whole seconds, so it ends up to one later."""


@pytest.fixture
def make(shared_server) -> Iterator[Callable[..., SimpleMessageQueue]]:
    """Objects for one and the same queue."""
    name = next(names)
    made: list[SimpleMessageQueue] = []

    def one(**options: object) -> SimpleMessageQueue:
        address = f"127.0.0.1:{options.pop('port', shared_server.port)}"
        made.append(SimpleMessageQueue(name, address, **{"lock_seconds": LOCK_SECONDS, **options}))
        return made[-1]

    yield one
    for queue in made:
        queue.close()


def all_of(queue: SimpleMessageQueue) -> list[str | bytes]:
    return list(iter(queue.get, None))


def test_strings_and_bytes_come_back_as_what_they_were(make) -> None:
    queue = make()
    messages = ["", b"", "text", b"text", "Grüße\n", b"\r\n\0END\r\n", "x" * 100_000]
    for message in messages:
        assert queue.put(message) is True
    assert queue.size() == len(messages)
    got = all_of(queue)
    assert sorted(map(repr, got)) == sorted(map(repr, messages))
    assert queue.size() == 0
    assert queue.get() is None


def test_queues_are_apart(shared_server) -> None:
    first, second = (SimpleMessageQueue(next(names), f"127.0.0.1:{shared_server.port}") for _ in range(2))
    with first, second:
        first.put("first")
        assert second.get() is None
        assert first.get() == "first"


def test_a_unique_message_is_stored_once(make) -> None:
    queue = make(unique=True)
    assert [queue.put("a"), queue.put("a"), queue.put(b"a"), queue.put("b")] == [True, False, True, True]
    assert queue.size() == 3
    assert [queue.contains(message) for message in ("a", b"a", "b", "c")] == [True, True, True, False]
    assert len(all_of(queue)) == 3
    assert not queue.contains("a")
    assert queue.put("a") is True, "once it was got, it can be put again"


def test_one_that_is_not_unique_does_not_say_what_it_contains(make) -> None:
    with pytest.raises(ValueError, match="does not detect duplicates"):
        make().contains("a")


def test_a_lock_that_cannot_be_had_is_not_an_empty_queue(make) -> None:
    holder, other = make(lock_seconds=600), make(patience_seconds=0.2)  # memcached's clock goes by whole seconds
    holder.put("there")
    with holder.lock():
        with pytest.raises(QueueLocked):
            other.get()
        assert holder.get() == "there", "whoever holds it can work"


def test_a_lock_expires(make) -> None:
    holder, other = make(), make()
    before = time.monotonic()
    with holder.lock():
        other.put("in the end")
    assert time.monotonic() - before < LOCK_SECONDS + 2


def test_a_lock_lasts_five_seconds_if_nobody_says_otherwise(shared_server) -> None:
    name = next(names)
    address = ("127.0.0.1", shared_server.port)
    with SimpleMessageQueue(name, "{}:{}".format(*address)) as queue, queue.lock(), closing(Client(address)) as client:
        (line,) = client.raw_command(f"mg {name}:lock t", b"\r\n").splitlines()[:1]
    assert line.startswith(b"HD t")
    assert 1 <= int(line[4:]) <= 6, "memcached counts whole seconds: up to one more"


def test_an_expired_lock_is_not_deleted_by_who_held_it(make) -> None:
    """The text looks at the clock and then deletes, and between the two the lock may become another's."""
    sleeper, second, third = make(), make(lock_seconds=30), make(patience_seconds=0.1)
    asleep, awake = sleeper.lock(), second.lock()
    asleep.__enter__()
    awake.__enter__()  # once the first one's has expired
    asleep.__exit__(None, None, None)
    with pytest.raises(QueueLocked):
        third.put("not now")
    awake.__exit__(None, None, None)
    assert third.put("now")


def test_says_when_the_server_did_not_store(make, server) -> None:
    queue = make(port=server.port)
    queue.put("kept")
    server.stop()
    with pytest.raises(StorageFull, match="Try again later"):
        queue.put("lost")
    with pytest.raises(StorageFull):
        queue.get()
    server.start()
    assert queue.put("back by itself") is True
    assert queue.get() == "back by itself"


def test_refuses_what_is_too_long(make) -> None:
    with pytest.raises(BodyTooLarge, match="limit"):
        make().put("x" * (1 << 20))


def test_refuses_a_server_that_evicts(make, serve) -> None:
    with pytest.raises(StorageUnusable, match="start the server with -M"):
        make(port=serve("-m", "64").port).put("x")


@pytest.mark.parametrize("name", ["", "a b", "a\r\nflush_all", "ü"])
def test_refuses_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidName):
        SimpleMessageQueue(name)


def test_a_full_server_is_an_error_and_can_be_emptied(make, serve) -> None:
    queue = make(port=serve("-M", "-m", "2").port)
    put = fill(queue)
    for _ in range(3):
        with pytest.raises(StorageFull, match="out of memory"):
            queue.put("y" * 2000)
    got = [str(message)[:6] for message in all_of(queue)]
    assert got == [f"{number:06}" for number in range(put)], "nothing was thrown away"
    assert queue.put("there is room again" + "x" * 2000) is True


@pytest.mark.slow
def test_a_full_server_has_room_for_the_lock_and_the_tail(make, serve) -> None:
    server = serve("-M", "-m", "2")
    queue = make(port=server.port)
    put = fill(queue)
    server.fill_with(len(queue._key("lock")), 24)
    with pytest.raises(StorageFull):
        queue.put("no room for a lock")
    assert len(all_of(queue)) == put


def test_nothing_stays_of_a_unique_message_that_was_got(make, server) -> None:
    queue = make(port=server.port, unique=True)
    queue.put("once")
    queue.get()
    assert {key.partition(":")[2] for key in server.listed()} == {"head", "tail", "roo0", "roo1", "roo2", "roo3"}


def fill(queue: SimpleMessageQueue) -> int:
    """How many messages went in."""
    for put in itertools.count():
        try:
            queue.put(f"{put:06}" + "x" * 2000)
        except StorageFull:
            return put
    raise AssertionError


def test_many_clients_lose_nothing_and_get_nothing_twice(make) -> None:
    got: list[str | bytes | None] = []

    def work(number: int) -> None:
        queue = make()
        for message in range(40):
            queue.put(f"{number} {message}")
            got.append(queue.get())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in got, "each put one before it got one"
    assert sorted(map(str, got)) == sorted(f"{number} {message}" for number in range(6) for message in range(40))


def test_of_many_who_put_the_same_unique_message_one_does(make) -> None:
    puts: list[bool] = []
    threads = [threading.Thread(target=lambda: puts.append(make(unique=True).put("same"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(puts) == [False] * 7 + [True]
    assert make(unique=True).size() == 1


# Two who think that both hold the lock: each command of the one between any two of the other.


class Interrupted(Client):
    """A client to whom something happens before its n-th command."""

    before: int
    happening: Callable[[], None]

    def _fetch_cmd(self, *arguments: object, **options: object) -> object:
        self._count()
        return super()._fetch_cmd(*arguments, **options)

    def _store_cmd(self, *arguments: object, **options: object) -> object:
        self._count()
        return super()._store_cmd(*arguments, **options)

    def _misc_cmd(self, *arguments: object, **options: object) -> object:
        self._count()
        return super()._misc_cmd(*arguments, **options)

    def _count(self) -> None:
        self.before -= 1
        if self.before == 0:
            self.happening()


MOST_COMMANDS = 20


@pytest.mark.slow
@for_each("before", range(1, MOST_COMMANDS + 1))
@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
@pytest.mark.parametrize(
    "meanwhile",
    ["put", "put the same", "get", "put and get all", "put two, get one"],
)
def test_who_sleeps_longer_than_the_lock_loses_nothing(make, before: int, unique: bool, meanwhile: str) -> None:
    """The lock of a sleeper is taken from it at each of its commands, as if it had expired, and others work."""
    for asleep in ("put", "get"):
        sleeper, other = make(unique=unique), make(unique=unique)
        put: list[str] = ["first", "second"]
        got: list[str | bytes | None] = []
        for message in put:
            other.put(message)

        def others_work(other: SimpleMessageQueue = other, put: list[str] = put, got: list = got) -> None:
            other._client.delete(other._key("lock"))
            if meanwhile == "put the same":
                put += ["mine"] * other.put("mine")
            elif meanwhile != "get":
                put += ["theirs"] * other.put("theirs")
            if meanwhile == "put two, get one":
                put += ["theirs too"] * other.put("theirs too")
            if meanwhile in ("get", "put two, get one"):
                got.append(other.get())
            elif meanwhile == "put and get all":
                got += all_of(other)

        sleeper._known_limits()
        sleeper._client.__class__ = Interrupted
        sleeper._client.before, sleeper._client.happening = before, others_work
        if asleep == "put":
            put += ["mine"] * sleeper.put("mine")
        else:
            got.append(sleeper.get())
        other._client.delete(other._key("lock"))
        got += all_of(other)
        assert sorted(str(message) for message in got if message is not None) == sorted(put)
        assert not unique or not any(other.contains(message) for message in put)


# A client killed between any two of its commands.

CLIENT = """
import sys
from mq_memcached import SimpleMessageQueue
queue = SimpleMessageQueue(sys.argv[1], sys.argv[2], unique=sys.argv[3] == "True", lock_seconds=int(sys.argv[4]))
queue.put("of the dead")
print(queue.get(), flush=True)
"""


def run_client(queue: SimpleMessageQueue, port: int, allowed: int, *, unique: bool) -> tuple[int, list[bytes], str]:
    """Let it work until it has sent so many commands, then kill it; its end, what it sent, and what it said."""
    process: list[subprocess.Popen[str]] = []
    started = threading.Event()

    def kill() -> None:
        started.wait()
        process[0].send_signal(signal.SIGKILL)
        process[0].wait()

    with wire_to(port, allowed, kill) as wire:
        arguments = [queue.name, f"127.0.0.1:{wire.port}", str(unique), str(LOCK_SECONDS)]
        process.append(subprocess.Popen([sys.executable, "-c", CLIENT, *arguments], stdout=subprocess.PIPE, text=True))
        started.set()
        said, _ = process[0].communicate(timeout=60)
        return process[0].returncode, wire.commands, said.strip()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "unique", [pytest.param(False, marks=pytest.mark.proof, id="plain"), pytest.param(True, id="unique")]
)
def test_a_client_killed_between_any_two_commands_leaves_a_queue_that_works(make, shared_server, unique: bool) -> None:
    """Its message is there or it is not, the lock ends within its time, and all other messages are got once. A unique
    message takes the commands of a plain one, and some more."""
    slowest, allowed, said = 0.0, 0, ""
    while True:
        queue = make(unique=unique)
        queue.put("before")
        status, commands, said = run_client(queue, shared_server.port, allowed, unique=unique)
        began = time.monotonic()
        queue.put("after")
        slowest = max(slowest, time.monotonic() - began)
        got = all_of(queue)
        took = any(re.fullmatch(rb"cas \w+:\d+ 0 -1 .*", command) for command in commands)
        assert set(got) - {"of the dead"} == ({"after"} if took else {"before", "after"}), f"killed after {commands}"
        assert len(got) == len(set(got)), f"killed after {commands}: {got}"
        assert not unique or not any(queue.contains(message) for message in ("before", "after", "of the dead"))
        assert queue.put("of the dead"), f"killed after {commands}: it can be put again"
        assert queue.get() == "of the dead"
        if status == 0:
            break
        assert status == -signal.SIGKILL
        allowed += 1
    assert said == "before"
    assert len(commands) == allowed
    assert allowed > (20 if unique else 16), "a client that does less than that does not do its work"
    assert slowest < LOCK_SECONDS + 2
    logger.info("killed at each of %d commands; it worked again after %.1f s at the most", allowed, slowest)
