"""Who was a member when, as etcd tells it: ``python -m tests.cluster.witness PREFIX LOG ENDPOINT...``."""

from __future__ import annotations

import json
import sys

import trio
from mq_etcd.client import open_client
from mq_etcd.values import end_of_prefix


async def witness(prefix: str, path: str, endpoints: list[str]) -> None:
    """Write every change down, from the first one on, for ever."""
    async with (
        await trio.open_file(path, "a") as log,
        open_client(endpoints) as client,
        client.watch(prefix, end_of_prefix(prefix), revision=1) as watch,
    ):
        async for event in watch:
            made = None if event.current is None else event.current.created
            line = {"node": event.key.removeprefix(prefix), "made": made, "revision": event.revision}
            await log.write(json.dumps(line) + "\n")
            await log.flush()


if __name__ == "__main__":
    trio.run(witness, sys.argv[1], sys.argv[2], sys.argv[3:])
