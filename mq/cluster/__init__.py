"""Highly available queues over three nodes (seed CHMQ, part four).

One node is *master*: the oldest one. Over a store that all nodes share (etcd) it runs a second broker, which serves the
highly available queues; the other two are *mirrors* and hand on what their clients ask of these queues.

* :mod:`.joint` is what a node's doors see: one broker, which asks the local one or the cluster.
* :mod:`.remote` has a method for each question; :mod:`.directory` knows whom to ask just now.
* :mod:`.term` is one mastership: the second broker, and who holds what of it. :mod:`.kept` is between it and the store.
* :mod:`.node` joins, keeps its candidacy, becomes master, and stops being it in time.
* :mod:`.link` connects to a neighbour over AMQP; :mod:`.sessions` answers such links; :mod:`.wire` makes bytes of
  values.
* :mod:`.coordinator` is what a cluster has to know of its members; who keeps that is found by entry point.
* :mod:`.config` reads the cluster's file.
"""
