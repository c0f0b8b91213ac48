"""``python -m benchmarks wanted``: the figures that mq is meant to reach, and those that it reaches.

Each part is a function that measures what belongs together, its contenders taking turns, and gives its rows. What is
counted (flushes, device writes, system calls, processor time) hardly wanders; rates do, so of these only ratios of
medians of one run are held against a bound.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from benchmarks import backlog, disks, many, vsqs
from benchmarks import embedded as inside
from benchmarks.figures import Figure, at_least, at_most, not_measured, spread
from benchmarks.limits import Limits
from benchmarks.load.http import HttpBatchCodec
from benchmarks.results import medians
from benchmarks.systems import SYSTEMS
from benchmarks.systems.mq import Mq, MqAmqp, MqBatches, MqPeers
from benchmarks.systems.rabbitmq import RabbitClassic
from benchmarks.systems.system import Server, System
from benchmarks.turns import CONSUME, PUBLISH, Load, Turn, count_calls, of, take_turn
from benchmarks.windows import MqWindow, RabbitWindow, WindowCodec

SIZE: Final = 1024
FLUSH_SECONDS: Final = 0.002


class Effort(NamedTuple):
    """How much is measured.

    Attributes:
        rounds: turns of each contender.
        seconds: length of a phase.
        many: messages of a large backlog.
        lengths: of backlogs.
    """

    rounds: int = 5
    seconds: float = 1.0
    many: int = 1_000_000
    lengths: Sequence[int] = (1_000, 100_000, 1_000_000)


QUICK: Final = Effort(rounds=3, seconds=0.5, many=100_000, lengths=(1_000, 100_000))
FULL: Final = Effort()
TINY: Final = Effort(rounds=1, seconds=0.05, many=300, lengths=(100, 300))

Part = Callable[[Path, Effort], list[Figure]]


def counted(folder: Path, effort: Effort) -> list[Figure]:
    """What a message costs, over HTTP."""
    with _running(folder, Mq()) as servers:
        one = _turns(servers, folder, Load(1, SIZE, effort.seconds), effort)
        many = _turns(servers, folder, Load(32, SIZE, effort.seconds), effort)
        calls = count_calls(*servers[0], Load(32, SIZE, effort.seconds))
    single = _each(one, "mq", PUBLISH)
    shared, consumed = _each(many, "mq", PUBLISH), _each(many, "mq", CONSUME)
    return [
        *_device("publish, 32 connections", shared, flushes=0.07, writes=1.5),
        at_most("publish, 32 connections: processor time", shared.cpu, 100, "µs", _driver(shared)),
        *_calls("publish, 32 connections", calls.get(PUBLISH), 12),
        *_device("publish, 1 connection", single, flushes=2, writes=6),
        *_device("fetch and delete, 32 connections", consumed, flushes=0.15),
        at_most("fetch and delete, 32 connections: processor time", consumed.cpu, 120, "µs", _driver(consumed)),
        *_calls("fetch and delete, 32 connections", calls.get(CONSUME)),
        at_most("publish, 32 connections: p99 against p50", shared.p99 / shared.p50, 3, note=_latency(shared)),
    ]


def ratios(folder: Path, effort: Effort) -> list[Figure]:
    """Against the bare loop, and against beanstalkd."""
    limits = Limits(folder, SIZE)
    load = Load(32, SIZE, effort.seconds)
    contenders = _present(Mq(), MqBatches(), SYSTEMS["beanstalkd"])
    turns: list[Turn] = []
    with _running(folder, *contenders) as servers:
        for number in range(effort.rounds):
            limits.take_turn()
            for system, server in servers if number % 2 else reversed(servers):
                batches = isinstance(system, MqBatches)
                each = load._replace(clients=4, workloads=(PUBLISH,)) if batches else load
                turns += take_turn(system, server, folder, each, number)
    publish, consume = _rates(turns, "mq", PUBLISH), _rates(turns, "mq", CONSUME)
    batched = [rate * HttpBatchCodec.size for rate in _rates(turns, "mq-batches", PUBLISH)]
    figures = []
    for language in ("Python", "C"):
        best = limits.best(language)
        if best is not None:
            rate, how = best
            against = f"against the bare loop {how}"
            figures += [
                _against("publish, 32 connections", publish, [rate.publish], 0.6, against),
                _against("batch publish, 4 connections", batched, [rate.publish], 0.85, against),
                _against("fetch and delete, 32 connections", consume, [rate.consume], 0.5, against),
            ]
    peer = "against beanstalkd -f0"
    if of(turns, system="beanstalkd"):
        figures.append(_against("publish, 32 connections", publish, _rates(turns, "beanstalkd", PUBLISH), 1.0, peer))
        figures.append(
            _against("fetch and delete, 32 connections", consume, _rates(turns, "beanstalkd", CONSUME), None, peer)
        )
    return figures


def amqp(folder: Path, effort: Effort) -> list[Figure]:
    """Over AMQP with a thousand confirms outstanding, against RabbitMQ's classic queue."""
    why = MqAmqp().absence() or RabbitClassic().absence()
    name = "AMQP publish, 1,000 confirms outstanding, against RabbitMQ's classic queue"
    if why:
        return [not_measured(name, why, "≥ 0.5")]
    load = Load(1, SIZE, effort.seconds, workloads=(PUBLISH,))
    with _running(folder, MqWindow(), RabbitWindow()) as servers:
        turns = _turns(servers, folder, load, effort)
    ours, theirs = _rates(turns, "mq-window", PUBLISH), _rates(turns, "rabbitmq-window", PUBLISH)
    size = WindowCodec.size
    return [_against(name, [rate * size for rate in ours], [rate * size for rate in theirs], 0.5)]


def peers(folder: Path, effort: Effort) -> list[Figure]:
    """Two daemons on one root against one, the load generator included."""
    with _running(folder, Mq(), MqPeers()) as servers:
        turns = _turns(servers, folder, Load(32, SIZE, effort.seconds), effort)
    figures = []
    for workload in (PUBLISH, CONSUME):
        one, two = _each(turns, "mq", workload), _each(turns, "mq-peers", workload)
        note = f"{two.cpu:,.0f} + {two.driver:,.0f} µs against {one.cpu:,.0f} + {one.driver:,.0f} µs"
        cost = (two.cpu + two.driver) / (one.cpu + one.driver)
        figures += [
            at_most(f"two daemons on one root: {workload}, all processor time a message", cost, 1.15, note=note),
            _against(
                f"two daemons on one root: {workload}, rate",
                _rates(turns, "mq-peers", workload),
                _rates(turns, "mq", workload),
                1.0,
            ),
        ]
    return figures


def lengths(folder: Path, effort: Effort) -> list[Figure]:
    """What does not grow: in memory (tmpfs), so that the files cost next to nothing."""
    with disks.in_memory() as memory:
        fetches = trio.run(backlog.measure_lengths, str(memory), effort.rounds, effort.lengths)
        return fetches + many.measure(str(memory), effort.many, ("ready", many.YEAR))


def slow(folder: Path, effort: Effort) -> list[Figure]:
    """The same on a disk whose flush takes two milliseconds, and against beanstalkd with many connections."""
    why = disks.why_not_slow()
    if why:
        return [not_measured("flush of 2 ms", why)]
    with disks.slow(FLUSH_SECONDS) as root:
        figures = counted(root, effort)
        turns: list[Turn] = []
        contenders = _present(Mq(), SYSTEMS["beanstalkd"])
        with _running(root, *contenders) as servers:
            for clients in (1, 32, 256):
                turns += _turns(
                    servers, root, Load(clients, SIZE, effort.seconds, workloads=(PUBLISH, CONSUME)), effort
                )
    if len(contenders) > 1:
        for workload, clients in itertools.product((PUBLISH, CONSUME), (1, 32, 256)):
            at = of(turns, clients=clients)
            bound = 5.0 if (workload, clients) == (PUBLISH, 256) else None
            name = f"{workload}, {clients} connection{'s' if clients > 1 else ''}, against beanstalkd -f0"
            figures.append(_against(name, _rates(at, "mq", workload), _rates(at, "beanstalkd", workload), bound))
    return [figure._replace(name=f"flush of 2 ms: {figure.name}") for figure in figures]


def embedded(folder: Path, effort: Effort) -> list[Figure]:
    """Without a daemon: a broker inside a program against the bare loop, and VSQS against other queues in a folder."""
    figures = trio.run(inside.measure, str(folder), effort.rounds, round(2000 * effort.seconds))
    return figures + vsqs.measure(str(folder), effort.rounds, round(200 * effort.seconds), effort.lengths[0])


PARTS: Final[dict[str, Part]] = {
    "counted": counted,
    "ratios": ratios,
    "amqp": amqp,
    "peers": peers,
    "lengths": lengths,
    "embedded": embedded,
    "slow": slow,
}
"""By name, in the order of the table."""


def _present(*systems: System) -> list[System]:
    return [system for system in systems if not system.absence()]


@contextmanager
def _running(folder: Path, *systems: System) -> Iterator[list[tuple[System, Server]]]:
    with ExitStack() as stack:
        servers = []
        for system in systems:
            own = Path(tempfile.mkdtemp(prefix=system.name, dir=folder))
            servers.append((system, stack.enter_context(system.start(own))))
        yield servers


def _turns(servers: Sequence[tuple[System, Server]], folder: Path, load: Load, effort: Effort) -> list[Turn]:
    turns: list[Turn] = []
    for number in range(effort.rounds):
        for system, server in servers if number % 2 else reversed(servers):
            turns += take_turn(system, server, folder, load, number)
    return turns


def _each(turns: Sequence[Turn], system: str, workload: str) -> Turn:
    [median] = medians(of(turns, system=system, workload=workload)).values()
    return median


def _rates(turns: Sequence[Turn], system: str, workload: str) -> list[float]:
    return [turn.rate for turn in of(turns, system=system, workload=workload)]


def _against(name: str, ours: Sequence[float], theirs: Sequence[float], bound: float | None, how: str = "") -> Figure:
    ratio = statistics.median(ours) / statistics.median(theirs)
    note = f"{spread(ours, 'a second')} against {spread(theirs, 'a second')}"
    title = f"{name}, {how}" if how else name
    return Figure(title, ratio, note=note) if bound is None else at_least(title, ratio, bound, note)


def _device(name: str, turn: Turn, flushes: float, writes: float | None = None) -> list[Figure]:
    if turn.flushes is None or turn.writes is None or turn.written is None:
        return [not_measured(f"{name}: flushes", "this file system has no device that counts")]
    note = f"{turn.written / 1024:.1f} KiB"
    written = f"{name}: device writes"
    return [
        at_most(f"{name}: flushes", round(turn.flushes, 2), flushes, "a message"),
        Figure(written, turn.writes, "a message", note=note)
        if writes is None
        else at_most(written, turn.writes, writes, "a message", note),
    ]


def _calls(name: str, told: tuple[float, str] | None, most: float | None = None) -> list[Figure]:
    if told is None:
        return [not_measured(f"{name}: system calls", "neither perf nor strace can count here")]
    count, by = told
    if most is None:
        return [Figure(f"{name}: system calls", count, "a message", note=f"by {by}")]
    return [at_most(f"{name}: system calls", count, most, "a message", f"by {by}")]


def _driver(turn: Turn) -> str:
    return f"and {turn.driver:,.0f} µs of the load generator"


def _latency(turn: Turn) -> str:
    return f"{turn.p50:,.1f} and {turn.p99:,.1f} ms at {turn.rate:,.0f} a second"
