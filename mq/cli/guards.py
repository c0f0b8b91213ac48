"""The guards between a daemon's servers and the network: which addresses need them, and how they are made from the
files in the settings, and again on SIGHUP. A file that is wrong then changes nothing."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from mq.access import UserDirectory
from mq.access.certificates import Certificates, TLSFiles
from mq.broker.kernel_clock import boot_seconds
from mq.doors.audit import AuditFile, note
from mq.doors.connections import is_loopback
from mq.doors.logins import Logins
from mq.errors import InvalidSetting
from mq.message import shorten
from mq.quantities import show_count
from mq.settings import Settings
from mq.web.serve import PROTOCOLS

logger = logging.getLogger("mq")


class Protection(NamedTuple):
    """What stands between a server and its clients.

    Attributes:
        has_client_ca: over TLS, it lets in only clients with a certificate.
    """

    has_users: bool
    has_tls: bool
    has_client_ca: bool


def check_exposure(address: str, protection: Protection, *, insecure: bool) -> None:
    """Refuse to listen where strangers could read along or log in.

    Raises:
        InvalidSetting: the network could reach it, and it lacks TLS, or users.
    """
    if insecure or is_loopback(address):
        return
    lacking = []
    if not protection.has_tls:
        lacking.append("TLS (--tls-cert, --tls-key)")
    if not protection.has_users and not protection.has_client_ca:
        lacking.append("users (--users)")
    if lacking:
        what = " and ".join(lacking)
        raise InvalidSetting(
            f"{shorten(address)} is reachable from the network, so mq requires {what}. To run without this protection, "
            "use --insecure"
        )


class Guards(NamedTuple):
    """The guards before the servers.

    Attributes:
        logins: finds users; None allows everything to all. The same for all protocols.
        certificates: for TLS of the HTTP server; None speaks without it.
        amqp_certificates: the same files for AMQP, for which ALPN has no name.
        audit: takes the audit log; None leaves it in the program's.
    """

    logins: Logins | None
    certificates: Certificates | None
    amqp_certificates: Certificates | None
    audit: AuditFile | None


def make_guards(settings: Settings, date_seconds: Callable[[], float] = time.time) -> Guards:
    """The guards that the settings ask for. Access tokens end by `date_seconds`, in seconds since 1970.

    Raises:
        InvalidSetting: a file is wrong, or the network would find the servers unguarded.
    """
    files = TLSFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.tls_crl)
    protection = Protection(bool(settings.users), files is not None, bool(settings.tls_client_ca))
    check_exposure(settings.address, protection, insecure=settings.insecure)
    logins = Logins(UserDirectory(settings.users, boot_seconds, date_seconds)) if settings.users else None
    certificates = None if files is None else Certificates(files, PROTOCOLS)
    amqp_certificates = None if files is None else Certificates(files, ())
    audit = AuditFile(settings.audit, settings.log_format) if settings.audit else None
    return Guards(logins, certificates, amqp_certificates, audit)


@asynccontextmanager
async def reloading(guards: Guards) -> AsyncGenerator[None]:
    """A block in which SIGHUP reads the files anew, as far as there are any, and never ends the program."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def heed() -> None:
                async for _ in signals:
                    _reload(guards)

            nursery.start_soon(heed)
            yield
            nursery.cancel_scope.cancel()


def _reload(guards: Guards) -> None:
    if not any(guards):
        logger.info("SIGHUP ignored: no users file, TLS certificate or audit log is configured")
    if guards.logins is not None:
        try:
            count = guards.logins.access.reload()
            logger.info("reloaded the users file: %s", show_count(count, "user"))
            note("reloaded", what="users", users=count)
        except InvalidSetting as error:
            logger.error("cannot reload the users file: %s. The previous list of users remains in effect", error)
            note("reload-failed", what="users", why=str(error))
    if guards.certificates is not None and guards.amqp_certificates is not None:
        try:
            guards.certificates.reload()
            guards.amqp_certificates.reload()
            logger.info("reloaded the TLS certificates for new connections")
            note("reloaded", what="certificates")
        except InvalidSetting as error:
            logger.error("cannot reload the TLS certificates: %s. The previous certificates remain in use", error)
            note("reload-failed", what="certificates", why=str(error))
    if guards.audit is not None:
        try:
            guards.audit.reopen()
            logger.info("reopened the audit log")
            note("reloaded", what="audit")
        except InvalidSetting as error:
            logger.error("cannot reopen the audit log: %s. The old file remains in use", error)
            note("reload-failed", what="audit", why=str(error))
