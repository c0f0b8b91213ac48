"""What stands between a daemon's doors and the network: read from the files that the settings name, and again on
SIGHUP. A file that is wrong then changes nothing."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from mq.access import Access
from mq.access.certificates import Certificates, TLSFiles
from mq.access.exposure import Protection, check_exposure
from mq.errors import InvalidSetting
from mq.settings import Settings
from mq.web.serve import PROTOCOLS

logger = logging.getLogger("mq")


class Guards(NamedTuple):
    """What stands before the doors.

    Attributes:
        access: knows the users; None lets everybody do everything. The same for all doors.
        certificates: for TLS of the HTTP door; None speaks without it.
        amqp_certificates: the same files for AMQP, which has no name that ALPN could offer.
    """

    access: Access | None
    certificates: Certificates | None
    amqp_certificates: Certificates | None


def make_guards(settings: Settings) -> Guards:
    """Those that the settings ask for.

    Raises:
        InvalidSetting: a file is wrong, or the network would find the doors unguarded.
    """
    files = TLSFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    protection = Protection(bool(settings.users), files is not None, bool(settings.tls_client_ca))
    check_exposure(settings.address, protection, insecure=settings.insecure)
    access = Access(settings.users) if settings.users else None
    if files is None:
        return Guards(access, None, None)
    return Guards(access, Certificates(files, PROTOCOLS), Certificates(files, ()))


@asynccontextmanager
async def reloading(guards: Guards) -> AsyncGenerator[None]:
    """In the block SIGHUP reads the files anew. Without any it does what it does to every program."""
    if guards == (None, None, None):
        yield
        return
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def heed() -> None:
                async for _ in signals:
                    _reload(guards)

            nursery.start_soon(heed)
            yield
            nursery.cancel_scope.cancel()


def _reload(guards: Guards) -> None:
    if guards.access is not None:
        try:
            logger.info("users read anew: %d", guards.access.reload())
        except InvalidSetting as error:
            logger.error("the users stay as they were: %s", error)
    if guards.certificates is not None and guards.amqp_certificates is not None:
        try:
            guards.certificates.reload()
            guards.amqp_certificates.reload()
            logger.info("certificates read anew, for new connections")
        except InvalidSetting as error:
            logger.error("the certificates stay as they were: %s", error)
