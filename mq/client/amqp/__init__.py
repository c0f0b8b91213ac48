"""A client of AMQP 0-9-1 for asyncio and Trio, with the verbs of CHMQ. It works with mq, and with RabbitMQ.

* ``connection``: connecting: an address, TLS, a login, the client for the length of a block.
* ``client``: the verbs, and a consumer to iterate over.
* ``channels``: the channels that publish, get and consume; ``link``: the connection's tasks around them.
* ``protocol``: a connection without a socket: bytes in, events and bytes out.
* ``values``, ``errors``: what goes in and comes out.

The pure parts of :mod:`mq.amqp` read frames, tables and properties; nothing here loads a broker or a server::

    from mq.client.amqp import connect

    async with connect("amqp://127.0.0.1:5672") as client:
        await client.declare_queue("letters")
        await client.publish("letters", "hello, world")
        async for message in client.consume("letters"):
            print(message.body)
            await client.ack(message.tag)
"""

from mq.client.amqp.client import AmqpClient, Consumer
from mq.client.amqp.connection import connect
from mq.client.amqp.errors import (
    ConsumerCancelled,
    Exclusive,
    NoFreeChannel,
    NotConfirmed,
    UnknownDeliveryTag,
    WrongRole,
)
from mq.client.amqp.values import Declared, Delivery, Role

__all__ = [
    "AmqpClient",
    "Consumer",
    "ConsumerCancelled",
    "Declared",
    "Delivery",
    "Exclusive",
    "NoFreeChannel",
    "NotConfirmed",
    "Role",
    "UnknownDeliveryTag",
    "WrongRole",
    "connect",
]
