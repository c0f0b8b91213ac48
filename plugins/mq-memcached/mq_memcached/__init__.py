"""mq on memcached: a store for the broker, and SimpleMessageQueue, the small queue that needs no broker.

* :mod:`mq_memcached.storage` has the verbs of a store; ``memcached://127.0.0.1:11211`` is its address.
* :mod:`mq_memcached.keys` says what stands under which key, :mod:`mq_memcached.chains` how a thing is listed on a
  server that lists nothing, :mod:`mq_memcached.places` what a message is there, :mod:`mq_memcached.batches` how it is
  changed.
* :mod:`mq_memcached.simple` is SimpleMessageQueue: synchronous, one class, one lock for each queue.
"""

from mq_memcached.simple import QueueLocked, SimpleMessageQueue

__all__ = ["QueueLocked", "SimpleMessageQueue"]
