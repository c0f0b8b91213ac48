"""A connection of AMQP without a socket or an event loop: bytes in, commands and bytes out.

* ``commands``: what a connection asks of the server, and the results.
* ``session``: what the channels of a connection share: the user, the vhost, limits, and the two ways out: bytes, and
  the outbox, which joins commands for one barrier.
* ``declare_methods``: methods of a channel that declare, as commands, with the right that each takes.
* ``publishes``: what a channel publishes: contents put together, routed, confirmed or committed.
* ``deliveries``: what a channel is sent: consumers, their credit, unsettled deliveries.
* ``channel``: one channel, with the tables of methods and answers; all channels of a connection.
* ``connection``: the whole connection: how a client logs in, what both sides agree on, its states, its frames,
  heartbeats, and the way in for the server.
"""
