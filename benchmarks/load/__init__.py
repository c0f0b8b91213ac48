"""The load generator: one loop for every server, and a small codec for each protocol.

* :mod:`.codec`: what a codec is: bytes in, bytes out, no socket.
* :mod:`.http`, :mod:`.beanstalk`, :mod:`.redis`, :mod:`.nats`, :mod:`.amqp`: the protocols.
* :mod:`.driver`: so many connections that publish, consume or do both, and what the clock says of it.

What a codec sends is made once wherever it can be, and it looks at as little of an answer as tells a good one from a
bad one: what the driver costs is shown beside each figure, and should stay below what the servers cost.
"""
