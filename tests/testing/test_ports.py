"""A port that is held is nobody else's."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys

import pytest

from mq.testing.ports import HeldPort


def test_a_server_listens_on_a_held_port_again_and_again() -> None:
    held = HeldPort()
    for _ in range(3):
        with socket.create_server(("127.0.0.1", held.number)), socket.create_connection(("127.0.0.1", held.number)):
            pass


@pytest.mark.slow
def test_it_is_let_go_with_its_object() -> None:
    held = HeldPort()
    number = held.number
    del held
    gc.collect()
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", number))


def test_whoever_does_not_share_is_refused() -> None:
    held = HeldPort()
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", held.number))


ALONE = """
import socket
import subprocess
import sys
from pathlib import Path
from mq.testing.ports import HeldPort

Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40007")
held = [HeldPort() for _ in range(4)]
numbers = {port.number for port in held}
for _ in range(200):
    for given in (socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0), reuse_port=True)):
        with given:
            assert given.getsockname()[1] not in numbers
    for number in numbers:
        with socket.socket() as client:  # the kernel gives a client a port, too: of a port's own it would reach itself
            assert client.connect_ex(("127.0.0.1", number)), "it reached itself"
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have eight ports in all")
def test_nobody_else_is_given_it() -> None:
    command = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$0" -c "$1"', sys.executable, ALONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
