"""The AMQP 0-9-1 server, in four rooms. Each imports only those above it.

* ``wire``: bytes. Frames, tables and properties are read and written here, and refusals have their codes.
* ``model``: what clients declare. Exchanges, queues, bindings, and the route of a message through them.
* ``protocol``: a connection without a socket. Bytes go in, commands and bytes come out.
* ``server``: the sockets and the broker. Trio tasks carry the commands out and answer them.

The first three neither wait nor know of an event loop. mq's AMQP client shares ``wire`` with the server, a cluster
shares ``wire`` and ``model``.
"""
