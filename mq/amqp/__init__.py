"""AMQP 0-9-1, without a socket so far: what a connection says, does, and asks of whoever stands behind it.

* :mod:`mq.amqp.connection`: bytes in, commands and bytes out; the state table of a connection. :mod:`.login`,
  :mod:`.tuning` and :mod:`.heartbeats` are parts of it, :mod:`.session` is what its channels share.
* :mod:`mq.amqp.channel`: the same of a channel, by topic: :mod:`.declaring`, :mod:`.publishing` with :mod:`.confirms`,
  :mod:`.consuming`.
* :mod:`mq.amqp.commands`: what is asked for and what is answered. :mod:`.outbox` puts together what can share a
  barrier.
* :mod:`mq.amqp.frames`: from bytes to frames and back. :mod:`.properties` and :mod:`.tables` look into what is
  kept as it came.
* :mod:`mq.amqp.topology`: what is declared; :mod:`.declared` are its values, :mod:`.changes` plans, :mod:`.vhost` and
  :mod:`.consumers` its memory, :mod:`.routing` how each type of exchange chooses, :mod:`.arguments` those of queues.
* :mod:`mq.amqp.carrying`: what the broker keeps of a message. :mod:`.dying`: what a dead letter tells of its way.
* :mod:`mq.amqp.names`: what any name of AMQP is called in mq.
* :mod:`mq.amqp.errors`: what is refused, and what that closes.

Nothing here waits, and nothing knows of an event loop.
"""
