"""The broker: the one API behind every protocol, and the tasks that keep its promises.

Its files, in reading order:

* ``broker``: the API, and the wiring of its parts; ``lifetime``: opens a broker; ``api``: the same as servers see it,
  in a cluster, too; ``verbs``: what holds for each verb.
* ``core``: what each part has; ``config``: how a broker works; ``clock``: steady time, wall time and dates, of which
  no step of the wall clock changes the first; ``kernel_clock``: what the kernel knows of time.
* ``index``: one queue's messages in memory, those of next year, too; ``message_groups``: which of its groups comes
  next; ``catalog``: all queues, the messages that are being moved, and the bodies that came a moment ago.
* ``settings``: a queue's settings; ``bodies``: body stats, where settings need them; ``body_loader``: loads them;
  ``watched_body``: a body whose damage is told.
* ``queues``: queues made, deleted, set, emptied; what servers declare.
* ``publishing``: from a draft to a durable message; ``transient_memory``: room for one that stays in memory; ``jobs``:
  changes of messages; ``commit``: many under one barrier, how many at once, and the requests that are not finished;
  ``fairness``: whose changes come next.
* ``waiters``: requests that wait for messages; ``dispatch``: which request gets which message; ``leases``: names and
  lengths of leases.
* ``consuming``: fetch, take, remove, requeue, extend; ``unacked``: messages held by a connection; ``exclusion``: a
  queue for one consumer alone; ``batch_consumers``: durable batches, as Spark takes them; ``lost_messages``: where
  those are that a batch has lost; ``write_jobs``: rows that come together, as Spark writes them; ``peek``: reading
  only; ``columns``: likewise, very many messages at a time.
* ``upkeep``: work without a request; ``mover``: deliveries, requeues, unlinks; ``calendar``: messages that are far off,
  or due at a given instant; ``dead_letters``: where dead messages go; ``keys``: idempotency keys; ``ledger``: what both
  keep, small; ``shared``: the watcher of a store that others change, too; ``second_names``: what a killed one leaves of
  messages.
* ``damage``: pauses the queues that damaged records concern; ``background_check``: verifies stored messages, slowly.
"""

from mq.broker.batch_consumers import LARGEST_CLAIM, ClaimedBatch, ConsumerPosition
from mq.broker.broker import Broker
from mq.broker.config import BrokerConfig
from mq.broker.consuming import Removal
from mq.broker.exclusion import Exclusion
from mq.broker.lifetime import open_broker
from mq.broker.peek import Browsed, Ranges, Seen
from mq.broker.publishing import Draft, Published, Upload
from mq.broker.queues import QueueStatus, Redriven
from mq.broker.settings import QueueSettings
from mq.broker.unacked import UnackedMessage
from mq.broker.waiters import Precedence
from mq.broker.write_jobs import WriteJobStatus

__all__ = [
    "LARGEST_CLAIM",
    "Broker",
    "BrokerConfig",
    "Browsed",
    "ClaimedBatch",
    "ConsumerPosition",
    "Draft",
    "Exclusion",
    "Precedence",
    "Published",
    "QueueSettings",
    "QueueStatus",
    "Ranges",
    "Redriven",
    "Removal",
    "Seen",
    "UnackedMessage",
    "Upload",
    "WriteJobStatus",
    "open_broker",
]
