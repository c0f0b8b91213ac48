"""A house for each test: a broker in memory, with AMQP's door, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio.testing

from tests.amqp.dialling import Client, House, open_house


@pytest.fixture
async def house(autojump_clock: trio.testing.MockClock) -> AsyncIterator[House]:
    async with open_house() as house:
        yield house


@pytest.fixture
async def client(house: House) -> Client:
    return await house.connect()
