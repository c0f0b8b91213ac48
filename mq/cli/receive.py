"""The verb ``receive``: fetches messages, hands each to standard output or to a command, and removes it only then."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, NoReturn, Protocol

import click

from mq.cli.remote import EMPTY, REFUSED, Remote, json_option, print_json, queue_argument, remote, warn
from mq.client import Client, ClientError, Head, LeaseLost, NotFound, Stream
from mq.client.codec import body_members

FOLLOW_WAIT_SECONDS: Final = 20.0
LEASE_SECONDS: Final = 30.0
_PARTS_OF_A_LEASE: Final = 3
"""A lease is extended so often that two tries may fail."""


class Receiver(Protocol):
    """Does something with a message, then removes it or gives it back."""

    def __call__(self, client: Client, stream: Stream) -> bool:
        """False when the work failed and the message was given back."""


@click.command("receive")
@queue_argument
@click.option("-n", "--max", "limit", type=click.IntRange(1), default=1, show_default=True, help="How many to receive.")
@click.option("--follow", is_flag=True, help="Go on for ever, and wait for what is to come.")
@click.option(
    "--wait", type=click.FloatRange(0, 3600), default=0.0, show_default=True, metavar="SECONDS", help="Wait for each."
)
@click.option(
    "--visibility",
    type=click.FloatRange(0.001, 43_200),
    metavar="SECONDS",
    help="Length of the lease; else the queue's own.",
)
@click.option("--keep", is_flag=True, help="Do not remove: the message comes back when its lease ends.")
@click.option("--exec", "command", metavar="CMD", help="Give the body to this shell command; exit 0 means done.")
@click.option(
    "--retry-delay",
    type=click.FloatRange(0, 43_200),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="After how long a message comes back when CMD fails.",
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
    keep: bool,
    command: str | None,
    retry_delay: float,
    as_json: bool,
) -> None:
    """Fetch messages, print their bodies, and remove them.

    A message is removed once its body has been written, or when CMD has done its work. Else it comes back: be ready to
    see it twice.
    """
    if command is not None and (keep or as_json):
        raise click.UsageError("--exec does not go with --keep or --json")
    with remote.client() as client, _stopped_by_sigterm():
        receiver: Receiver
        if command is None:
            receiver = _Printer(keep=keep, as_json=as_json, ends=follow or limit > 1)
        else:
            visibility = visibility or _lease_of(client, queue)
            receiver = _Runner(command, visibility, retry_delay)
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
        warn(f"message {stream.message.id} was not removed, and somebody else may have it: {error}")
        return False


class _Printer:
    """Writes bodies to standard output.

    Args:
        keep: leave the message leased.
        as_json: one object a line.
        ends: write a newline after a body that does not end with one, for more than one is to come.
    """

    def __init__(self, *, keep: bool, as_json: bool, ends: bool) -> None:
        self._keep = keep
        self._as_json = as_json
        self._ends = ends

    def __call__(self, client: Client, stream: Stream) -> bool:
        """Write, make sure that it is written, then remove."""
        with contextlib.nullcontext() if self._keep else client.handling(stream.message):
            if self._as_json:
                print_json(described(stream.message, b"".join(stream)))
            else:
                self._write(stream)
            _settle(sys.stdout.buffer)
        return True

    def _write(self, stream: Stream) -> None:
        last = b""
        for chunk in stream:
            sys.stdout.buffer.write(chunk)
            last = chunk or last
        if self._ends and not last.endswith(b"\n"):
            sys.stdout.buffer.write(b"\n")


class _Runner:
    """Hands bodies to a command.

    Args:
        command: for the shell.
        visibility: length of the lease in seconds; extended for as long as the command runs.
        retry_delay: seconds after which a message comes back whose work failed.
    """

    def __init__(self, command: str, visibility: float, retry_delay: float) -> None:
        self._command = command
        self._visibility = visibility
        self._retry_delay = retry_delay

    def __call__(self, client: Client, stream: Stream) -> bool:
        """Run it; remove when it says 0, else give back."""
        message = stream.message
        try:
            status = self._run(client, stream)
        except BaseException:
            with contextlib.suppress(ClientError):
                client.requeue(message)
            raise
        if status == 0:
            client.remove(message)
            return True
        warn(f"the command ended with {status}: message {message.id} comes back in {self._retry_delay:g} seconds")
        client.extend(message, self._retry_delay)
        return False

    def _run(self, client: Client, stream: Stream) -> int:
        environment = os.environ | _variables(stream.message)
        with subprocess.Popen(self._command, shell=True, stdin=subprocess.PIPE, env=environment) as process:
            try:
                with contextlib.suppress(BrokenPipeError):  # it need not read all, or anything
                    assert process.stdin is not None
                    with process.stdin as pipe:
                        for chunk in stream:
                            pipe.write(chunk)
                return self._await(client, stream.message, process)
            except BaseException:
                process.terminate()
                raise

    def _await(self, client: Client, message: Head, process: subprocess.Popen[bytes]) -> int:
        """The command's exit status. The lease is extended until it is there."""
        while True:
            try:
                return process.wait(self._visibility / _PARTS_OF_A_LEASE)
            except subprocess.TimeoutExpired:
                self._extend(client, message)

    def _extend(self, client: Client, message: Head) -> None:
        try:
            client.extend(message, self._visibility)
        except LeaseLost as error:
            warn(f"message {message.id} may be worked on twice: {error}")


def described(message: Head, body: bytes) -> dict[str, Any]:
    """A message as JSON shows it."""
    shown: dict[str, Any] = {"id": message.id}
    if message.receipt:
        shown["receipt"] = message.receipt
    if message.state:
        shown["state"] = message.state
    shown |= {"receives": message.receives, "content_type": message.content_type}
    if message.attributes:
        shown["attributes"] = dict(message.attributes)
    if message.deaths:
        shown["deaths"] = [
            {"queue": death.queue, "reason": death.reason, "receives": death.receives, "time": death.time}
            for death in message.deaths
        ]
    return {**shown, **body_members(body)}


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
    }


def _lease_of(client: Client, queue: str) -> float:
    """The length of lease to ask for: the queue's own, or one of ours where it has none."""
    found = client.queue(queue).settings.get("visibility")
    return float(found) if isinstance(found, int | float) else LEASE_SECONDS


def _settle(file: IO[bytes]) -> None:
    """Make sure of what was written, as far as that can be: a pipe or a terminal has nothing to sync."""
    file.flush()
    with contextlib.suppress(OSError):
        os.fsync(file.fileno())


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Control-C does, so that a message at hand is given back."""

    def stop(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
