"""The checks that :mod:`mq.storage.conformance` is made of: one promise of the interface each, one subject a module.

They use the verbs of the interface and nothing else, so they hold for any store. A check takes an open store on a
fresh place; those in ``reopening`` open it themselves, twice.

* ``kit``: what checks have in common.
* ``messages``: what is written is what is read.
* ``staging``: large bodies.
* ``moves``: compare-and-move, and its races.
* ``batches``: each operation of a batch has its own outcome.
* ``groups``: a group is done as a whole or not at all.
* ``reads``: what find and scan tell, what changes() is, what a store says of itself.
* ``records``: records and their values.
* ``queues``: what becomes of messages when the record of their queue changes or goes.
* ``reopening``: what is there after the store was closed and opened again.
* ``whole``: the look over a whole store with which every check ends.
"""
