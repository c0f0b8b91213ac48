"""Who may do what: users, their secrets and their rights. Nothing of any door, no event loop.

* :mod:`.rights`: the rights, patterns of queue names, and what a user may do.
* :mod:`.hashes`: how passwords and tokens are kept, so that nobody can read them back.
* :mod:`.users_file`: the file of users, read. :mod:`.editing`: the same file, changed.
* :mod:`.access`: who is it? The one answer that every door asks for.
* :mod:`.certificates`: what a door shows of itself over TLS.
* :mod:`.exposure`: which addresses may be listened on with how much of that.

A door asks :meth:`Access.recall`, then, in a thread, :meth:`Access.verify`; then :meth:`User.may`.
"""

from mq.access.access import Access
from mq.access.rights import Right, User

__all__ = ["Access", "Right", "User"]
