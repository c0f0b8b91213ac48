"""The engine of the folder stores: four folders on one file system, and what brings their changes to the medium.

In reading order, the verbs first:

* ``posix``: the store on a disk, as async verbs over the synchronous code below.
* ``tmpfs``: the same store on a file system in memory.
* ``fake``: the same store on a file system of this process's, for tests.
* ``layout``: what a store writes besides bytes: folders, names, properties, and where an operation leads; pure.
* ``folders``: what is in the four folders, and how a message is read.
* ``batch``: one commit: writes, moves and unlinks, with mq-native where it is installed.
* ``barrier``: which syncs make a batch durable, and what they cost here.
* ``logged``: one commit by the log: a record, a flush, then the batch without any sync, groups as a whole.
* ``log``: the log of a root: its two segments and its records. ``payload``: what a record says, and the file calls of
  plain operations.
* ``checkpoint``: what a segment says is brought to the medium, before it is used again.
* ``format``: how a root is used, and how its last daemon left it.
* ``inventory``: a list of all records, by which a start finds those that are missing.
* ``redo``: what the log says is done again, after a crash.
* ``staging``: large bodies on their way to the medium, and read from it.
* ``records``: small JSON files with checksums, never half there. ``record_changes``: Puts and Drops of
  queues, with their folders, and of all records without a log.
* ``reserve``: room that is given up for removals when the disk is full.
* ``watch``: what other processes do to the folders, by inotify, or by when each was changed; not what this one does.
* ``opening``: a root is checked, locked, made and repaired before it is served, and by which of several daemons.
* ``ownership``: refuses a root that a stranger could change.
* ``recovery``: brings every state that a crash can leave back to one that mq knows.
* ``peers``: processes that share a root: which of them live, and the alarm when its medium failed.
* ``source``: one folder of a root, for mq-mover and mq-reaper.
* ``doctor``: finds what is wrong in a root, for ``mq doctor``.
* ``backup``: saves a root as it is at one instant. ``live_names``: the names in it, while brokers change them.
* ``backup_folder``: where backups lie. ``restore``: makes a root of one.
* ``mount``: what the file system below keeps over a power cut.
* ``hop``: how a call that may block is made, in a thread or inline, and how it tells of its first results.
* ``calls``: the system calls, replaceable; which of their errors pass, and which calls are repeated.
"""

import sys

if sys.platform != "linux":
    raise ImportError(
        f"file-based stores require Linux (renameat2, syncfs, inotify), but this is {sys.platform}. Run mq on "
        "Linux or in a container. The clients and the commands that connect to a daemon also work on this "
        "system"
    )
