"""The verb ``receive``: fetches messages, hands each to standard output, a command or a webhook, then removes it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from contextlib import ExitStack
from functools import partial
from typing import IO, Any, Final, Protocol

import click

from mq.cli.commands import EMPTY, REFUSED, Duration, Number
from mq.cli.processes import GLANCE_SECONDS, Command, GroupGuard, OrphanReaper, StillRuns, Stops, is_init, nothing
from mq.cli.remote import Remote, fail, json_option, queue_argument, remote, warn
from mq.cli.streams import CannotWrite
from mq.cli.terminal import BodyWriter, say_json
from mq.client import Client, ClientError, DeadLetterEvent, Head, Lease, LeaseLost, NotFound, Stream
from mq.client.codec import body_members, message_members
from mq.client.leases import MAX_HANDLING_SECONDS
from mq.client.webhook import Webhook
from mq.quantities import show_duration

FOLLOW_WAIT_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 1.0
"""The default pause before a message comes back: one that no consumer can work on must not spin."""
_PART_FOR_GRACE: Final = 6
"""A command whose lease cannot be extended gets at most a sixth of the lease to end. The other five parts are for tries
to extend it."""
_NO_SYNC: Final = frozenset({None, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS})
"""Errors of fsync(2) on what is no plain file: a pipe, a terminal, a device."""


class Receiver(Protocol):
    """Handles a message, then removes it or gives it back."""

    def __call__(self, client: Client, stream: Stream) -> bool:
        """False when the work failed and the message was given back."""


@click.command("receive")
@queue_argument
@click.option(
    "-n",
    "--max",
    "limit",
    metavar="NUMBER",
    type=Number(1),
    default=1,
    show_default=True,
    help="Maximum number of messages to receive.",
)
@click.option("--follow", is_flag=True, help="Keep receiving new messages until the command is interrupted.")
@click.option(
    "--wait",
    type=Duration(0, 3600),
    default="0",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for each message.",
)
@click.option(
    "--visibility",
    type=Duration(0.001, 43_200),
    metavar="DURATION",
    help="Visibility timeout: time for which a message is leased. [default: the queue's setting]",
)
@click.option(
    "--max-handling",
    type=Duration(0.001),
    default=show_duration(MAX_HANDLING_SECONDS),
    show_default=True,
    metavar="DURATION",
    help="Maximum time for handling one message. During this time, its lease is extended automatically.",
)
@click.option(
    "--keep", is_flag=True, help="Do not acknowledge the messages: each one is delivered again when its lease expires."
)
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help=(
        "Run this shell command for each message, with the body on standard input. The message is acknowledged "
        "if the exit status is 0."
    ),
)
@click.option(
    "--to",
    "target",
    metavar="URL",
    help=(
        "Send the body to this webhook in a POST request. The message is acknowledged if the response status is 2xx."
    ),
)
@click.option(
    "--timeout",
    type=Duration(0.001, 43_200),
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the webhook's response.",
)
@click.option(
    "--retry-delay",
    type=Duration(0, 43_200),
    metavar="DURATION",
    help="Delay before a message is delivered again if CMD or the webhook fails. "
    "[default: the queue's retry_delay, or 1s if the queue has none]",
)
@click.option(
    "--grace",
    type=Duration(0, 43_200),
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="Time allowed for CMD and its child processes to exit after SIGTERM before they are killed with SIGKILL.",
)
@json_option
@remote
def receive_command(
    remote: Remote,
    queue: str,
    limit: int,
    follow: bool,
    wait: float,
    visibility: float | None,
    max_handling: float,
    keep: bool,
    command: str | None,
    target: str | None,
    timeout: float,
    retry_delay: float | None,
    grace: float,
    as_json: bool,
) -> None:
    """Fetch messages, print their bodies and acknowledge them.

    A message is acknowledged after its body has been printed, or after CMD (--exec) or the webhook (--to) has
    succeeded. Otherwise the message is delivered again, so consumers must tolerate duplicates. If mq receive is
    stopped or the lease is lost, CMD and all its child processes are terminated before the message is requeued.
    """
    if command is not None and target is not None:
        raise click.UsageError("--exec cannot be combined with --to")
    handler = "--exec" if command is not None else "--to" if target is not None else None
    if handler is not None and (keep or as_json):
        raise click.UsageError(f"{handler} cannot be combined with --keep or --json")
    with ExitStack() as stack:
        client = stack.enter_context(remote.client())
        stops = stack.enter_context(Stops())
        orphans = OrphanReaper()
        if command is not None or is_init():
            stack.enter_context(orphans)
        receiver: Receiver
        if handler is not None and retry_delay is None and not client.queue(queue).settings.get("retry_delay"):
            retry_delay = RETRY_SECONDS
        if command is not None:
            guard = stack.enter_context(GroupGuard(grace, orphans))
            receiver = _Runner(command, max_handling, retry_delay, grace, stops, orphans, guard)
        elif target is not None:
            try:
                webhook = stack.enter_context(Webhook(target, timeout, max_handling, retry_delay))
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            receiver = _Poster(webhook)
        else:
            receiver = _Printer(max_handling, keep=keep, as_json=as_json, ends=follow or limit > 1)
        wait = wait or (FOLLOW_WAIT_SECONDS if follow else 0.0)
        sys.exit(_receive(client, receiver, queue, None if follow else limit, wait, visibility))


def _receive(
    client: Client, receiver: Receiver, queue: str, limit: int | None, wait: float, visibility: float | None
) -> int:
    """Receive until there are `limit`, or nothing is there. The exit status."""
    received, failed = 0, False
    while limit is None or received < limit:
        with client.stream(queue, wait=wait, visibility=visibility) as stream:
            if stream is not None:
                failed = not _is_done(client, receiver, stream) or failed
                received += 1
            elif limit is not None:
                break
    if failed:
        return REFUSED
    return 0 if received else EMPTY


def _is_done(client: Client, receiver: Receiver, stream: Stream) -> bool:
    try:
        return receiver(client, stream)
    except (LeaseLost, NotFound) as error:
        warn(f"message {stream.message.id} was not acknowledged and may be delivered again: {error}")
        return False


class _Printer:
    """Writes bodies to standard output.

    Args:
        max_handling: seconds after which the lease is renewed no more.
        keep: leave the message leased.
        ends: write a newline after a body that does not end with one, for more than one is to come.
    """

    def __init__(self, max_handling: float, *, keep: bool, as_json: bool, ends: bool) -> None:
        self._max_handling = max_handling
        self._keep = keep
        self._as_json = as_json
        self._ends = ends

    def __call__(self, client: Client, stream: Stream) -> bool:
        """Write, make sure that it is written, then remove."""
        message = stream.message
        with contextlib.nullcontext() if self._keep else client.handling(message, max_handling=self._max_handling):
            if self._as_json:
                say_json(described(message, b"".join(stream)))
            else:
                self._write(stream)
            _sync_output(sys.stdout.buffer)
        return True

    def _write(self, stream: Stream) -> None:
        writer = BodyWriter(ends=self._ends)
        for chunk in stream:
            writer.write(chunk)
        writer.end()


class _Runner:
    """Hands bodies to a command. The lease is renewed for as long as it runs.

    Args:
        max_handling: seconds after which that ends, and the command is ended.
        retry_delay: seconds after which a message comes back when its work failed; None for as long as its queue says.
        grace: seconds between SIGTERM and SIGKILL for a command that is ended.
    """

    def __init__(
        self,
        command: str,
        max_handling: float,
        retry_delay: float | None,
        grace: float,
        stops: Stops,
        orphans: OrphanReaper,
        guard: GroupGuard,
    ) -> None:
        self._command = command
        self._max_handling = max_handling
        self._retry_delay = retry_delay
        self._grace = grace
        self._stops = stops
        self._orphans = orphans
        self._guard = guard

    def __call__(self, client: Client, stream: Stream) -> bool:
        """Run it; remove when it says 0, else give back, once all of its processes have ended."""
        message, status = stream.message, REFUSED
        try:
            with client.renewing(message, max_handling=self._max_handling) as lease:
                status = self._run(stream, lease)
        except LeaseLost as error:
            warn(f"message {message.id} may be processed twice: {error}")
        except StillRuns as error:
            fail(
                f"{error}, so message {message.id} was not requeued and will be delivered again when its lease expires"
            )
        except BaseException:
            with contextlib.suppress(ClientError):
                client.requeue(message)
            raise
        if status == 0:
            client.remove(message)
            return True
        try:
            client.requeue(message, self._retry_delay, f"the command exited with {status}")
        except (LeaseLost, NotFound) as error:
            # Its lease ended while this program was stopped, or could not ask.
            warn(f"message {message.id} may be processed twice: {error}")
            return False
        when = "after the queue's retry delay" if self._retry_delay is None else f"in {self._retry_delay:g} seconds"
        warn(f"the command exited with status {status}, so message {message.id} will be delivered again {when}")
        return False

    def _run(self, stream: Stream, lease: Lease) -> int:
        """The command's exit status. Unless that is 0 none of its processes runs any more."""
        status: int | None = None
        goes_on = partial(self._may_go_on, lease)
        with self._stops.held():
            command = Command(
                self._command, os.environ | _variables(stream.message), "MQ_MESSAGE_ID", self._orphans, self._guard
            )
            self._stops.suspend = partial(command.send, signal.SIGSTOP)
            self._stops.resume = lambda: command.send(signal.SIGCONT if goes_on() else signal.SIGKILL)
            try:
                with self._stops.released():
                    if command.feed(stream, goes_on):
                        status = command.wait(goes_on)
            finally:
                if status != 0:
                    left = lease.remaining()
                    grace = min(self._grace, left) if left > 0 else self._grace
                    ended = command.end(grace, lambda: self._stops.hurries)
                    status = ended if status is None else status
                self._stops.suspend = self._stops.resume = nothing
        return -signal.SIGTERM if status is None else status

    def _may_go_on(self, lease: Lease) -> bool:
        """Whether the command may go on. While no extension of the lease succeeds it is ended in time: all of its
        processes are gone when another consumer may begin the same work."""
        if lease.lost.is_set():
            return False
        reserve = GLANCE_SECONDS + min(self._grace, lease.seconds / _PART_FOR_GRACE)  # the next look is that late
        return lease.remaining() > (reserve if lease.is_failing else 0)


class _Poster:
    """Hands bodies to a webhook."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook

    def __call__(self, client: Client, stream: Stream) -> bool:
        """Post; False when it was given back."""
        why = self._webhook.post(client, stream)
        if why:
            warn(f"the webhook failed for message {stream.message.id}, so the message will be delivered again: {why}")
        return not why


def described(message: Head, body: bytes) -> dict[str, Any]:
    """A message as JSON shows it."""
    shown: dict[str, Any] = {"id": message.id}
    if message.receipt:
        shown["receipt"] = message.receipt
    if message.state:
        shown["state"] = message.state
    if message.at is not None:
        shown["at"] = message.at.isoformat()
    shown |= message_members(message)
    if message.dead_letter_history:
        shown["dead_letter_history"] = [_death(death) for death in message.dead_letter_history]
    return {**shown, **body_members(body)}


def _death(death: DeadLetterEvent) -> dict[str, Any]:
    shown: dict[str, Any] = {"queue": death.queue, "reason": death.reason, "receives": death.receives}
    return {**shown, "time": death.time} | ({"error": death.error} if death.error else {})


def _variables(message: Head) -> dict[str, str]:
    """What a command is told of its message."""
    names = {
        f"MQ_ATTRIBUTE_{name.upper().replace('-', '_')}": value.replace("\0", "")
        for name, value in message.attributes.items()
        if "=" not in name
    }
    return names | {
        "MQ_QUEUE": message.queue,
        "MQ_MESSAGE_ID": message.id,
        "MQ_RECEIVES": str(message.receives),
        "MQ_CONTENT_TYPE": message.content_type,
        "MQ_CONTENT_ENCODING": message.content_encoding,
    }


def _sync_output(file: IO[bytes]) -> None:
    """Sync what was written, where that is possible: not on a pipe or a terminal.

    Raises:
        CannotWrite: the disk has not got it.
    """
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise CannotWrite(error) from error
