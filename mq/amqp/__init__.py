"""The AMQP 0-9-1 door.

First the protocol, without a socket: what a connection says, does, and asks of whoever stands behind it.

* :mod:`mq.amqp.connection`: bytes in, commands and bytes out; the state table of a connection. :mod:`.login`,
  :mod:`.tuning` and :mod:`.heartbeats` are parts of it, :mod:`.session` is what its channels share.
* :mod:`mq.amqp.channel`: the same of a channel, by topic: :mod:`.declaring`, :mod:`.publishing` with :mod:`.confirms`,
  :mod:`.consuming`.
* :mod:`mq.amqp.commands`: what is asked for and what is answered. :mod:`.outbox` puts together what can share a
  barrier.
* :mod:`mq.amqp.frames`: from bytes to frames and back; :mod:`.hot` is the same for those that are many.
  :mod:`.properties` and :mod:`.tables` look into what is kept as it came.
* :mod:`mq.amqp.topology`: what is declared; :mod:`.declared` are its values, :mod:`.changes` plans, :mod:`.vhost` and
  :mod:`.consumers` its memory, :mod:`.routing` how each type of exchange chooses, :mod:`.arguments` those of queues.
* :mod:`mq.amqp.carrying`: what the broker keeps of a message. :mod:`.dying`: what a dead letter tells of its way.
* :mod:`mq.amqp.names`: what any name of AMQP is called in mq.
* :mod:`mq.amqp.errors`: what is refused, and what that closes.

Nothing up to here waits, or knows of an event loop. Then the server:

* :mod:`mq.amqp.server`: a socket. :mod:`.serving`: one connection on it. :mod:`.door`: what all of them share.
* :mod:`mq.amqp.answering`: carries out commands, with :mod:`.declarations`, :mod:`.storing`, :mod:`.dispatching` and
  :mod:`.settling`. :mod:`.copies` are messages on their way into queues; :mod:`.finishing` is for what must not be
  cut off.
* :mod:`mq.amqp.dead_letters`, :mod:`.unused` queues and the :mod:`.alarm` of a full store go on without any of them.
"""
