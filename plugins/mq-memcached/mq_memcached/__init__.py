"""SimpleMessageQueue: a small queue on a memcached server, for programs that want no broker.

* :mod:`mq_memcached.simple` is the queue: synchronous, one class, one lock for each queue.
* :mod:`mq_memcached.server` checks that a server throws nothing away, :mod:`mq_memcached.protocol` reads its settings.
"""

from mq_memcached.simple import QueueLocked, SimpleMessageQueue

__all__ = ["QueueLocked", "SimpleMessageQueue"]
