"""Users of write jobs: they write rows in several requests, commit some jobs, abort others, and leave the rest.

The checks know only what clients can know, over all lives of the broker. Of a job all rows come that its commit named,
each once, or none; none comes before a commit was asked for, or of another run of a task.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from random import Random
from typing import Final

import trio

from mq.broker import Broker, Draft, Removal
from mq.errors import Conflict, CorruptMessage
from mq.lifecycle import State
from mq.storage.interface import WRITE_JOBS
from simulation.claimants import Ask
from simulation.history import History

CONSUMED: Final = "j"
"""A queue from which rows are taken while others come."""
BROWSED: Final = "k"
"""A queue that is only looked at until the end."""
QUEUES: Final = (CONSUMED, BROWSED)
WRITERS: Final = 3
_MOST_ROWS: Final = 1000


class SentRequest:
    """Rows of one request.

    Attributes:
        drafts: the rows; no two bodies are the same.
    """

    def __init__(self, queue: str, part: str, number: int, drafts: Sequence[Draft]) -> None:
        self.queue = queue
        self.part = part
        self.number = number
        self.drafts = drafts
        self.is_held = False


class SentJob:
    """A job, as its writer knows it.

    Attributes:
        requests: in the order in which they were first sent.
        parts: those that its commit names.
        was_cut_off: whether a commit was not answered: what went on then may have come in another order.
        is_over: nothing more is asked of it before the last look.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[SentRequest] = []
        self.parts: list[str] = []
        self.is_commit_asked = False
        self.is_committed = False
        self.was_cut_off = False
        self.is_abort_asked = False
        self.is_over = False
        self.seen = set[bytes]()

    def rows(self, queue: str | None = None) -> list[bytes]:
        """The bodies that its commit brings, into one queue or all, in their order."""
        counted = [each for part in self.parts for each in self.requests if each.part == part]
        return [_body(draft) for each in counted if queue in (None, each.queue) for draft in each.drafts]


class WriteLedger:
    """What writers asked for and were told, over all lives."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.jobs: list[SentJob] = []
        self.is_made = False
        self._by_body: dict[bytes, SentJob] = {}
        self._gone = set[bytes]()

    def violate(self, text: str) -> None:
        """Note a broken promise."""
        self._history.violate(f"write jobs: {text}")

    def begin(self) -> SentJob:
        """A new job."""
        job = SentJob(f"job-{len(self.jobs)}")
        self.jobs.append(job)
        return job

    def sending(self, job: SentJob, queue: str, part: str, number: int, count: int, random: Random) -> SentRequest:
        """A request of a job, not sent yet."""
        bodies = [f"{job.name} {queue} {part} {number} {row}".encode() for row in range(count)]
        has_keys = random.random() < 0.5
        request = SentRequest(
            queue, part, number, [Draft(body, key=body.hex() if has_keys else None) for body in bodies]
        )
        job.requests.append(request)
        self._by_body |= dict.fromkeys(bodies, job)
        return request

    def seen(self, queue: str, body: bytes) -> None:
        """A row came."""
        job = self._by_body.get(body)
        if job is None:
            self.violate(f"{queue} gave bytes that nobody wrote: {body!r}")
        elif not job.is_commit_asked:
            self.violate(f"{body!r} came before the commit of its job")
        elif body not in job.rows(queue):
            self.violate(f"{body!r} came, of a part that does not count")
        elif body in self._gone:
            self.violate(f"{body!r} came again after it was removed")
        else:
            job.seen.add(body)

    def removed(self, body: bytes) -> None:
        """It is gone for good."""
        self._gone.add(body)

    def decided(self) -> set[SentJob]:
        """The jobs of which a row came, or whose commit was answered: all of their rows are there."""
        return {job for job in self.jobs if job.seen or job.is_committed}

    def browsed(self, bodies: Sequence[bytes], decided: Collection[SentJob]) -> None:
        """One page had these rows: all that are in the queue, from which none was taken. When it was asked for these
        jobs were decided."""
        if len(set(bodies)) < len(bodies):
            self.violate(f"a row is there twice: {sorted(body for body in bodies if bodies.count(body) > 1)}")
        for job in self.jobs:
            there = [body for body in bodies if self._by_body.get(body) is job]
            wanted = job.rows(BROWSED)
            if job.was_cut_off:
                there, wanted = sorted(there), sorted(wanted)
            if there != wanted and (there or job in decided):
                self.violate(f"of {job.name} {BROWSED} has {there}, not {wanted}")

    def check_all(self) -> None:
        """Check that of each job all rows came, or none, once every row was taken out."""
        for job in self.jobs:
            missing = [body for body in job.rows() if body not in job.seen]
            if missing and (job.seen or job.is_committed):
                self.violate(f"of {job.name} these did not come: {missing}")


class WriteJobUsers:
    """Writers of two queues, and a consumer of one of them.

    Args:
        is_calm: whether nothing goes wrong with the disk: only then a page of a queue has all rows of a job.
    """

    def __init__(self, broker: Broker, ledger: WriteLedger, ask: Ask, random: Random, *, is_calm: bool) -> None:
        self._broker = broker
        self._ledger = ledger
        self._ask = ask
        self._random = random
        self._is_calm = is_calm

    async def run(self) -> None:
        """Write, look and consume, until each has done what it wanted."""
        if not self._ledger.is_made:
            for queue in QUEUES:
                if not await self._ask(f"make {queue}", partial(self._broker.create_queue, queue)):
                    return
        self._ledger.is_made = True
        left = [job for job in self._ledger.jobs if not job.is_over]
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(self._write, left[writer::WRITERS], self._random.randint(1, 5))
            nursery.start_soon(self._look, self._random.randint(3, 20))
            nursery.start_soon(self._consume, self._random.randint(3, 20))

    async def drain(self) -> None:
        """End every job, and take out every row. Call it once, while no other user works."""
        if not self._ledger.is_made:
            return
        for job in self._ledger.jobs:
            if job.is_commit_asked and not job.is_abort_asked and not job.is_committed:
                await self._commit(job, patient=True)
            await self._abort(job, patient=True)
        await self._browse()
        for queue in QUEUES:
            while await self._fetch(queue, patient=True):
                pass
        await trio.testing.wait_all_tasks_blocked()
        held = await self._broker.storage.scan(State.NEW, WRITE_JOBS)
        if held:
            self._ledger.violate(f"every job has ended, and rows are still held: {held}")

    # Writers

    async def _write(self, left: Sequence[SentJob], count: int) -> None:
        for job in left:
            if self._random.random() < 0.8:
                await self._go_on(job)
        for _ in range(count):
            job = self._ledger.begin()
            for task in range(self._random.randint(1, 3)):
                await self._run_task(job, task)
            await self._go_on(job)

    async def _run_task(self, job: SentJob, task: int) -> None:
        """Write the rows of a task; of several runs the last counts."""
        for run in range(self._random.choice((1, 1, 2))):
            part = f"{task}.{run}"
            job.parts = [*(each for each in job.parts if not each.startswith(f"{task}.")), part]
            for number in range(self._random.randint(1, 3)):
                queue, rows = self._random.choice(QUEUES), self._random.choice((1, 2, 5))
                await self._hold(job, self._ledger.sending(job, queue, part, number, rows, self._random))
                await self._pause()

    async def _hold(self, job: SentJob, request: SentRequest) -> None:
        """Send a request, perhaps once more than need be."""
        for _ in range(self._random.choice((1, 1, 1, 2))):
            outcome = await self._ask(
                f"hold {job.name} {request.part}/{request.number}",
                lambda: self._broker.writes.add(
                    request.queue, job.name, request.part, request.number, list(request.drafts)
                ),
            )
            request.is_held |= outcome == [None] * len(request.drafts)

    async def _go_on(self, job: SentJob) -> None:
        """Send again what may not be held, then commit the job, or abort it, or leave it as it is."""
        for request in job.requests:
            if not request.is_held and request.part in job.parts and not job.is_commit_asked:
                await self._hold(job, request)
        await self._pause()
        is_whole = all(request.is_held for request in job.requests if request.part in job.parts)
        if is_whole and (job.is_commit_asked or self._random.random() < 0.7):
            await self._commit(job)
            if not job.is_committed and self._random.random() < 0.8:
                await self._pause()
                await self._commit(job)
        if self._random.random() < 0.3:
            await self._abort(job)

    async def _commit(self, job: SentJob, *, patient: bool = False) -> None:
        rows, is_first = job.rows(), not (job.is_commit_asked or job.is_abort_asked)
        was_cut_off, job.was_cut_off = job.was_cut_off, True
        job.is_commit_asked = True

        async def commit() -> str:
            try:
                return (await self._broker.writes.commit(CONSUMED, job.name, job.parts, len(rows))).state
            except Conflict as error:
                if f"no messages for queue {CONSUMED}" in str(error):
                    return (await self._broker.writes.commit(BROWSED, job.name, job.parts, len(rows))).state
                return str(error)
            except CorruptMessage as error:
                self._ledger.violate(f"P2: {error}")
                return str(error)

        told = await self._ask(f"commit {job.name}", commit, patient=patient)
        job.is_committed |= told == "done"
        job.was_cut_off = was_cut_off or told != "done"
        if is_first and told not in (None, "done"):
            self._ledger.violate(f"{job.name} was held, and its commit was told: {told}")

    async def _abort(self, job: SentJob, *, patient: bool = False) -> None:
        """End a job; one that is committed is only forgotten."""
        job.is_abort_asked = job.is_over = True

        async def abort() -> str:
            for queue in QUEUES:
                try:
                    await self._broker.writes.abort(queue, job.name)
                except Conflict as error:  # its rows are for the other queue, or it is committed
                    self._ledger.violate(f"{job.name}: {error}") if "is committed" in str(error) and patient else None
            return "done"

        await self._ask(f"abort {job.name}", abort, patient=patient)

    # Others

    async def _look(self, times: int) -> None:
        for _ in range(times):
            await self._browse()
            await self._pause()

    async def _browse(self) -> None:
        decided = self._ledger.decided()
        page = await self._ask(f"browse {BROWSED}", lambda: self._broker.browsing.browse(BROWSED, most=_MOST_ROWS))
        if page is None:
            return
        bodies = []
        for each in page.messages:
            bodies.append(await each.message.body.read())
            await each.message.body.aclose()
        for body in bodies:
            self._ledger.seen(BROWSED, body)
        if self._is_calm:
            self._ledger.browsed(bodies, decided)

    async def _consume(self, times: int) -> None:
        for _ in range(times):
            await self._fetch(CONSUMED)
            await self._pause()

    async def _fetch(self, queue: str, *, patient: bool = False) -> bool:
        messages = await self._ask(
            f"fetch {queue}", lambda: self._broker.fetch_many(queue, 4, visibility=1.0), patient=patient
        )
        for message in messages or []:
            body = await message.body.read()
            await message.body.aclose()
            self._ledger.seen(queue, body)
            removal = Removal(message.id, message.receipt)
            outcome = await self._ask(
                f"remove of {queue}", partial(self._broker.remove_many, queue, [removal]), patient=patient
            )
            if outcome == [None]:
                self._ledger.removed(body)
        return bool(messages)

    async def _pause(self) -> None:
        await trio.sleep(self._random.choice((0.0, 0.0, 0.1, 1.0)))


def _body(draft: Draft) -> bytes:
    assert isinstance(draft.body, bytes)
    return draft.body
