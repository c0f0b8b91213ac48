"""mq on etcd: a client of etcd v3 on Trio.

* The client: :mod:`mq_etcd.client` has its verbs, :mod:`mq_etcd.values` its vocabulary, :mod:`mq_etcd.errors` what a
  caller may conclude. Below it, :mod:`mq_etcd.members` chooses whom to ask, :mod:`mq_etcd.watch` follows what happens,
  :mod:`mq_etcd.connection` is one connection, :mod:`mq_etcd.http` reads replies, :mod:`mq_etcd.refusals` errors.
"""
