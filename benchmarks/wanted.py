"""``python -m benchmarks wanted``: the figures that mq is meant to reach, and those that it reaches.

Each part is a function that measures what belongs together, its contenders taking turns, and gives its rows. What is
counted (flushes, device writes, system calls, processor time) hardly wanders; rates do, so of these only ratios of
medians of one run are held against a bound.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from benchmarks import amqp as stream
from benchmarks import backlog, beside, churn, disks, many, programs, vsqs
from benchmarks import embedded as inside
from benchmarks.figures import Figure, at_least, at_most, not_measured, spread
from benchmarks.results import medians
from benchmarks.systems import SYSTEMS
from benchmarks.systems.mq import Mq, MqAmqp, MqPeers, MqTurns, MqWithoutLog
from benchmarks.systems.rabbitmq import RabbitClassic
from benchmarks.systems.system import Server, System
from benchmarks.turns import CONSUME, MIXED, PUBLISH, Load, Turn, count_calls, of, take_turn
from mq.storage.files.log import LARGEST

SIZE: Final = 1024
LARGE: Final = (16 << 10, 256 << 10)
FLUSH_SECONDS: Final = 0.002
_MOST_TURNS: Final = 3
NO_DEVICE: Final = "this file system has no device that counts"


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
TINY: Final = Effort(rounds=1, seconds=0.05, many=300, lengths=(200, 300))

Part = Callable[[Path, Effort], list[Figure]]


def counted(folder: Path, effort: Effort) -> list[Figure]:
    """What a message costs, over HTTP."""
    with _running(folder, Mq()) as servers:
        _lengthen_logs(servers, folder, effort)
        one = _turns(servers, folder, Load(1, SIZE, effort.seconds), effort)
        many = _turns(servers, folder, Load(32, SIZE, effort.seconds), effort)
        calls = count_calls(*servers[0], Load(32, SIZE, effort.seconds))
    single, life = _each(one, "mq", PUBLISH), _each(one, "mq", MIXED)
    shared, consumed = _each(many, "mq", PUBLISH), _each(many, "mq", CONSUME)
    return [
        *_device("publish, 1 connection", single, flushes=1.05, writes=2.1, kib=9.5),
        *_device("publish, fetch and delete, 1 connection, one after the other", life, flushes=3.1, kib=16),
        *_device("publish, 32 connections", shared, flushes=0.05, writes=0.15),
        at_most("publish, 32 connections: processor time", shared.cpu, 110, "µs", _driver(shared)),
        *_calls("publish, 32 connections", calls.get(PUBLISH)),
        *_device("fetch and delete, 32 connections", consumed, flushes=0.07),
        at_most("fetch and delete, 32 connections: processor time", consumed.cpu, 160, "µs", _driver(consumed)),
        *_calls("fetch and delete, 32 connections", calls.get(CONSUME)),
        at_most("publish, 32 connections: p99 against p50", shared.p99 / shared.p50, 3, note=_latency(shared)),
    ]


def beanstalkd(folder: Path, effort: Effort) -> list[Figure]:
    """Against the fastest of the durable peers that write a log, on the same file system."""
    if why := SYSTEMS["beanstalkd"].absence():
        return [not_measured("against beanstalkd -f0", why)]
    with _running(folder, Mq(), SYSTEMS["beanstalkd"]) as servers:
        return _against_beanstalkd(servers, folder, effort, {1: 0.7, 32: 2.0, 256: 3.0})


def bodies(folder: Path, effort: Effort) -> list[Figure]:
    """What large bodies cost, with the log, which has some of them twice, and without it."""
    figures = []
    with _running(folder, Mq(), MqWithoutLog()) as servers:
        _lengthen_logs(servers, folder, effort)
        for size in LARGE:
            turns = _turns(servers, folder, Load(32, size, effort.seconds, workloads=(PUBLISH,)), effort)
            ours, before = _each(turns, "mq", PUBLISH), _each(turns, "mq-no-log", PUBLISH)
            name = f"publish of {size >> 10} KiB, 32 connections"
            if ours.written is None or ours.flushes is None or not before.flushes:
                figures.append(not_measured(name, NO_DEVICE))
                continue
            note = f"{ours.written / 1024:,.1f} KiB"
            flushes = f"{ours.flushes:.3f} against {before.flushes:.3f} a message"
            figures += [
                at_most(f"{name}: bytes written, against the body", ours.written / size, 2.2, note=note),
                at_most(f"{name}: flushes, against --no-log", ours.flushes / before.flushes, 1.0, note=flushes),
            ]
    return figures


def amqp(folder: Path, effort: Effort) -> list[Figure]:
    """Over AMQP against RabbitMQ's classic queue: raw frames, and programs that people use."""
    what = "over AMQP, against RabbitMQ's classic queue"
    if why := RabbitClassic().absence():
        return [not_measured(what, why, "≥ 0.8")]
    figures = []
    with _running(folder, MqAmqp(), RabbitClassic()) as servers:
        for name, work, bound, messages in (*stream.WORKS, *programs.WORKS):
            rates: dict[str, list[float]] = {}
            for number in range(effort.rounds + 1):  # the first one warms up
                for system, server in servers if number % 2 else reversed(servers):
                    count = max(stream.TOGETHER, round(messages * effort.seconds))
                    rate = count / work(server.ports[0], count)
                    if number:
                        rates.setdefault(system.name, []).append(rate)
            figures.append(_against(f"{name} {what}", rates["mq-amqp"], rates["rabbitmq-classic"], bound))
    return figures


def isolation(folder: Path, effort: Effort) -> list[Figure]:
    """Publishes beside another program that writes, with the log and file by file."""
    with _running(folder, Mq(), MqWithoutLog()) as servers:
        return beside.measure(servers, folder, effort.rounds, effort.seconds * 8)


def queues(folder: Path, effort: Effort) -> list[Figure]:
    """Durable queues made and deleted."""
    with _running(folder, Mq()) as [(_, server)]:
        return churn.measure(server, folder, round(1000 * effort.seconds))


def daemons(folder: Path, effort: Effort) -> list[Figure]:
    """Two daemons on one root against one, the load generator included: messages published, fetched and deleted."""
    load = Load(32, SIZE, effort.seconds, workloads=(MIXED,))
    with _running(folder, Mq(), MqTurns(), MqPeers()) as [(one, alone), (turns, pair), (peers, both)]:
        eight = _turns([(one, alone), (turns, pair), (peers, both)], folder, load._replace(queues=8), effort)
        through = Server(pair.ports[1:], pair.pids)
        single = _turns([(one, alone), (turns, through)], folder, load, effort)
    figures = []
    for name, taken, how, bound in (
        (turns.name, eight, "take turns, eight queues", 1.25),
        (turns.name, single, "take turns, one queue through the one that stands by", 1.6),
        (peers.name, eight, "--peers, eight queues", 1.25),
    ):
        other, before = _each(taken, name, MIXED), _each(taken, one.name, MIXED)
        cost = (other.cpu + other.driver) / (before.cpu + before.driver)
        note = f"{other.cpu:,.0f} + {other.driver:,.0f} µs against {before.cpu:,.0f} + {before.driver:,.0f} µs"
        figures += [
            at_most(f"two daemons on one root, {how}: processor time", cost, bound, note=note),
            _against(
                f"two daemons on one root, {how}: rate",
                _rates(taken, name, MIXED),
                _rates(taken, one.name, MIXED),
                1.0 if taken is eight else None,
            ),
        ]
    return figures


def lengths(folder: Path, effort: Effort) -> list[Figure]:
    """What does not grow: in memory (tmpfs), so that the files cost next to nothing."""
    with disks.in_memory() as memory:
        fetches = trio.run(backlog.measure_lengths, str(memory), effort.rounds, effort.lengths)
        return fetches + many.measure(str(memory), effort.many, ("ready", many.YEAR))


def slow(folder: Path, effort: Effort) -> list[Figure]:
    """The same on a disk whose flush takes two milliseconds, also beside another program that writes, and against
    beanstalkd with many connections."""
    why = disks.why_not_slow()
    if why:
        return [not_measured("flush of 2 ms", why)]
    with disks.slow(FLUSH_SECONDS) as root:
        figures = counted(root, effort) + isolation(root, effort)
        if not SYSTEMS["beanstalkd"].absence():
            with _running(root, Mq(), SYSTEMS["beanstalkd"]) as servers:
                figures += _against_beanstalkd(servers, root, effort, {1: None, 32: None, 256: 40.0})
    return [figure._replace(name=f"flush of 2 ms: {figure.name}") for figure in figures]


def embedded(folder: Path, effort: Effort) -> list[Figure]:
    """Without a daemon: a broker inside a program against the bare loop, and VSQS against other queues in a folder."""
    figures = trio.run(inside.measure, str(folder), effort.rounds, round(2000 * effort.seconds))
    return figures + vsqs.measure(str(folder), effort.rounds, round(200 * effort.seconds), effort.lengths[0])


PARTS: Final[dict[str, Part]] = {
    "counted": counted,
    "beanstalkd": beanstalkd,
    "bodies": bodies,
    "amqp": amqp,
    "isolation": isolation,
    "queues": queues,
    "daemons": daemons,
    "lengths": lengths,
    "embedded": embedded,
    "slow": slow,
}
"""By name, in the order of the table."""


def _against_beanstalkd(
    servers: Sequence[tuple[System, Server]], folder: Path, effort: Effort, bounds: Mapping[int, float | None]
) -> list[Figure]:
    """Rates of publishing at so many connections, held to these bounds, and of fetching and deleting."""
    figures = []
    for clients, bound in bounds.items():
        load = Load(clients, SIZE, effort.seconds, workloads=(PUBLISH, CONSUME))
        turns = _turns(servers, folder, load, effort)
        for workload in (PUBLISH, CONSUME):
            name = f"{workload}, {clients} connection{'s' if clients > 1 else ''}, against beanstalkd -f0"
            ours, theirs = _rates(turns, "mq", workload), _rates(turns, "beanstalkd", workload)
            figures.append(_against(name, ours, theirs, bound if workload == PUBLISH else None))
    return figures


@contextmanager
def _running(folder: Path, *systems: System) -> Iterator[list[tuple[System, Server]]]:
    with ExitStack() as stack:
        servers = []
        for system in systems:
            own = Path(tempfile.mkdtemp(prefix=system.name, dir=folder))
            servers.append((system, stack.enter_context(system.start(own))))
        yield servers


def _lengthen_logs(servers: Sequence[tuple[System, Server]], folder: Path, effort: Effort) -> None:
    """Publish until logs are as long as they get: they double by zeros, which a root writes once and for all, and in a
    turn as short as these would be a third of all that is written."""
    for _ in range(_MOST_TURNS):
        for system, server in servers:
            take_turn(system, server, folder, Load(32, 1 << 16, 8 * effort.seconds, workloads=(PUBLISH,)))
        if all(segment.stat().st_size == LARGEST for segment in folder.glob("*/root/state/log/?")):
            return


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


def _device(
    name: str, turn: Turn, flushes: float, writes: float | None = None, kib: float | None = None
) -> list[Figure]:
    if turn.flushes is None or turn.writes is None or turn.written is None:
        return [not_measured(f"{name}: flushes", NO_DEVICE)]
    return [
        at_most(f"{name}: flushes", round(turn.flushes, 3), flushes, "a message"),
        _bounded(f"{name}: device writes", turn.writes, writes, "a message"),
        _bounded(f"{name}: written", turn.written / 1024, kib, "KiB a message"),
    ]


def _bounded(name: str, value: float, bound: float | None, unit: str) -> Figure:
    return Figure(name, value, unit) if bound is None else at_most(name, value, bound, unit)


def _calls(name: str, told: tuple[float, str] | None) -> list[Figure]:
    if told is None:
        return [not_measured(f"{name}: system calls", "neither perf nor strace can count here")]
    count, by = told
    return [Figure(f"{name}: system calls", count, "a message", note=f"by {by}")]


def _driver(turn: Turn) -> str:
    return f"and {turn.driver:,.0f} µs of the load generator"


def _latency(turn: Turn) -> str:
    return f"{turn.p50:,.1f} and {turn.p99:,.1f} ms at {turn.rate:,.0f} a second"
