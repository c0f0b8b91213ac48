"""The connections to the members of a cluster."""

from __future__ import annotations

from typing import Any, cast

from mq_etcd.connection import Endpoint
from mq_etcd.members import Members


async def test_requests_that_fail_while_it_is_closed_are_no_trouble() -> None:
    places = [Endpoint("127.0.0.1", port) for port in (1, 2, 3)]
    members = Members(places, None, None, patience=1, deadline=1, connections=1)
    closed: list[Endpoint] = []

    class Connection:
        def __init__(self, to: Endpoint) -> None:
            self._to = to

        async def aclose(self) -> None:
            closed.append(self._to)
            await members._forget(places[2])  # as a request does that fails just now

    for place in places:
        members._idle[place].append(cast(Any, Connection(place)))
    await members.aclose()
    assert sorted(set(closed)) == places
