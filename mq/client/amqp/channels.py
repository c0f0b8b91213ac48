"""A channel: questions and their answers, in order. What comes besides is its subclasses'."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
from pamqp import base

from mq.client.amqp.errors import refusal
from mq.client.amqp.events import Arrived, ChannelRefused, Confirmed, Returned
from mq.client.errors import ClientError

if TYPE_CHECKING:
    from mq.client.amqp.link import Link

Why = Callable[[], ClientError]
"""Makes an error: each task that waits gets one of its own."""


class Waiting:
    """A task that waits for an answer.

    Attributes:
        value: the answer; None while there is none.
        is_given_up: whether the task has gone.
    """

    def __init__(self) -> None:
        self._done = trio.Event()
        self._why: Why | None = None
        self.value: Any = None
        self.is_given_up = False

    def answer(self, value: Any) -> None:
        """It came."""
        self.value = value
        self._done.set()

    def fail(self, why: Why) -> None:
        """It will not come."""
        self._why = why
        self._done.set()

    async def result(self) -> Any:
        """The answer.

        Raises:
            ClientError: it will not come.
        """
        await self._done.wait()
        if self._why is not None:
            raise self._why()
        return self.value


class Channel:
    """One channel of a link, made by :meth:`Link.open_channel`.

    Attributes:
        number: on its connection.
        ended: makes the error that says why it has ended; None while it has not.
    """

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self.ended: Why | None = None
        self._link = link
        self._questions: deque[Waiting] = deque()

    def check(self) -> None:
        """Whether it can be used.

        Raises:
            ClientError: it has ended.
        """
        self._link.check()
        if self.ended is not None:
            raise self.ended()

    def tell(self, method_type: type[base.Frame], **values: Any) -> None:
        """Send a method that has no answer."""
        self.check()
        self._link.send(self.number, method_type, **values)

    async def ask(self, method_type: type[base.Frame], **values: Any) -> Any:
        """Send a method, and wait for its answer: a method, or a whole message.

        Raises:
            Refused: the server closed the channel over it.
            Interrupted: the connection ended before the answer came.
        """
        self.tell(method_type, **values)
        question = Waiting()
        self._questions.append(question)
        try:
            return await question.result()
        except trio.Cancelled:
            question.is_given_up = True
            if question.value is not None:  # it came in the very step in which we were cancelled
                self.unwanted(question.value)
            raise

    def answered(self, answer: base.Frame | Arrived) -> None:
        """The answer to the oldest question came."""
        if self._questions:
            question = self._questions.popleft()
            if question.is_given_up:
                self.unwanted(answer)
            question.answer(answer)

    def unwanted(self, answer: base.Frame | Arrived) -> None:
        """An answer came that nobody waits for any more."""

    def arrived(self, message: Arrived) -> None:
        """A whole message came."""
        if message.is_answer:
            self.answered(message)

    def returned(self, message: Returned) -> None:
        """A message came back."""

    def confirmed(self, confirm: Confirmed) -> None:
        """A confirm came."""

    def consumer_ended(self) -> None:
        """The server ended the channel's consumer."""

    def refused(self, event: ChannelRefused) -> None:
        """The server closed the channel."""
        self.end(lambda: refusal(event.code, event.text))

    def end(self, why: Why) -> None:
        """It is of no use any more."""
        if self.ended is None:
            self.ended = why
            while self._questions:
                self._questions.popleft().fail(why)
