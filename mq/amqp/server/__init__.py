"""The server: connections on sockets, and a broker behind them. This room runs on Trio.

* ``message_codec``: a message between AMQP and the broker, in both directions.
* ``copies``: a routed message and its queues: one copy for each, stored under one barrier.
* ``dead_letters``: dead letters on their way through an exchange, and the ``x-death`` header they carry.
* ``exchanges``: what is declared, as other protocols show it and publish to it.
* ``declared_memory``: the memory of what is declared, reserved before.
* ``topology_store``: the topology made durable: each planned change is stored, then applied.
* ``publish_pump``: what a connection publishes, stored in order.
* ``backpressure``: what makes publishers wait: a store without room, and what it has not taken yet.
* ``consumer_pump``: one consumer: messages from its queue to its client.
* ``state``: what all connections share; queues that expire while they are not used.
* ``handlers``: each command carried out and answered.
* ``served_connection``: one connection: read, carry out, answer, keep time, end; what operators see of it.
* ``listener``: the socket: accept, serve, stop.
"""
