"""Cluster queues over three nodes (seed CHMQ, part four).

One node is *master*: the oldest one. Over a store that all nodes share (etcd) it runs a second broker, which serves the
cluster queues; the other two are *mirrors* and hand on what their clients ask of these queues. The
files, in reading order:

* ``cluster_broker``: what a node's servers see: one broker, which asks the local one or the leader.
* ``declarations``: what servers declare: queues of this node, or of the cluster.
* ``remote_broker``: a method for each question to the leader; ``directory``: which node leads now.
* ``leadership``: one mastership: the second broker, and what each link holds of it.
* ``grace_storage``: between that broker and the store: keeps removed messages for a while. ``split_storage``: that
  store in two, where the messages are not with the names.
* ``node``: joins, keeps its candidacy, becomes master, and stops being it in time, or once it hears no neighbour.
* ``name_space``: the one name space of the cluster, as this node knows it.
* ``record_keeper``: exchanges and bindings that all nodes share, as the leader keeps them; ``shared_records``: as each
  node knows them, and how far the others are.
* ``peer_link``: a neighbour, over AMQP, and where one is found that was replaced; ``link_sessions``: answers such
  links; ``link_codec``: makes bytes of values.
* ``pieces``: large bodies over a link, piece by piece; ``spool``: those on their way to the leader.
* ``coordinator``: the interface to what keeps members and names, found by entry point; ``config``: the cluster's file.
"""
