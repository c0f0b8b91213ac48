"""The benchmarks against peers run, with sizes that take seconds. Nothing is held against a figure here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases import proof

systems = pytest.importorskip("benchmarks.systems", reason="a source package has no benchmarks")
compare = pytest.importorskip("benchmarks.compare")
counts = pytest.importorskip("benchmarks.counts")
page = pytest.importorskip("benchmarks.page")
turns = pytest.importorskip("benchmarks.turns")

TREE = Path(__file__).resolve().parent.parent.parent
OTHERS = [name for name in systems.SYSTEMS if not name.startswith("rabbitmq-")]
TINY = turns.Load(clients=3, size=1000, seconds=0.05, warm_up=0.05)


def turn(**changes: object) -> turns.Turn:
    numbers = dict.fromkeys(turns.Turn._fields[5:], 1.0)
    return turns.Turn(
        **{"system": "mq", "workload": "mixed", "clients": 1, "size": 9, "round": 0, **numbers, **changes}
    )


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", [*OTHERS, proof("rabbitmq-classic")])
def test_each_system_takes_its_turn(name: str, tmp_path: Path) -> None:
    system = systems.SYSTEMS[name]
    if why := system.absence():
        pytest.skip(why)
    with system.start(tmp_path) as server:
        taken = turns.take_turn(system, server, tmp_path, TINY)
        calls = [turn.calls for turn in turns.take_turn(system, server, tmp_path, TINY._replace(counts_calls=True))]
    assert [each.workload for each in taken] == list(turns.WORKLOADS)
    assert all(each.rate > 0 and each.p99 >= each.p50 > 0 and each.cpu > 0 for each in taken)
    assert all(number is None or number > 0 for number in calls)
    assert system.version() != "unknown"
    assert not listening(server.ports)


def listening(ports: tuple[int, ...]) -> list[int]:
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    there = {int(line.split()[1].split(":")[1], 16) for line in table if line.split()[3] == "0A"}
    return [port for port in ports if port in there]


@pytest.mark.proof
def test_commands_write_figures_plots_and_a_page(tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "page.md"
    where = ["--tiny", "--plain", "--root", str(tmp_path), "--out", str(out), "--page", str(target)]
    for command in (["compare", "--systems", "mq", "redis"], ["page"]):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *command, *where],
            cwd=TREE,
            capture_output=True,
            text=True,
            env={**os.environ, "MPLCONFIGDIR": str(tmp_path / "mpl")},
        )
        assert done.returncode == 0, done.stderr
    document = json.loads((out / "results.json").read_text())
    assert {each["system"] for each in document["turns"]} | set(document["absent"]) == {"mq", "redis"}
    assert document["facts"]["commit"]
    plots = [f"{name}.svg" for name in ("flushes", "latencies", "processor", "rates")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*plots, "results.json"])
    assert all(f"](out/{name})" in target.read_text() for name in plots)


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
    found = compare.medians(counted)
    assert found["mq", "mixed", 1, 9].rate == 3.0
    assert found["mq", "mixed", 1, 1].flushes is None


def test_page_of_the_documentation_is_generated_and_short() -> None:
    document = json.loads((TREE / "docs" / "benchmarks" / "results.json").read_text())
    found = compare.medians(turns.Turn(**turn) for turn in document["turns"])
    text = (TREE / "docs" / "benchmarks.md").read_text()
    shown = re.findall(r"!\[(.*)\]\((.*)\)", text)
    assert text == page.render(document, found, [(address, title) for title, address in shown])
    assert len(shown) == 4
    assert len(text.splitlines()) <= 150


def test_page_names_the_systems_that_are_absent() -> None:
    facts = {"date": "today", page.LOAD: "0.1"}
    document = {
        "facts": facts,
        "rounds": 1,
        "seconds": 0.5,
        "systems": {},
        "absent": {"redis": "no redis here"},
        "calls": {},
        "reference": [],
    }
    assert "| Redis streams | not measured | no redis here |" in page.render(document, {}, [])
