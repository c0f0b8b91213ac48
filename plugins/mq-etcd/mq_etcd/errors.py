"""What can go wrong between a client and etcd, by what the caller may conclude from it.

* :class:`Unavailable`: nothing was changed. No member was reached, or the one asked could not do it now. It may pass.
* :class:`Uncertain`: a write that may have landed, or may land yet. Look, or repeat it if repeating is harmless.
* :class:`NoSpace`: nothing was changed; etcd has reached its quota. It passes when there is room again.
* :class:`Rejected`: nothing was changed, and asking again in the same way changes nothing.
"""

from __future__ import annotations

from mq.errors import MQError


class EtcdError(MQError):
    """The root of what this client raises. The text says, in one line, what is wrong and what to do."""


class Unavailable(EtcdError):
    """No member could answer in time. Nothing was changed."""


class Uncertain(EtcdError):
    """A write was sent and not answered: it may have landed, or may land yet."""


class NoSpace(EtcdError):
    """etcd has reached its quota and takes no more. Nothing was changed."""


class Rejected(EtcdError):
    """The request was wrong, or is not allowed. Nothing was changed."""


class TooLarge(Rejected):
    """The request is longer, or has more operations, than etcd takes."""


class Denied(Rejected):
    """The user is not known, or may not do this."""


class Absent(Rejected):
    """The lease does not exist any more: it has expired, or was revoked."""


class Compacted(Rejected):
    """That revision has been thrown away: read everything anew and go on from there.

    Attributes:
        revision: the oldest one that is still there; 0 where etcd did not say.
    """

    def __init__(self, text: str, revision: int = 0) -> None:
        super().__init__(text)
        self.revision = revision
