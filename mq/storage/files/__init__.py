"""The folder stores: four folders on one file system, and the two engines that change them.

In reading order:

* ``posix``: the store on a disk, as async methods over the synchronous code below. That raises :class:`OSError`
  as the system gives it, and says so only if the error means more than a failed disk; ``posix`` translates it.
* ``tmpfs``: the same store on a file system in memory.
* ``fake``: the same store on a file system of this process's, for tests.
* ``engine``: what an engine does, and which one serves a root, and why.
* ``logged``: the engine with a write-ahead log. ``stepwise``: the engine that syncs each batch. Neither knows the
  other.

What opens a root, or looks at it from outside, knows both:

* ``opening``: a root is checked, locked, made and repaired before it is served. ``start``: the repair, and a new log.
  ``lost``: folders that a root in use has lost. ``turn``: by which of several daemons it is served.
* ``doctor``: finds what is wrong in a root, for ``mq doctor``.
* ``backup``: saves a root as it is at one instant. ``live_names``: the names in it, while brokers change them.
* ``backup_folder``: where backups lie. ``restore``: makes a root of one.

What both engines use knows neither:

* ``layout``: what a store writes besides bytes: folders, names, properties; pure.
* ``folders``: what is in the four folders, and how a message is read.
* ``volume``: the file system below a root: its traits, its syncs, and whether it has failed.
* ``sync``: what makes a file, a folder, everything, or a batch of changes durable. ``spare``: a file handle for it when
  no other is free.
* ``writes``: where an operation leads; a message's file is written and named, with its properties. ``unlinks``:
  messages and deleted queues are unlinked. ``outcomes``: what both report.
* ``records``: small JSON files with checksums, never half there. ``record_changes``: Puts and Drops of queues, with
  their folders, and of all records without a log.
* ``staging``: large bodies on their way to the disk, and read from it.
* ``format``: how a root is used, and how its last daemon left it.
* ``inventory``: a list of all records, by which a start finds those that are missing.
* ``recovery``: brings every state that a crash can leave back to one that mq knows.
* ``reserve``: room that is given up for removals when the disk is full.
* ``movers``: the lock between a broker and mq-mover and mq-reaper, and how a lock is tried.
* ``ownership``: refuses a root that a stranger could change, or that another process has to itself.
* ``probes``: tries whether a file system has the calls that mq needs.
* ``mount``: what the file system below keeps over a power cut.
* ``hop``: how a call that may block is made, in a thread or inline, and how it tells of its first results.
* ``calls``: the system calls, replaceable; which of their errors pass, and which calls are repeated.
* ``explain``: the text of an error for an operator.
"""

import sys

if sys.platform != "linux":
    raise ImportError(
        f"file-based stores require Linux (renameat2, syncfs, inotify), but this system is {sys.platform}. Run mq on "
        "Linux or in a container. The client libraries and the commands that connect to a daemon also work on this "
        "system"
    )
