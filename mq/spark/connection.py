"""Connections to a daemon: requests of the client, sent by the standard library.

A process keeps one connection to each daemon open between its tasks and triggers, so that none of them begins with
handshakes."""

from __future__ import annotations

import base64
import http.client
import logging
import os
import re
import select
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from mq.client import requests
from mq.client.calls import Answer, Call, Source
from mq.client.errors import ClientError, Interrupted, Unreachable, connection_reason
from mq.client.retries import Retry, Tries
from mq.client.values import Queue
from mq.spark import calls
from mq.spark.calls import ColumnsPage
from mq.spark.calls import page as next_page
from mq.spark.errors import InvalidOption, naming_options
from mq.spark.options import Options

T = TypeVar("T")
logger = logging.getLogger("mq.spark")

_HEADERS: Final = {"user-agent": "mq-spark", "accept-encoding": "identity"}


class _IdleConnections:
    """One open connection for each daemon, TLS files and limit of time, while no request uses it. Each request names
    its user, so users share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[Any, ...], http.client.HTTPConnection] = {}

    def take(self, key: tuple[Any, ...]) -> http.client.HTTPConnection | None:
        """Return an idle connection that the daemon has not closed; None without one."""
        with self._lock:
            connection = self._idle.pop((os.getpid(), *key), None)  # a forked process has its parent's in its memory
        if connection is None or (connection.sock is not None and not _is_readable(connection.sock)):
            return connection
        connection.close()  # only an end can be read here: every answer was
        return None

    def put(self, key: tuple[Any, ...], connection: http.client.HTTPConnection) -> None:
        """Keep a connection on which every request was answered; it is closed if another one is idle."""
        with self._lock:
            kept = self._idle.setdefault((os.getpid(), *key), connection)
        if kept is not connection:
            connection.close()


def _is_readable(sock: Any) -> bool:
    poll = select.poll()  # takes descriptors of any number, unlike select()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


_idle_connections: Final = _IdleConnections()


class DaemonConnection:
    """Sends requests to the daemon that the options name. Close it, or use it as a context manager: then its connection
    is kept for the next one of this process.

    Its methods raise :class:`~mq.spark.errors.SparkSourceError`, with the option that the error is about.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._parts = urlsplit(options.url)
        self._http: http.client.HTTPConnection | None = None
        self._asked: Call[Any] | None = None
        self._is_asking = False
        self._key = (options.url, options.ca_file, options.certificate_file, options.timeout_seconds)
        self._headers = dict(_HEADERS)
        if options.token:
            self._headers["authorization"] = f"Bearer {options.token}"
        elif options.user:
            pair = f"{options.user}:{options.password}".encode()
            self._headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is None or self._http.sock is None or self._is_asking:
            self.close()
        else:
            _idle_connections.put(self._key, self._http)
            self._http = None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._asked, self._is_asking = None, False
        if self._http is not None:
            self._http.close()
            self._http = None

    def run(self, call: Call[T]) -> T:
        """The call's result. A request that may be repeated is tried again for as long as ``retrySeconds`` says.

        Raises:
            SparkSourceError: the call failed.
        """
        conflict = "commitMode" if self._options.is_staged else "consumer"
        with naming_options(self._options.url, self._options.asked_for, conflict):
            return self.attempt(call)

    def pages(self, call: Call[ColumnsPage]) -> Iterator[ColumnsPage]:
        """The pages from the first one on; empty ones are left out. Each is asked for before the one before is used.

        Raises:
            SparkSourceError: as :meth:`run`.
        """
        while True:
            page = self.run(call)
            if page.next is not None:
                call = next_page(page.next)
                self._ask_ahead(call)
            if len(page.messages):
                yield page
            if page.next is None:
                return

    def queues(self) -> list[str]:
        """The queues that the options name, or those there are now whose names their pattern fits, by name.

        Raises:
            SparkSourceError: as :meth:`run`.
        """
        return list(self._options.queues) if not self._options.queue_pattern else sorted(self.positions("_"))

    def positions(self, consumer: str, queues: Sequence[str] | None = None) -> dict[str, Mapping[str, Any]]:
        """How far a consumer is in some queues, and what waits there. A queue that does not exist is left out. One
        request, for however many queues; several if their names are too long for one.

        Args:
            queues: the queues; None for those that the options name, or whose name their pattern fits.

        Raises:
            SparkSourceError: as :meth:`run`.
        """
        named = queues or self._options.queues
        found = [each for call in calls.positions(consumer, named or None) for each in self.run(call)]
        fits = named.__contains__ if named else re.compile(self._options.queue_pattern).fullmatch
        return {str(each["queue"]): each for each in found if fits(each["queue"])}

    def queue(self) -> Queue:
        """The queue that the options name: its settings, and what is in it.

        Raises:
            SparkSourceError: as :meth:`run`.
        """
        return self.run(requests.queue(self._options.queue))

    def attempt(self, call: Call[T]) -> T:
        """As :meth:`run`, with the errors of the client.

        Raises:
            ClientError: the call failed.
        """
        tries = Tries(call, Retry(patience=self._options.retry_seconds, longest=2.0))
        is_first = True
        while True:
            try:
                answer = self._send(call)
            except ClientError as error:
                pause, why = tries.after_failure(is_sent=isinstance(error, Interrupted)), str(error)
                if pause is None:
                    raise
            else:
                pause, why = (
                    tries.after_answer(answer),
                    f"the daemon at {self._options.url} returned status {answer.status}",
                )
                if pause is None:
                    return call.result(answer, repeated=tries.perhaps_served, is_unsure=tries.is_unsure)
            if is_first:  # else a query would stand still for minutes without a word why
                logger.warning("%s. Retrying for up to %g s (retrySeconds)", why, self._options.retry_seconds)
            is_first = False
            time.sleep(min(pause, 2.0))

    def _send(self, call: Call[Any]) -> Answer:
        if self._asked is not call and self._asked is not None:
            self.close()  # the answer to what was asked ahead is of no use any more
        connection = self._connected()
        try:
            if self._asked is not call:
                with suppress(BrokenPipeError, ConnectionResetError):  # a refusal may be there before all was sent
                    self._ask(connection, call)
            self._asked = None
            response = connection.getresponse()
            body = response.read()
            self._is_asking = False
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Interrupted(
                f"the connection to {self._options.url} was lost ({error!r}). The request may have been executed"
            ) from error
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body)

    def _ask_ahead(self, call: Call[Any]) -> None:
        """Send the call that is run next. A failure is dealt with when it is run."""
        try:
            self._ask(self._connected(), call)
            self._asked = call
        except (ClientError, OSError, http.client.HTTPException):
            self.close()

    def _ask(self, connection: http.client.HTTPConnection, call: Call[Any]) -> None:
        assert not isinstance(call.body, Source)
        headers = {**self._headers, **dict(call.headers)}
        self._is_asking = True
        connection.request(call.method, self._parts.path + call.target, call.body, headers)

    def _connected(self) -> http.client.HTTPConnection:
        if self._http is None:
            self._http = _idle_connections.take(self._key)
        if self._http is None:
            connection = self._made()
            try:
                connection.connect()
            except OSError as error:
                raise Unreachable(f"cannot connect to {self._options.url}: {connection_reason(error)}") from error
            self._http = connection
        return self._http

    def _made(self) -> http.client.HTTPConnection:
        host, timeout = self._parts.hostname or "", self._options.timeout_seconds
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, self._parts.port or 80, timeout=timeout)
        return http.client.HTTPSConnection(host, self._parts.port or 443, timeout=timeout, context=self._tls())

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._options.ca_file or None)
        except OSError as error:
            raise InvalidOption(f'option "caFile": cannot use {self._options.ca_file}: {error}') from error
        if self._options.certificate_file:
            try:
                context.load_cert_chain(self._options.certificate_file)
            except OSError as error:
                file = self._options.certificate_file
                raise InvalidOption(f'option "certificateFile": cannot use {file}: {error}') from error
        return context
