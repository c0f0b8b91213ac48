"""mq on etcd: a store for the broker that outlives the loss of a machine, and a client of etcd v3 on Trio.

* The client: :mod:`mq_etcd.client` has its verbs, :mod:`mq_etcd.values` its vocabulary, :mod:`mq_etcd.errors` what a
  caller may conclude. Below it, :mod:`mq_etcd.members` chooses whom to ask, :mod:`mq_etcd.watch` follows what happens,
  :mod:`mq_etcd.connection` is one connection, :mod:`mq_etcd.http` reads replies, :mod:`mq_etcd.refusals` errors.
* The store: :mod:`mq_etcd.store` has its verbs, :mod:`mq_etcd.address` its address, :mod:`mq_etcd.keys` what stands
  under which key. :mod:`mq_etcd.steps` makes an operation a transaction, :mod:`mq_etcd.batches` a batch of them;
  :mod:`mq_etcd.lanes` sees to it that each is done once, :mod:`mq_etcd.owner` that one broker has the store.
"""
