"""Bugs to plant in the AMQP door and below it: its seeded lives have to find every one of them.

The seed that finds each is in ``tests/simulation/found_by.json``, which ``make planted`` writes.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.planting import Bug

BUGS: Final = {
    "a publish is confirmed before it is stored": Bug(
        "PublishQueue._submit_waiting",
        "self._batches.append(batch)",
        """
        self._connection.published(batch.messages, is_stored=True)
        self._batches.append(batch)
        """,
    ),
    "what is refused is lost with what is stored": Bug(
        "PublishQueue._submit_waiting",
        "self._submit(batch)",
        "not self._end(batch)",
    ),
    "a connection that ends gives nothing back": Bug("release", "await state.broker.put_back(held, most=most)", "pass"),
    "what comes back has no mark": Bug(
        "release",
        "state.broker.put_back(held, most=most)",
        "state.broker.put_back(held, redelivered=False)",
    ),
    "a nack loses the message": Bug(
        "_settle",
        "state.broker.put_back(held, to_back=to_back, failed=True, most=most)",
        "state.broker.reject(held)",
    ),
    "an acknowledgement puts back": Bug(
        "_settle",
        "state.broker.acknowledge(_held(deliveries), durable=durable)",
        "state.broker.put_back(_held(deliveries))",
    ),
    "where a message is, is asked again after a wait": Bug(
        "LayeredStorage.read",
        "[next(from_above if in_memory else from_below) for in_memory in is_above]",
        "[(await self._above.read([e]))[0] if self._above.holds(e) else next(from_below) for e in entries]",
    ),
    "a close is answered before the confirms": Bug(
        "ServedConnection._leave", "if self.connection.owes_confirms(command.channel): ...", "pass"
    ),
    "a commit does not wait for the disk": Bug(
        "ServedChannel.commit",
        "settle(self._state, settled.outcome, settled.deliveries, durable=True)",
        "settle(self._state, settled.outcome, settled.deliveries, durable=False)",
    ),
}
"""Each by what it does, in words."""
