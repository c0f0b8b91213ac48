"""mq: a durable message queue, as plain as files.

Its files and rooms; imports run from the bottom of this list to the top, never back:

* ``errors``, ``message``, ``lifecycle``: values, the table of states, the errors by whose fault.
* ``quantities``: durations and sizes as people write them.
* ``threads``: threads that must not end unnoticed.
* ``turns``: how much work a task does before other tasks run; measures the steps of the event loop.
* ``storage``: one narrow interface and the stores behind it (posix, tmpfs, fake, memory, plugins).
* ``broker``: one nursery that publishes, fetches, removes and requeues: the API of every protocol.
* ``vsqs``: a folder as a FIFO queue, for programs that want no daemon. It stands beside the broker.
* ``observers``: counts and the journal. ``access``: users and their rights.
* ``doors``: what every protocol on a socket shares. ``web``: the HTTP server. ``amqp``: the AMQP server.
* ``sqs``: the SQS API, on the port of HTTP. ``schedules``: messages that are published regularly.
* ``client``: clients of HTTP and AMQP. ``spark``: the data source of PySpark. ``cluster``: queues over three nodes.
* ``testing``: faults, checkers, the simulation, for authors of plugins, too.
* ``settings``, ``log_lines``: how programs are set, and what they log.
  ``cli``, ``__main__``: ``mq``, ``mq-mover``, ``mq-reaper``, ``mq-pipeline``.

Importing ``mq`` loads values and errors only. To embed a broker in a Trio program::

    from mq.broker import open_broker

    async with open_broker("posix:/var/lib/mq") as broker:
        ...
"""

from mq.errors import MQError
from mq.message import Message, MessageId, QueueName

__all__ = ["MQError", "Message", "MessageId", "QueueName", "__version__"]
__version__ = "0.1.0"
