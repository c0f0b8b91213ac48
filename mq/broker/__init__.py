"""The broker: the one API behind every door, and the tasks that keep its promises.

:mod:`.broker` has it on one screen. :mod:`.index` is what it knows of each queue, :mod:`.workers` fetch and save,
:mod:`.commit` brings many operations under one barrier, :mod:`.mover` and :mod:`.reaper` move what is due and unlink
what is removed, :mod:`.follow` keeps up with others on a shared root.
"""

from mq.broker.broker import Broker, open_broker
from mq.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig", "open_broker"]
