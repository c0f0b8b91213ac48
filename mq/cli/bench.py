"""The verb ``bench``: a short load on a daemon, and how long its answers take."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import click
import trio

from mq.cli.commands import Duration, Number, Size
from mq.cli.remote import Remote, json_option, remote, told, warn
from mq.cli.terminal import say_json, say_table
from mq.client import AsyncClient, ClientError, Received
from mq.errors import first_of

HEADER: Final = ("", "COUNT", "PER SECOND", "P50 MS", "P90 MS", "P99 MS", "MAX MS")


class Timed(NamedTuple):
    """What one verb did.

    Attributes:
        latencies: seconds for each answer.
    """

    verb: str
    seconds: float
    latencies: Sequence[float]

    def percentile(self, share: float) -> float:
        """The latency in milliseconds that a share of all answers did not exceed; 0 where there is none."""
        if not self.latencies:
            return 0.0
        return sorted(self.latencies)[max(0, math.ceil(share * len(self.latencies)) - 1)] * 1000


@click.command("bench")
@click.option(
    "--duration",
    "seconds",
    type=Duration(0.1),
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="Duration of each phase of the benchmark.",
)
@click.option(
    "--clients",
    metavar="NUMBER",
    type=Number(1, 1000),
    default=16,
    show_default=True,
    help="Number of concurrent clients.",
)
@click.option(
    "--size",
    metavar="SIZE",
    type=Size(),
    default="1000",
    show_default=True,
    help="Size of each message body, in bytes or with a unit, such as 64KiB.",
)
@click.option(
    "--no-keys",
    is_flag=True,
    help="Do not send idempotency keys. Required if the daemon runs with --peers, which does not support them.",
)
@json_option
@remote
def bench_command(remote: Remote, seconds: float, clients: int, size: int, no_keys: bool, as_json: bool) -> None:
    """Measure the throughput and latency of a daemon.

    The command publishes messages to a temporary queue, then fetches and removes them. If an error stops the benchmark,
    the results so far are printed.
    """
    results: list[Timed] = []
    failure: BaseException | None = None
    try:
        trio.run(partial(_bench, results, remote, seconds, clients, size, keys=not no_keys))
    except* KeyboardInterrupt:
        failure = KeyboardInterrupt()
    except* ClientError as group:
        failure = first_of(group)
    if as_json:
        for result in results:
            say_json(_document(result))
    else:
        say_table(HEADER, map(_row, results))
    if failure is not None:
        with told():
            raise failure


async def _bench(results: list[Timed], remote: Remote, seconds: float, clients: int, size: int, *, keys: bool) -> None:
    """Add the figures of each step to `results`, also of one that was cut off."""
    queue = f"bench-{secrets.token_hex(4)}"
    async with AsyncClient(remote.access, retry=remote.retry, keys=keys) as client:
        await client.create_queue(queue)
        load = _Load(client, queue, secrets.token_bytes(size))
        try:
            for work, verbs in ((load.publish, ("publish",)), (load.fetch_and_remove, ("fetch", "remove"))):
                begun, is_whole = trio.current_time(), False
                try:
                    await _work(work, seconds, clients)
                    is_whole = True
                finally:
                    spent = trio.current_time() - begun
                    had = [Timed(verb, spent, load.latencies[verb]) for verb in verbs]
                    results += [timed for timed in had if is_whole or timed.latencies]
        finally:
            await _delete(client, queue, float(remote.access.timeout))


async def _delete(client: AsyncClient, queue: str, seconds: float) -> None:
    """Delete the queue. Where the daemon is slow or gone, say that the queue stays; the figures are printed anyway."""
    with trio.move_on_after(seconds, shield=True):
        try:
            await client.delete_queue(queue)
        except ClientError:
            pass
        else:
            return
    warn(f"queue {queue} was not deleted. To delete it, run mq queue delete {queue} --yes")


class _Load:
    """What each of the clients does, once a call."""

    def __init__(self, client: AsyncClient, queue: str, body: bytes) -> None:
        self.latencies: dict[str, list[float]] = {"publish": [], "fetch": [], "remove": []}
        self._client = client
        self._queue = queue
        self._body = body

    async def publish(self) -> bool:
        """True: there is always more to do."""
        await self._time("publish", lambda: self._client.publish(self._queue, self._body))
        return True

    async def fetch_and_remove(self) -> bool:
        """False when nothing was there."""
        message: Received | None = await self._time("fetch", lambda: self._client.fetch(self._queue))
        if message is None:
            self.latencies["fetch"].pop()
            return False
        await self._time("remove", lambda: self._client.remove(message))
        return True

    async def _time(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        begun = trio.current_time()
        result = await call()
        self.latencies[verb].append(trio.current_time() - begun)
        return result


async def _work(work: Callable[[], Awaitable[bool]], seconds: float, clients: int) -> None:
    """Let so many clients work for that time, or until there is nothing to do."""
    begun = trio.current_time()

    async def one_client() -> None:
        while trio.current_time() - begun < seconds and await work():
            pass

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(one_client)


def _document(result: Timed) -> dict[str, Any]:
    names = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
    latencies = {name: round(result.percentile(share), 3) for name, share in names.items()}
    count = len(result.latencies)
    return {"verb": result.verb, "count": count, "per_second": round(count / result.seconds, 1), **latencies}


def _row(result: Timed) -> list[str]:
    count = len(result.latencies)
    milliseconds = [f"{result.percentile(share):.1f}" for share in (0.5, 0.9, 0.99, 1.0)]
    return [result.verb, str(count), f"{count / result.seconds:.0f}", *milliseconds]
