"""Faults at random, for as long as one likes: ``python -m tests.cluster.chaos --minutes 60``, as root.

One host after another is hit, half of the time the master's: killed, paused, cut off from one other, from both or from
all, or their nodes alone, started cold. In the end the history has to be what was promised, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.hosts import AMQP_PORT, NAMES, Machine, Machines, three_machines
from tests.hosts.network import missing

LONGEST_FAULT_SECONDS = 8.0
LONGEST_PAUSE_SECONDS = 5.0
HEARING_SECONDS = 12.0
"""A node that hears of nobody opens its doors after 10 seconds."""
DRAIN_SECONDS = 1200.0

Undo = Callable[[], None]


def kill_node(machines: Machines, machine: Machine) -> Undo:
    machine.node.kill()
    return machine.start_node


def kill_etcd(machines: Machines, machine: Machine) -> Undo:
    machine.etcd.kill()
    return machine.start_etcd


def kill_both(machines: Machines, machine: Machine) -> Undo:
    machine.etcd.kill()
    machine.node.kill()

    def start() -> None:
        machine.start_etcd()
        machine.start_node()

    return start


def pause_node(machines: Machines, machine: Machine) -> Undo:
    machine.node.pause()
    return machine.node.resume


def pause_etcd(machines: Machines, machine: Machine) -> Undo:
    machine.etcd.pause()
    return machine.etcd.resume


def stop_node(machines: Machines, machine: Machine) -> Undo:
    machine.node.stop()
    return machine.start_node


def cut_host(machines: Machines, machine: Machine) -> Undo:
    machine.host.cut()
    return machine.host.mend


def cut_pair(machines: Machines, machine: Machine) -> Undo:
    other = next(each for each in machines.by_name.values() if each is not machine)
    machine.host.cut(other.host)
    return lambda: machine.host.mend(other.host)


def cut_from_nodes(machines: Machines, machine: Machine) -> Undo:
    """Its clients reach it, and it reaches neither of the other hosts."""
    others = [each.host for each in machines.by_name.values() if each is not machine]
    for other in others:
        machine.host.cut(other)

    def mend() -> None:
        for other in others:
            machine.host.mend(other)

    return mend


def cut_links(machines: Machines, machine: Machine) -> Undo:
    """Its node and the others do not reach each other, and all of them reach etcd."""
    machine.host.block(AMQP_PORT)
    return lambda: machine.host.unblock(AMQP_PORT)


def lose_majority(machines: Machines, machine: Machine) -> Undo:
    """Two members of etcd are killed; what starts again starts cold."""
    killed = [each for each in machines.by_name.values() if each is not machine]
    for each in killed:
        each.etcd.kill()

    def start() -> None:
        for each in killed:
            each.start_etcd()

    return start


def start_node_cold(machines: Machines, machine: Machine) -> Undo:
    """It starts while no majority of etcd is there, and serves its clients like that for a while."""
    machine.node.kill()
    undo = lose_majority(machines, machine)
    machine.start_node()
    time.sleep(HEARING_SECONDS)
    return undo


def start_all_cold(machines: Machines, machine: Machine) -> Undo:
    """Everything is killed. The nodes start before etcd does."""
    for each in machines.by_name.values():
        each.node.kill()
        each.etcd.kill()
    for each in machines.by_name.values():
        each.start_node()
    time.sleep(HEARING_SECONDS)

    def start() -> None:
        for each in machines.by_name.values():
            each.start_etcd()

    return start


def start_cut_off(machines: Machines, machine: Machine) -> Undo:
    """It starts, with its member of etcd, and reaches neither of the other hosts."""
    machine.node.kill()
    machine.etcd.kill()
    undo = cut_from_nodes(machines, machine)
    machine.start_etcd()
    machine.start_node()
    time.sleep(HEARING_SECONDS)
    return undo


FAULTS = (
    *(kill_node, kill_etcd, kill_both, pause_node, pause_etcd, stop_node),
    *(cut_host, cut_pair, cut_from_nodes, cut_pair, cut_links),
    *(lose_majority, start_node_cold, start_all_cold, start_cut_off),
)


def hit(machines: Machines, chance: random.Random, fault: Callable[[Machines, Machine], Undo]) -> None:
    """One fault, undone after a while; then all is well again before the next one."""
    name = machines.master().name if chance.random() < 0.5 else chance.choice(NAMES)
    machine = machines.by_name[name]
    role = "master" if machine is machines.master() else "mirror"
    machines.fault(f"{fault.__name__} at {name}, {role}")
    undo = fault(machines, machine)
    time.sleep(chance.uniform(0.2, LONGEST_FAULT_SECONDS))
    undo()
    for each in machines.by_name.values():
        machines.wait_until_member(each)
    time.sleep(chance.uniform(0.0, LONGEST_PAUSE_SECONDS))


def run(folder: Path, minutes: float, rounds: int, confirmed: int, seed: int, *, has_postgres: bool = False) -> int:
    """How many promises were broken."""
    chance = random.Random(seed)
    print(f"seed {seed}; what everybody said is in {folder}")
    with three_machines(folder, wrong_by={"b": 3600.0}, has_postgres=has_postgres) as machines:
        machines.start_newcomers(seed)
        ends = time.monotonic() + minutes * 60
        faults: list[Callable[[Machines, Machine], Undo]] = []
        stored = 0
        while time.monotonic() < ends or len(machines.faults) < rounds or stored < confirmed:
            faults = faults or chance.sample(FAULTS, len(FAULTS))  # each comes in its turn
            hit(machines, chance, faults.pop())
            stored = len(machines.history().bodies("stored"))
            print(f"{len(machines.faults)}, {stored} confirmed. {machines.last_fault()}", flush=True)
        machines.stop_clients()
        machines.drain(seconds=DRAIN_SECONDS)
        print(machines.report())
        violations = machines.history().violations()
    for violation in violations:
        print("BROKEN:", violation)
    print(f"{len(violations)} promises broken")
    return len(violations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="at the least")
    parser.add_argument("--rounds", type=int, default=0, help="faults at the least")
    parser.add_argument("--confirmed", type=int, default=0, help="messages confirmed at the least")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--postgres", action="store_true", help="messages in a PostgreSQL on a host of its own")
    given = parser.parse_args()
    if missing():
        sys.exit(f"no hosts can be made here: {missing()}")
    folder = Path(tempfile.mkdtemp(prefix="mq-chaos-"))
    wanted = (given.minutes, given.rounds, given.confirmed, given.seed)
    sys.exit(1 if run(folder, *wanted, has_postgres=given.postgres) else 0)


if __name__ == "__main__":
    main()
