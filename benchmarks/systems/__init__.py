"""Servers to measure: mq and its peers, each started on a free port of the loopback, with data in a folder.

* :mod:`.system`: what a system is, and how one is started and stopped.
* :mod:`.mq`, :mod:`.small`, :mod:`.rabbitmq`: the systems. :data:`SYSTEMS` has all of them.
"""

from __future__ import annotations

from typing import Final

from benchmarks.systems.mq import Mq, MqAmqp
from benchmarks.systems.rabbitmq import RabbitClassic, RabbitQuorum
from benchmarks.systems.small import Beanstalkd, Nats, Redis
from benchmarks.systems.system import System

SYSTEMS: Final[dict[str, System]] = {
    system.name: system for system in (Mq(), MqAmqp(), Beanstalkd(), Redis(), RabbitClassic(), RabbitQuorum(), Nats())
}
"""By name."""
