"""What the peers algorithm buys: several brokers fetch and remove what is in one queue of one root.

Off, each wants the first message that it knows of. On, it chooses one of the first few at random, and waits up to 9 ms
where there are no more than that. Counted are the messages that a broker wanted and another one got: lost races. And
what was handed out twice. The brokers are processes of their own; turns with and without are interleaved.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import trio

from mq.storage.interface import Sharing

mpl.use("svg")

from matplotlib import pyplot

from benchmarks.figures import Figure
from mq.broker import Broker, BrokerConfig, open_broker
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Move, Operation, Outcome, Result, Storage, Write
from mq.storage.registry import open_storage

BROKERS: Final = (2, 4)
WINDOWS: Final = (1, 2, 4, 8, 16)
"""Among how many of the first messages one is chosen: peers + 1. 1 is off."""
CONSUMERS: Final = 4
"""At each broker."""
_BODY: Final = b"x" * 1024
_TOGETHER: Final = 64
_NOTHING: Final = 5
"""So many times in a row a consumer finds nothing before it believes that nothing is left."""
_SECONDS: Final = 300


class Turn(NamedTuple):
    """What so many brokers came to.

    Attributes:
        rate: messages a second, of all brokers together.
        lost: races lost for each message handed out.
        twice: messages that were handed out twice.
        shares: how many each of them handed out.
    """

    rate: float
    lost: float
    twice: int
    shares: tuple[int, ...]


Turns = dict[tuple[int, int], list[Turn]]
"""By brokers and window."""


def measure(folder: str, rounds: int, messages: int, plot: str | None = None) -> list[Figure]:
    """The figures, and a plot of them.

    Args:
        folder: where the roots are made.
        rounds: turns of each number of brokers and each window.
        messages: how many, a turn.
        plot: the file to draw into, an SVG.
    """
    turns: Turns = {(brokers, window): [] for brokers in BROKERS for window in WINDOWS}
    for number in range(rounds):
        kinds = list(turns)
        for brokers, window in kinds if number % 2 else reversed(kinds):
            turns[brokers, window].append(_turn(f"{folder}/brokers", brokers, window, messages))
    if plot is not None:
        _draw(turns, plot)
    return list(_figures(turns))


def _figures(turns: Turns) -> Iterator[Figure]:
    for (brokers, window), each in turns.items():
        how = "off" if window == 1 else f"peers {window - 1}"
        rates = [turn.rate for turn in each]
        off = statistics.median(turn.rate for turn in turns[brokers, 1])
        note = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) a second"
        yield Figure(f"{brokers} brokers, {how}: rate against off", statistics.median(rates) / off, note=note)
        lost = statistics.median(turn.lost for turn in each)
        twice = sum(turn.twice for turn in each)
        yield Figure(f"{brokers} brokers, {how}: races lost", lost, "a message", note=f"{twice} handed out twice")


def _turn(root: str, brokers: int, window: int, messages: int) -> Turn:
    try:
        trio.run(_fill, root, messages)
        command = [sys.executable, "-m", "benchmarks.brokers", root, str(window)]
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(brokers)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n", "a broker did not start"
            told = [json.loads(worker.communicate(timeout=_SECONDS)[0]) for worker in _all_told(workers)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    got = Counter(id for each in told for id in each["ids"])
    assert len(got) == messages, f"{len(got)} of {messages} messages were handed out"
    seconds = max(each["last"] for each in told) - min(each["first"] for each in told)
    lost = sum(each["lost"] for each in told)
    twice = sum(count > 1 for count in got.values())
    return Turn(messages / seconds, lost / messages, twice, tuple(len(each["ids"]) for each in told))


def _all_told(workers: Sequence[subprocess.Popen[str]]) -> Sequence[subprocess.Popen[str]]:
    """All of them begin before the first is waited for."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return workers


async def _fill(root: str, messages: int) -> None:
    ids = MessageIds()
    async with open_storage(f"posix:{root}") as storage:
        await storage.put_record(QUEUE, "q", {"created": 0})
        for begin in range(0, messages, _TOGETHER):
            count = min(_TOGETHER, messages - begin)
            written = await storage.commit([Write("q", ids.new(), _BODY) for _ in range(count)])
            await storage.commit([Move(outcome.entry, State.READY) for outcome in written if outcome.entry is not None])


class _Counting:
    """A store that counts the leases that another broker was faster with."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """As the store's."""
        outcomes = await self._storage.commit(operations)
        for operation, outcome in zip(operations, outcomes, strict=True):
            leased = isinstance(operation, Move) and operation.state is State.DELAYED
            self.lost += leased and outcome.result is Result.GONE
        return outcomes


class _First(Random):
    """Chooses the first, and does not wait: the algorithm is off."""

    def choice(self, seq: Any) -> Any:
        """The first."""
        return seq[0]

    def uniform(self, a: float, b: float) -> float:
        """The least."""
        return a


async def _work(root: str, window: int) -> None:
    ids: list[str] = []
    instants: list[float] = []

    async def consume(broker: Broker) -> None:
        nothing = 0
        while nothing < _NOTHING:
            message = await broker.fetch("q")
            if message is None:
                nothing += 1
                continue
            nothing = 0
            await message.body.aclose()
            ids.append(str(message.id))
            instants.append(time.monotonic())
            await broker.remove("q", message.id)

    async with open_storage(f"posix:{root}", sharing=Sharing.PEERS) as storage:
        counting = _Counting(storage)
        config = BrokerConfig(peers=max(1, window - 1))
        random = _First() if window == 1 else Random()
        async with open_broker(counting, config, random=random) as broker, trio.open_nursery() as nursery:
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            began = time.monotonic()
            for _ in range(CONSUMERS):
                nursery.start_soon(consume, broker)
    last = instants[-1] if instants else began
    print(json.dumps({"ids": ids, "lost": counting.lost, "first": began, "last": last}))


def _draw(turns: Turns, path: str) -> None:
    settings: dict[str, Any] = {"svg.hashsalt": "mq", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}
    with mpl.rc_context(settings):
        figure, (rates, races) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        labels = ["off", *(str(window - 1) for window in WINDOWS[1:])]
        for brokers in BROKERS:
            medians = [turns[brokers, window] for window in WINDOWS]
            rate = [statistics.median(turn.rate for turn in each) for each in medians]
            lost = [statistics.median(turn.lost for turn in each) for each in medians]
            rates.plot(labels, rate, "o-", label=f"{brokers} brokers")
            races.plot(labels, lost, "o-", label=f"{brokers} brokers")
        for axes, title in ((rates, "messages a second, all brokers"), (races, "races lost for each message")):
            axes.set_title(title)
            axes.set_xlabel("peers")
            axes.set_ylim(bottom=0)
        rates.legend(frameon=False)
        figure.savefig(Path(path), metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    trio.run(_work, sys.argv[1], int(sys.argv[2]))
