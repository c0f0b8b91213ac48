"""Stores: the waist that every store passes through, and those that ship with mq.

In reading order:

* ``interface``: the verbs of a store, and what each promises.
* ``outcomes``: what became of a batch, with how late the event loop heard of it.
* ``groups``: all of some operations or nothing, in every store.
* ``records``: put or drop one record, with errors in place of outcomes.
* ``confirmed``: how far a store has come that others keep alive, noted apart from it.
* ``options``: how a store will be used, said when it is opened.
* ``registry``: from an address, such as ``posix:/var/lib/mq``, to an open store.
* ``memory``: the store of this process's memory.
* ``layered``: memory above another store, for what need not last.
* ``conformance``: whether a store keeps the promises; ``checks`` holds them, one subject a module.
* ``files``: the engine of the stores that keep each message as a file: ``posix:``, ``tmpfs:`` and ``fake:``.
"""
