"""A connection of AMQP without a socket or an event loop: bytes in, commands and bytes out.

* ``commands``: what a connection asks of the server, and the results.
* ``session``: what the channels of a connection share: the user, the vhost, limits, and the two ways out: bytes, and
  the outbox, which joins commands for one commit.
* ``declare_methods``: methods of a channel that declare, as commands, with the right that each takes.
* ``publishes``: the publishes of a channel: contents put together, routed, confirmed or committed.
* ``deliveries``: what a channel is sent: consumers, their credit, unsettled deliveries.
* ``channel``: one channel, with the tables of methods and answers.
* ``login``: how a client logs in, and what both sides agree on.
* ``connection``: the whole connection: its states, channels and frames, heartbeats, and the way in for the server.
"""
