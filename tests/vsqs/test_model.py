"""Any sequence of operations by three programs, held to a dictionary that follows the text."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mq.vsqs import Message, Queue
from tests.vsqs.conftest import MEMORY
from tests.vsqs.places import WAYS, Place

pytestmark = pytest.mark.slow

READY = None
whose = st.integers(0, 2)
some = st.integers(0, 50)


class Model(RuleBasedStateMachine):
    """The model: number -> until when it is hidden, in milliseconds, or READY."""

    @initialize(way=st.sampled_from(sorted(WAYS)))
    def begin(self, way: str) -> None:
        heard, renames = WAYS[way]
        self.folder = Path(tempfile.mkdtemp(prefix="mq-vsqs-", dir=MEMORY if MEMORY.is_dir() else None))
        self.place = Place(self.folder, heard=heard, renames=renames)
        self.clock = self.place.clock
        self.queues: list[Queue] = [self.place.open() for _ in range(3)]
        self.messages: dict[int, int | None] = {}
        self.bodies: dict[int, bytes] = {}
        self.received: list[Message] = []

    @rule(who=whose, body=st.binary(max_size=20))
    def publish(self, who: int, body: bytes) -> None:
        before = self.clock.ms
        number = int(self.queues[who].publish(body))
        assert number >= before
        assert number > max(self.messages, default=-1)  # strictly FIFO, whatever the clock says
        self.messages[number] = READY
        self.bodies[number] = body

    @rule(who=whose, seconds=st.sampled_from([0.001, 0.5, 1, 10]))
    def receive(self, who: int, seconds: float) -> None:
        for number, until in self.messages.items():
            if until is not READY and until < self.clock.ms:
                self.messages[number] = READY
        wanted = min((number for number, until in self.messages.items() if until is READY), default=None)
        message = self.queues[who].receive(seconds, timeout=0)
        assert (message and int(message.id)) == wanted
        if message is not None and wanted is not None:
            assert message.body == self.bodies[wanted]
            assert self.clock.ns + seconds * 1e9 <= message.expires_ms * 1e6 < self.clock.ns + seconds * 1e9 + 2e6
            self.messages[wanted] = message.expires_ms
            self.received.append(message)

    @rule(who=whose, which=some)
    def delete(self, who: int, which: int) -> None:
        number = sorted(self.bodies)[which % len(self.bodies)] if self.bodies else 7
        assert self.queues[who].delete(str(number)) == (number in self.messages)
        self.messages.pop(number, None)

    @rule(which=some)
    def release(self, which: int) -> None:
        if self.received:
            message = self.received.pop(which % len(self.received))
            number = int(message.id)
            ours = self.messages.get(number, READY) == message.expires_ms
            assert message.release() == ours
            if ours:
                self.messages[number] = READY

    @rule(ms=st.sampled_from([1, 400, 700, 20_000, -1, -5000]))
    def let_time_pass(self, ms: int) -> None:
        self.clock.ns += ms * 1_000_000

    @rule(who=whose)
    def restart(self, who: int) -> None:
        self.queues[who] = self.place.open()

    @invariant()
    def the_folder_is_what_the_model_says(self) -> None:
        if hasattr(self, "messages"):
            wanted = [str(number) if until is READY else f"{number}.{until}" for number, until in self.messages.items()]
            assert self.place.names() == sorted(wanted)
            assert self.queues[0].size() == len(wanted)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()
            shutil.rmtree(self.folder)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
