"""A request and its answer as plain values, and when a request may be sent again. Nothing here does I/O."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from mq.client.errors import NotUnderstood, Refused, refusal

T = TypeVar("T")


class Again(enum.Enum):
    """When a request may be sent again without doing twice what was asked for once."""

    NEVER = "never"
    """Whatever comes back is the answer."""
    UNSERVED = "unserved"
    """When it is certain that it was not served: there was no connection, or the queue was full (429)."""
    ALWAYS = "always"
    """It does the same however often it is sent, or carries a key by which the daemon knows it again."""


class Source(NamedTuple):
    """A long body that is sent chunk by chunk.

    Attributes:
        open: begins it: an iterable of bytes, or, for the Trio client, an asynchronous one.
        is_repeatable: whether it can be opened a second time.
    """

    open: Callable[[], Any]
    is_repeatable: bool


class Answer(NamedTuple):
    """A whole answer.

    Attributes:
        status: as in RFC 9110.
        headers: by name in small letters.
        body: empty while it is still to be streamed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def document(self) -> Any:
        """Its body as JSON.

        Raises:
            NotUnderstood: it is something else.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise NotUnderstood(f"the daemon answered {self.status} with something that is not JSON") from error

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Its body as JSON Lines.

        Raises:
            NotUnderstood: it is something else.
        """
        for line in self.body.splitlines():
            yield self._replace(body=line).members()

    def members(self) -> Mapping[str, Any]:
        """Its body as one JSON object.

        Raises:
            NotUnderstood: it is something else.
        """
        found = self.document()
        if not isinstance(found, dict):
            raise NotUnderstood(f"the daemon answered {self.status} with JSON that is not an object")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request, and how its answer is read.

    Attributes:
        method: in capitals.
        target: path and query, percent-encoded.
        headers: names in small letters.
        body: all of it, or where it comes from.
        again: when it may be sent again.
        wait: seconds that the daemon may take on purpose.
        read: the result, from an answer of less than 400.
        gone: the result when a repeated request finds that nothing is left to do: an earlier try did it. None where
            that cannot be.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | Source = b""
    again: Again = Again.ALWAYS
    wait: float = 0.0
    read: Callable[[Answer], T]
    gone: Callable[[Refused], T] | None = None

    def result(self, answer: Answer, *, repeated: bool = False) -> T:
        """What the answer means.

        Args:
            answer: the one that counts.
            repeated: whether an earlier try may have been served.

        Raises:
            Refused: the daemon said no.
            NotUnderstood: no mq gives such an answer.
        """
        if answer.status >= 400:
            error = refusal(answer.status, _detail(answer))
            if repeated and self.gone is not None:
                return self.gone(error)
            raise error
        if answer.status >= 300:
            raise NotUnderstood(f"{self.method} was answered {answer.status}, which leads elsewhere: check the URL")
        try:
            return self.read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise NotUnderstood(f"{self.method} was answered with something that mq never says: {error}") from error


def nothing(answer: Answer) -> None:
    """Reads an answer that says no more than "done"."""


def _detail(answer: Answer) -> str:
    """The line of a refusal; where something in between answered, its status."""
    try:
        detail = answer.members().get("detail")
    except NotUnderstood:
        detail = None
    return detail if isinstance(detail, str) and detail else f"the answer was {answer.status}"
