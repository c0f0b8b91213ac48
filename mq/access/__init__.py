"""Users, their secrets and their rights. Nothing of any server, no event loop.

* ``user_limits``: what a user may have at most.
* ``rights``: the rights, patterns of queue names, and what a user may do.
* ``hashes``: how passwords and tokens are kept, so that they cannot be read back.
* ``users_file``: the file of users, read; ``users_editor``: changes it.
* ``aws_keys``: the file of AWS keys beside it.
* ``user_directory``: finds the user by a token, a password, a certificate or a login on this machine.
* ``guesses``: wrong secrets of late; they decide whose password :mod:`mq.doors.logins` checks next.
* ``certificates``: a server's own certificate, and the authorities of its clients.

A server finds the user by :class:`mq.doors.logins.Logins`, then asks :meth:`User.may`.
"""

from mq.access.rights import Right, User, owner_of
from mq.access.user_directory import SecretRefused, TokenExpired, UserDirectory

__all__ = ["Right", "SecretRefused", "TokenExpired", "User", "UserDirectory", "owner_of"]
