"""Faults at random, for as long as one likes: ``python -m tests.cluster.chaos --minutes 60``, as root.

One host after another is hit, mostly the master's; a majority of etcd's members is always there. In the end the history
has to be what was promised, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.hosts import NAMES, Machine, Machines, three_machines
from tests.hosts.network import missing

LONGEST_FAULT_SECONDS = 8.0
LONGEST_PAUSE_SECONDS = 5.0

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


FAULTS = (kill_node, kill_etcd, kill_both, pause_node, pause_etcd, stop_node, cut_host, cut_pair)


def hit(machines: Machines, chance: random.Random) -> None:
    """One fault, undone after a while; then all is well again before the next one."""
    fault = chance.choice(FAULTS)
    name = machines.master().name if chance.random() < 0.6 else chance.choice(NAMES)
    machine = machines.by_name[name]
    role = "master" if machine is machines.master() else "mirror"
    machines.fault(f"{fault.__name__} at {name}, {role}")
    undo = fault(machines, machine)
    time.sleep(chance.uniform(0.2, LONGEST_FAULT_SECONDS))
    undo()
    for each in machines.by_name.values():
        machines.wait_until_member(each)
    time.sleep(chance.uniform(0.0, LONGEST_PAUSE_SECONDS))


def run(folder: Path, minutes: float, seed: int) -> int:
    """How many promises were broken."""
    chance = random.Random(seed)
    print(f"seed {seed}; what everybody said is in {folder}")
    with three_machines(folder, wrong_by={"b": 3600.0}) as machines:
        ends = time.monotonic() + minutes * 60
        while time.monotonic() < ends:
            hit(machines, chance)
            print(machines.last_fault(), flush=True)
        machines.stop_clients()
        machines.drain(machines.by_name["c"], seconds=600)
        print(machines.report())
        violations = machines.history().violations()
    for violation in violations:
        print("BROKEN:", violation)
    print(f"{len(violations)} promises broken")
    return len(violations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    if missing():
        sys.exit(f"no hosts can be made here: {missing()}")
    sys.exit(1 if run(Path(tempfile.mkdtemp(prefix="mq-chaos-")), given.minutes, given.seed) else 0)


if __name__ == "__main__":
    main()
