"""The headers that a server itself writes have the types of RabbitMQ's, which are written down in header_types.json.

Those of highly available queues, which take a cluster: ``tests/cluster/test_as_quorum_queues.py``.
"""

from __future__ import annotations

import pytest
import trio

from tests.amqp import rabbit
from tests.amqp.clients.header_types import OF_QUORUM, SCENARIOS, recorded, types_of
from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow


async def check(server: Server, queue_type: str, scenario: str, queue: str) -> None:
    async def connect() -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", server.port)

    assert await types_of(connect, queue_type, scenario, queue) == recorded()[queue_type][scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_headers_have_the_types_of_rabbitmq(server: Server, queue: str, scenario: str) -> None:
    await check(server, "classic", scenario, queue)


@pytest.mark.proof
@pytest.mark.parametrize("scenario", OF_QUORUM)
async def test_headers_of_quorum_queues_are_as_recorded(rabbitmq_server: Server, queue: str, scenario: str) -> None:
    await check(rabbitmq_server, "quorum", scenario, queue)


def test_all_scenarios_are_recorded_from_the_rabbitmq_that_judges() -> None:
    found = recorded()
    assert {kind: set(found[kind]) for kind in ("classic", "quorum")} == {
        "classic": set(SCENARIOS),
        "quorum": set(OF_QUORUM),
    }
    if rabbit.is_installed():
        assert found["rabbitmq"] == rabbit.version(), "python -m tests.amqp.clients.header_types"
