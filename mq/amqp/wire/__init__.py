"""Bytes of AMQP 0-9-1: cut into frames, decoded, encoded. Server and client share this room.

* ``errors``: :class:`~.errors.Refusal`, a reply code and a text, from which follows what is closed.
* ``tables``: field tables, decoded, changed without touching the other entries, and as JSON.
* ``properties``: the properties of a message, kept as the bytes that came.
* ``frames``: the reader of a stream of frames; frames over pamqp's codec, and by hand those of which every message
  needs one; when heartbeats are due.
"""
