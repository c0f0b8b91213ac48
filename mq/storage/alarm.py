"""How brokers on one root tell each other that the medium has failed.

A sync that fails is told to one process. What others had changed in the same folder is lost as well, and where there
is no journal their own next sync says that all is well. So whoever sees a failure leaves a file, and nobody believes
a sync before having looked for it. The kernel shows it at once, be it durable or not.
"""

from __future__ import annotations

import contextlib
import errno

from mq.storage.calls import OPEN_NEW, Calls


class PeerFailed(OSError):
    """Another process on this root has seen the medium fail."""


class Alarm:
    """The file.

    Args:
        calls: the system.
        path: where it is.
    """

    def __init__(self, calls: Calls, path: str) -> None:
        self._calls = calls
        self._path = path

    def ring(self) -> None:
        """Tell the others, as far as the medium still lets us."""
        with contextlib.suppress(OSError):
            self._calls.close(self._calls.open(self._path, OPEN_NEW))

    def listen(self) -> None:
        """Before a sync is believed.

        Raises:
            PeerFailed: somebody has rung.
        """
        if self.rings():
            raise PeerFailed(errno.EIO, "another mq on this root has seen the medium fail", self._path)

    def rings(self) -> bool:
        """Whether somebody has rung."""
        return self._calls.kind(self._path) is not None

    def stop(self) -> None:
        """Nobody is there any more who has to hear it."""
        if self.rings():
            self._calls.unlink(self._path)
