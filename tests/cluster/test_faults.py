"""Three brokers and three members of etcd on hosts of their own: killed, cut off and paused under load, one after the
other. The history of it all has to be what was promised."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.hosts import AMQP_PORT, Machine, Machines, three_machines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]

Fault = Callable[[Machines, Machine], None]


def kill_node(machines: Machines, machine: Machine) -> None:
    machines.fault(f"kill -9 of node {machine.name}")
    machine.node.kill()


def cut(machines: Machines, machine: Machine) -> None:
    machines.fault(f"host {machine.name} is cut off")
    machine.host.cut()


def pause_node(machines: Machines, machine: Machine) -> None:
    machines.fault(f"SIGSTOP of node {machine.name}")
    machine.node.pause()


def kill_machine(machines: Machines, machine: Machine) -> None:
    machines.fault(f"kill -9 of everything on host {machine.name}")
    machine.node.kill()
    machine.etcd.kill()


def restart_node(machine: Machine) -> None:
    machine.start_node()
    time.sleep(2)


def mend(machine: Machine) -> None:
    time.sleep(1)
    machine.host.mend()


def resume(machine: Machine) -> None:
    time.sleep(1)
    machine.node.resume()


def restart_machine(machine: Machine) -> None:
    time.sleep(3)
    machine.start_etcd()
    machine.start_node()


MASTER_FAULTS = ((kill_node, restart_node), (cut, mend), (pause_node, resume))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("of_masters", "of_mirrors"),
    [(MASTER_FAULTS[:2], ()), (MASTER_FAULTS[2:], ((kill_machine, restart_machine),))],
    ids=["masters that are killed and cut off", "a master that is paused, and a mirror that is killed"],
)
def test_each_fault_in_turn(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    of_masters: Sequence[tuple[Fault, Callable[[Machine], None]]],
    of_mirrors: Sequence[tuple[Fault, Callable[[Machine], None]]],
) -> None:
    with three_machines(tmp_path, wrong_by={"b": 3600.0}) as machines:
        time.sleep(2)
        for break_, repair in of_masters:
            master, term = machines.master(), machines.term()
            break_(machines, master)
            machines.wait_for_term_after(term)
            repair(master)
            machines.wait_until_member(master)
            time.sleep(1)
        for break_, repair in of_mirrors:
            mirror = next(machine for machine in machines.by_name.values() if machine is not machines.master())
            break_(machines, mirror)
            repair(mirror)
            machines.wait_until_member(mirror)
            time.sleep(1)
        finish(machines, capsys)


@pytest.mark.proof
def test_a_master_that_reaches_etcd_and_no_node_gives_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with three_machines(tmp_path) as machines:
        time.sleep(2)
        first, term = machines.master(), machines.term()
        machines.fault(f"node {first.name} and its neighbours do not reach each other, and all reach etcd")
        first.host.block(AMQP_PORT)
        machines.wait_for_term_after(term)
        second = machines.master()
        assert second is not first
        time.sleep(2)
        first.host.unblock(AMQP_PORT)
        machines.wait_until_member(first)
        time.sleep(2)
        assert machines.master() is second, "who left is the youngest"
        finish(machines, capsys)


@pytest.mark.proof
def test_a_master_whose_machine_is_lost_has_not_led_etcd_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two elections, one after the other, would take twice as long: the report says how long each took."""
    with three_machines(tmp_path) as machines:
        for _ in range(6):
            time.sleep(2)
            master, term = machines.master(), machines.term()
            machines.wait_until(lambda master=master: not master.leads_etcd(), "etcd is led from another machine")
            machines.fault(f"kill -9 of everything on host {master.name}, the master's")
            master.node.kill()
            master.etcd.kill()
            machines.wait_for_term_after(term)
            time.sleep(1)
            master.start_etcd()
            master.start_node()
            machines.wait_until_member(master)
        finish(machines, capsys)


def finish(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    machines.wait_until(
        lambda: len(machines.history().bodies("stored")) > 200, "enough has been stored to show anything"
    )
    machines.stop_clients()
    machines.drain()
    with capsys.disabled():
        print("\n" + machines.report())  # noqa: T201 - what was measured is shown
    history = machines.history()
    assert len(history.masters) >= 2
    assert history.violations() == []
