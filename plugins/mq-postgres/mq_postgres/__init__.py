"""A store for mq on PostgreSQL.

In reading order:

* ``store``: the verbs, each with one hop to a thread.
* ``address``: what an address may say.
* ``schema``: the tables, and what is asked of a server before it is believed.
* ``link``: one session; what it sets, what it checks, and how its errors are told apart.
* ``owner``: which broker has the store, and how one loses it.
* ``changes``: one transaction, in one round trip; what becomes of it when its answer is lost.
* ``batches``: operations as statements, and their outcomes; ``statements`` has the SQL.
* ``records``, ``reader``, ``bodies``: records and dropped queues; read, find and scan; large bodies in chunks.
"""
