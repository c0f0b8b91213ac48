"""What every door on a socket shares, whatever is spoken behind it.

* :mod:`mq.doors.listening`: which addresses it listens on, and what it says when that cannot be.
* :mod:`mq.doors.handshake`: TLS, before anything else is said.
"""
