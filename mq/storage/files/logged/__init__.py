"""The engine *logged*: one flush of a write-ahead log makes a batch durable, before its file calls are made.

For one process with a root to itself, on ext4 with a journal and on xfs. The files stay the source of truth while the
machine is up; the log is for power cuts. In reading order:

* ``record``: a record's payload: its lines, encoded and decoded.
* ``log``: the log and its format on disk. ``segments``: its two files, read and made. ``boots``: whether the kernel
  still has what was written.
* ``commit``: one commit: the part of a batch that a record holds, a flush, then the file calls without any sync.
  ``root``: what a commit works on. ``bodies``: bodies that are too large for the log.
* ``steps``: the file calls, by mq-native where it is installed. ``groups``: those of groups, as a whole.
* ``queues``: queues that come and go.
* ``fates``: where the log leaves each message. ``redo``: what the log says is done again, after a crash.
* ``checkpoint``: what a segment says is brought to disk, before it is used again.
* ``read_ahead``: messages that are read together with their move.
* ``engine``: all of it, behind :class:`mq.storage.files.engine.Engine`.
"""
