"""The benchmarks against peers run, with sizes that take seconds. Nothing is held against a figure here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

systems = pytest.importorskip("benchmarks.systems", reason="a source package has no benchmarks")
counts = pytest.importorskip("benchmarks.counts")
disks = pytest.importorskip("benchmarks.disks")
figures = pytest.importorskip("benchmarks.figures")
page = pytest.importorskip("benchmarks.page")
results = pytest.importorskip("benchmarks.results")
turns = pytest.importorskip("benchmarks.turns")
wanted = pytest.importorskip("benchmarks.wanted")

TREE = Path(__file__).resolve().parent.parent.parent
TINY = turns.Load(clients=3, size=1000, seconds=0.05, warm_up=0.05)


def turn(**changes: object) -> turns.Turn:
    numbers = dict.fromkeys(turns.Turn._fields[5:], 1.0)
    return turns.Turn(
        **{"system": "mq", "workload": "mixed", "clients": 1, "size": 9, "round": 0, **numbers, **changes}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in systems.SYSTEMS if name != "rabbitmq-quorum"])
def test_each_system_takes_its_turn(name: str, tmp_path: Path) -> None:
    system = systems.SYSTEMS[name]
    if why := system.absence():
        pytest.skip(why)
    with system.start(tmp_path) as server:
        taken = turns.take_turn(system, server, tmp_path, TINY)
        calls = turns.count_calls(system, server, TINY)
    assert [each.workload for each in taken] == list(turns.WORKLOADS)
    assert all(each.rate > 0 and each.p99 >= each.p50 > 0 and each.cpu > 0 for each in taken)
    assert all(number > 0 for number, _ in calls.values())
    assert system.version() != "unknown"
    assert not listening(server.ports)


def listening(ports: tuple[int, ...]) -> list[int]:
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    there = {int(line.split()[1].split(":")[1], 16) for line in table if line.split()[3] == "0A"}
    return [port for port in ports if port in there]


@pytest.mark.proof
def test_commands_write_figures_plots_and_a_page(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    target.write_text(f"before\n{page.BEGIN}\nwhat stood here\n{page.END}\nafter\n")
    out = tmp_path / "out"
    where = [
        "--tiny",
        "--plain",
        "--root",
        str(tmp_path),
        "--out",
        str(out),
        "--state",
        str(out),
        "--page",
        str(target),
    ]
    for command in (["wanted", "counted"], ["compare", "--systems", "mq,redis"], ["page"]):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *command, *where],
            cwd=TREE,
            capture_output=True,
            text=True,
            env={**os.environ, "MPLCONFIGDIR": str(tmp_path / "mpl")},
        )
        assert done.returncode == 0, done.stderr
    text = target.read_text()
    document = json.loads((out / "results.json").read_text())
    assert {each["system"] for each in document["comparison"]["turns"]} | set(document["comparison"]["absent"]) == {
        "mq",
        "redis",
    }
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "what stood here" not in text
    for figure in document["wanted"]["counted"]:
        assert figure["name"] in text
    assert all((out / name).is_file() for name in ("rates.svg", "latencies.svg", "processor.svg"))
    assert "](out/rates.svg)" in text
    assert sorted(path.name for path in out.iterdir()) == [
        "latencies.svg",
        "processor.svg",
        "rates.svg",
        "results.json",
    ]


def test_broken_off_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "state" / "turns.jsonl"
    results.Results(path, {"commit": "a", "sizes": (9,)}).add(("mq", 1, 9, 0), [turn(rate=7.0)])
    again = results.Results(path, {"commit": "a", "sizes": (9,)})
    assert ("mq", 1, 9, 0) in again
    assert ("mq", 1, 9, 1) not in again
    assert [each.rate for each in again.turns] == [7.0]
    other = results.Results(path, {"commit": "b", "sizes": (9,)})
    assert ("mq", 1, 9, 0) not in other
    assert other.turns == []


def test_processor_time_of_children_that_ended_is_not_lost() -> None:
    child = "[sys.executable, '-c', 'sum(range(5_000_000))']"
    work = f"import subprocess, sys; subprocess.run({child}); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        alone = time.clock_gettime(~parent.pid << 3 | 2)
        assert counts.processor_seconds([parent.pid]) > alone + 0.02
        parent.communicate(b"\n")
    assert counts.processor_seconds([parent.pid]) == 0


def test_medians_are_over_rounds() -> None:
    measured = [turn(round=number, rate=rate) for number, rate in enumerate((1.0, 50.0, 3.0))]
    counted = [*measured, turn(size=1, flushes=None)]
    found = results.medians(counted)
    assert found["mq", "mixed", 1, 9].rate == 3.0
    assert found["mq", "mixed", 1, 1].flushes is None


@pytest.mark.proof
@pytest.mark.parametrize("part", ["beanstalkd", "bodies", "amqp", "isolation", "queues", "daemons", "embedded"])
def test_each_part_has_figures(part: str, tmp_path: Path) -> None:
    figures = wanted.PARTS[part](tmp_path, wanted.TINY)
    assert figures
    for figure in figures:
        assert figure.value > 0 or figure.note.startswith("not measured: "), figure


def test_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    target.write_text("mine\n")
    with pytest.raises(ValueError, match="has no lines"):
        page.put(target, "new")
    assert target.read_text() == "mine\n"


def test_page_of_the_documentation_has_the_markers() -> None:
    text = (TREE / "docs" / "benchmarks.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1


def test_figure_that_could_not_be_measured_has_no_verdict() -> None:
    text = page.wanted_section({"part": [figures.not_measured("publish", "no disk", "≤ 1")]})
    assert "| publish | –  | ≤ 1 |  | not measured: no disk |" in text


@pytest.mark.slow
@pytest.mark.root
def test_slow_disk_takes_its_time_for_each_flush() -> None:
    if why := disks.why_not_slow():
        pytest.skip(why)
    with disks.slow(0.01) as mounted:
        started = time.perf_counter()
        for number in range(5):
            handle = os.open(mounted / str(number), os.O_CREAT | os.O_WRONLY)
            os.fsync(handle)
            os.close(handle)
        assert time.perf_counter() - started >= 5 * 0.01
    assert not mounted.exists()
