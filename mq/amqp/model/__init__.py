"""What clients declare, in memory, and the route of a message through it. Nothing here waits.

* ``names``: names of AMQP as names of mq's queues, and back.
* ``declared``: exchanges, queues and bindings as values, and their durable records.
* ``arguments``: the arguments of queues, and the check of their values.
* ``routing``: how each type of exchange finds the bindings that match a message.
* ``vhost``: one vhost's exchanges, queues and bindings, indexed; a planned change of them.
* ``topology``: all vhosts. Plans each change with the checks of AMQP, applies it, routes messages, counts consumers.
"""
