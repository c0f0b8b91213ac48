"""The engine *stepwise*: each batch writes its files, names them and syncs them.

For every root that cannot have a log, or must not: btrfs, network file systems, ext4 without a journal, memory,
``--peers``, and a mover or reaper of its own. Its batches make no native calls and tell no early outcomes, and it does
one at a time. In reading order:

* ``batch``: one commit, where renames are atomic, and where they are not; the syncs of a batch are in
  :mod:`mq.storage.files.sync`. ``root``: what it works on.
  ``shared``: the same, where other processes change the root.
* ``queues``: records, and queues with their folders.
* ``peers``: which brokers share the root, and the alarm when the disk failed.
* ``watch``: what other processes do to the folders, by inotify, or by when each was changed; not what this one does.
* ``source``: one folder of a root, for mq-mover and mq-reaper.
* ``engine``: all of it, behind :class:`mq.storage.files.engine.Engine`.
"""
