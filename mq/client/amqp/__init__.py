"""A client of AMQP 0-9-1 on Trio, with the verbs of CHMQ. It works with mq, and with RabbitMQ.

* :mod:`mq.client.amqp.client`: the verbs. :mod:`.connecting`: how to come by them. :mod:`.consumer`: messages to
  iterate over. :mod:`.values`, :mod:`.errors`, :mod:`.address`: what goes in and comes out.
* :mod:`mq.client.amqp.protocol`: a connection without a socket, bytes in and :mod:`.events` out. :mod:`.confirms` and
  :mod:`.tags` count. None of them knows of an event loop.
* :mod:`mq.client.amqp.link`: the tasks around it. :mod:`.channels`, and two kinds of these: :mod:`.publishing`,
  :mod:`.consuming`.

Frames, tables and properties are read by the pure parts of :mod:`mq.amqp`; nothing here loads a broker or a server::

    from mq.client.amqp import connect

    async with connect("amqp://127.0.0.1:5672") as client:
        await client.declare_queue("letters")
        await client.publish("letters", "hello, world")
        async for message in client.consume("letters"):
            print(message.body)
            await client.ack(message.tag)
"""

from mq.client.amqp.client import AmqpClient
from mq.client.amqp.connecting import connect
from mq.client.amqp.consumer import Consumer
from mq.client.amqp.errors import ConsumeEnded, Exclusive, NoChannelLeft, NotConfirmed, UnknownTag, WrongRole
from mq.client.amqp.values import Declared, Delivery, Role

__all__ = [
    "AmqpClient",
    "ConsumeEnded",
    "Consumer",
    "Declared",
    "Delivery",
    "Exclusive",
    "NoChannelLeft",
    "NotConfirmed",
    "Role",
    "UnknownTag",
    "WrongRole",
    "connect",
]
