"""A thread of a store's own: what is asked of it is done there, to its end; the first results are told on the way."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from mq.storage.files.calls import LinuxCalls
from mq.storage.files.hop import EarlyResults, OwnThread
from simulation.calls import StepByStep


@pytest.fixture
def own() -> Iterator[OwnThread]:
    own = OwnThread("own")
    own.start()
    yield own
    own.end()


async def test_what_is_asked_is_done_in_one_thread_that_is_another(own: OwnThread) -> None:
    seen = [await own.hop(threading.get_ident) for _ in range(3)]
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen


async def test_what_is_raised_there_is_raised_here(own: OwnThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await own.hop(divmod, 1, 0)
    assert await own.hop(divmod, 7, 2) == (3, 1)


async def test_it_is_free_again_when_its_call_has_ended(own: OwnThread) -> None:
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(own.hop, gate.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not own.is_free
        gate.set()
    assert own.is_free


async def test_who_is_cancelled_waits_for_the_end_and_gets_the_answer(own: OwnThread) -> None:
    gate, answers = threading.Event(), list[bool]()

    async def ask() -> None:
        answers.append(await own.hop(gate.wait, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        gate.set()
    assert answers == [True]


async def test_who_was_cancelled_before_asks_for_nothing(own: OwnThread) -> None:
    said = list[int]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await own.hop(said.append, 1)
    assert said == []
    assert own.is_free


async def test_it_ends_and_another_begins_when_it_is_started_again(own: OwnThread) -> None:
    first = await own.hop(threading.current_thread)
    own.end()
    own.end()
    assert not first.is_alive()
    own.start()
    assert await own.hop(divmod, 7, 2) == (3, 1)


async def test_it_keeps_no_handle_when_it_ends() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    own = OwnThread("own")
    own.start()
    await own.hop(int)
    own.end()
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_what_ends_meanwhile_is_answered_all_the_same(own: OwnThread) -> None:
    answers = list[bool]()

    async def ask() -> None:
        answers.append(await own.hop(threading.Event().wait, 0.05))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        own.end()
    assert answers == [False]


async def test_without_a_handle_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flags: int) -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe2", refuse)
    own = OwnThread("own")
    own.start()
    assert not own.is_free
    monkeypatch.undo()
    own.start()
    assert own.is_free
    own.end()


async def test_how_late_the_event_loop_comes_to_what_was_done(own: OwnThread) -> None:
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(own.hop, gate.wait)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        time.sleep(0.3)  # noqa: ASYNC251 - somebody keeps the loop to himself, and the thread ends meanwhile
    assert own.heard_late > 0.1
    since = trio.current_time()
    await own.hop(time.sleep, 0.1)
    assert own.heard_late <= trio.current_time() - since - 0.1


# Results that are told before the end


class Heard:
    """What was heard of a call before it ended."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.late_seconds: list[float] = []
        self.changed = trio.Event()

    def __call__(self, results: Sequence[str], late_seconds: float) -> None:
        self.results += results
        self.late_seconds.append(late_seconds)
        self.changed.set()


async def test_the_first_results_are_heard_before_the_last_is_there(own: OwnThread) -> None:
    heard, gate = Heard(), threading.Event()

    def work(early: EarlyResults, last: str) -> str:
        early.expected += ["a", "b", "c"]
        early.tell(2)
        assert gate.wait(10), "who waits for the first results has not heard of them"
        return last

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            await heard.changed.wait()
            assert heard.results == ["a", "b"]
            gate.set()

        assert await own.hop_in_parts(work, "end", hear=heard) == "end"
    assert heard.results == ["a", "b"]


async def test_results_are_heard_once_and_in_order_however_often_they_are_told(own: OwnThread) -> None:
    heard = Heard()

    def work(early: EarlyResults) -> None:
        for number in range(2000):
            early.expected.append(str(number))
            early.tell(number + 1)
        time.sleep(0.05)  # the event loop hears of the last ones before it hears of the end

    await own.hop_in_parts(work, hear=heard)
    assert heard.results == [str(number) for number in range(len(heard.results))]
    assert len(heard.results) > 1000
    heard.results.clear()
    await own.hop_in_parts(lambda early: early.expected.append("another call"), hear=heard)
    assert heard.results == []


async def test_how_late_results_are_heard_of(own: OwnThread) -> None:
    begun, told, gate, times = threading.Event(), threading.Event(), threading.Event(), list[float]()

    def work(early: EarlyResults) -> None:
        assert begun.wait(10), "no task has the loop"
        early.expected.append("a")
        times.append(time.monotonic())
        early.tell(1)
        told.set()
        assert gate.wait(10), "what was told is not heard"

    def hear(results: Sequence[str], late_seconds: float) -> None:
        times.append(time.monotonic())
        assert 0.1 < late_seconds <= times[1] - times[0]
        gate.set()

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            begun.set()
            told.wait()  # this task keeps the loop to itself
            time.sleep(0.15)  # noqa: ASYNC251

        await own.hop_in_parts(work, hear=hear)
    assert len(times) == 2


async def test_an_error_of_who_hears_is_raised_when_the_call_has_ended(own: OwnThread) -> None:
    ended = list[bool]()

    def hear(results: Sequence[str], late_seconds: float) -> None:
        raise LookupError(*results)

    def work(early: EarlyResults) -> None:
        early.expected += ["a", "b"]
        early.tell(1)
        time.sleep(0.05)
        early.tell(2)
        time.sleep(0.05)
        ended.append(True)

    with pytest.raises(LookupError, match="a"):
        await own.hop_in_parts(work, hear=hear)
    assert ended == [True]
    assert await own.hop(divmod, 7, 2) == (3, 1)


@pytest.mark.parametrize("which", ["mq-native", "what stands in for it"])
@pytest.mark.parametrize("every", [1, 3, 16])
def test_mq_native_tells_as_a_thread_does(tmp_path: Path, every: int, which: str) -> None:
    if which == "mq-native":
        native = pytest.importorskip("mq_native", reason="mq-native is not installed")
    else:
        native = StepByStep(LinuxCalls())
    hearing, telling = os.pipe()
    early = EarlyResults(telling, every)
    names = [str(tmp_path / f"{number:03}") for number in range(20)]
    began = time.monotonic()
    assert early.do(native, [(name, b"body", b"4:0", b"") for name in names], names) == [0] * 20
    (tmp_path / "005").unlink()
    again = early.do(native, [(name,) for name in names], names)
    assert [number for number, result in enumerate(again) if result] == [5]
    os.close(telling)
    with os.fdopen(hearing, "rb") as pipe:
        told = list(struct.iter_unpack("=qd", pipe.read()))
    first = list(range(every, 20, every))
    assert [count for count, _ in told] == [*first, *[20 + number for number in first if number <= 5]]
    times = [at for _, at in told]
    assert times == sorted(times)
    assert all(began <= at <= time.monotonic() for at in times)
