"""mq: a durable message queue, as plain as files.

A map of the package; imports run from the bottom of this list to the top, never back:

* :mod:`mq.message`, :mod:`mq.lifecycle`, :mod:`mq.errors`: values, the table of states, the errors.
* :mod:`mq.storage`: one narrow interface and the stores behind it (posix, tmpfs, fake, memory, plugins).
* :mod:`mq.broker`: one nursery that publishes, fetches, removes and requeues: the API of every door.
* :mod:`mq.vsqs`: a folder as a FIFO queue, for programs that want no daemon. It stands beside the broker.
* :mod:`mq.web`: the HTTP door. :mod:`mq.cli`: the programs ``mq``, ``mq-mover`` and ``mq-reaper``.

Importing ``mq`` loads values and errors only. To embed a broker in a Trio program::

    from mq.broker import open_broker

    async with open_broker("posix:/var/lib/mq") as broker:
        ...
"""

from mq.errors import MQError
from mq.message import Message, MessageId, QueueName

__all__ = ["MQError", "Message", "MessageId", "QueueName", "__version__"]
__version__ = "0.1.0"
