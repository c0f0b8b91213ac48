"""What the simulation holds against a broker, and what it may not."""

from __future__ import annotations

import pytest

from mq.lifecycle import Kind, State, Transition
from mq.message import MessageId, MessageIds
from simulation.history import History

_ids = MessageIds()


def _lease(id: MessageId) -> Transition:
    return Transition(Kind.LEASE, "q", id, State.READY, State.DELAYED, 0)


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_message_that_its_queues_deletion_may_have_taken_need_not_come_first(overlapping: bool) -> None:
    clock = iter(range(100))
    history = History(lambda: next(clock), 30.0, ordered=True)
    older, younger = _ids.new(), _ids.new()
    if overlapping:
        history.sending("q", b"older")
        deletion = history.queue_deleting("q")
        history.published(b"older", older)
        history.queue_deleted("q", deletion)
    else:
        history.sending("q", b"older")
        history.published(b"older", older)
    history.sending("q", b"younger")
    history.published(b"younger", younger)
    history.saw([_lease(younger)])
    assert len(history.violations) == (0 if overlapping else 1)
