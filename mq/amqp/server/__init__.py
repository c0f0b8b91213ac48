"""The server: connections on sockets, and a broker behind them. This room runs on Trio.

* ``message_codec``: a message between AMQP and the broker, in both directions.
* ``copies``: a routed message and its queues: one copy for each, stored under one barrier.
* ``dead_letters``: dead letters on their way through an exchange, and the ``x-death`` header they carry.
* ``exchanges``: what is declared, as other protocols show it and publish to it.
* ``declared_memory``: the memory of what is declared, reserved before.
* ``topology_store``: the topology made durable: each planned change is stored, then applied.
* ``backlog``: what connections have published and the store has not taken; the warning that it has no room.
* ``state``: what all connections share; queues that expire while they are not used.
* ``refusals``: AMQP reply codes for errors of mq.
* ``client_connection``: a client's socket, and the base of its served connection, as its channels and consumers see it.
* ``publishes``, ``submitted_batch``: messages of a connection, stored and answered in order, in batches; publishers
  wait if there are too many.
* ``delivery``, ``served_consumer``: a message as it is delivered; one consumer, within its credit.
* ``settling``: deliveries settled; acknowledged messages removed while more is read.
* ``served_channel``: one channel: its consumers, gets, transactions, and its end.
* ``declarations``: each command that declares, changes or inspects an exchange, queue or binding.
* ``served_connection``: one connection: read, carry out, answer, keep time, end; its status for operators.
* ``listener``: the socket: accept, serve, stop.
"""
