"""The broker: the one API behind every door, and the tasks that keep its promises.

:mod:`.broker` is that API, :mod:`.opened` opens it, :mod:`.rooms` makes its parts. :mod:`.index` is what it knows of
each queue and :mod:`.catalog` of all of them; :mod:`.publishing` and :mod:`.uploads`, :mod:`.consuming`, :mod:`.queues`
and :mod:`.looking` are its API by topic. Fetches stand in line in :mod:`.fetches` and are served by :mod:`.fetching`;
:mod:`.jobs` are changes of messages, :mod:`.commit` brings many of them under one barrier. :mod:`.upkeep` keeps
messages moving: :mod:`.mover` and :mod:`.reaper` move what is due and unlink what is removed, :mod:`.expiry` and
:mod:`.deaths` take care of what dies, :mod:`.follow` keeps up with others on a shared root. Consumers that take batches
are in :mod:`.claims`, what is durable of them in :mod:`.consumers`, their messages in :mod:`.claimed`; :mod:`.browsing`
shows messages by sequence.
"""

from mq.broker.broker import Broker
from mq.broker.browsing import Browsed, Ranges
from mq.broker.claims import LARGEST_CLAIM, Batch, Standing
from mq.broker.config import BrokerConfig
from mq.broker.consuming import Removal
from mq.broker.exclusion import Exclusion
from mq.broker.holding import Held
from mq.broker.looking import Seen
from mq.broker.opened import open_broker
from mq.broker.publishing import Draft, Published
from mq.broker.queue_settings import QueueSettings
from mq.broker.queues import QueueStatus, Redriven
from mq.broker.uploads import Upload

__all__ = [
    "LARGEST_CLAIM",
    "Batch",
    "Broker",
    "BrokerConfig",
    "Browsed",
    "Draft",
    "Exclusion",
    "Held",
    "Published",
    "QueueSettings",
    "QueueStatus",
    "Ranges",
    "Redriven",
    "Removal",
    "Seen",
    "Standing",
    "Upload",
    "open_broker",
]
