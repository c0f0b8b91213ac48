"""Bytes of AMQP 0-9-1: cut into frames, decoded, encoded. Server and client share this room.

* ``errors``: :class:`~.errors.Refusal`, a reply code and a text, from which follows what is closed.
* ``tables``: field tables, decoded, changed without touching the other entries, and as JSON.
* ``properties``: the properties of a message, kept as the bytes that came.
* ``hot``: the frames of which every message needs one, read and written by hand.
* ``frames``: all other frames, over pamqp's codec; the reader of a stream of frames; when heartbeats are due.
"""
