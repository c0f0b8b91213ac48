"""A request and its answer as plain values, the bodies of requests, and when a request may be sent again. No I/O."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from http.client import TOO_MANY_REQUESTS
from typing import Any, Final, Generic, NamedTuple, TypeVar

from mq.client.errors import Refused, UnexpectedResponse, refusal
from mq.client.values import not_a_body

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Again(enum.Enum):
    """When a request may be sent again without doing twice what was asked for once."""

    NEVER = "never"
    """Never: the first answer counts."""
    UNSERVED = "unserved"
    """When it was certainly not served: there was no connection, or the queue was full (429)."""
    ALWAYS = "always"
    """It does the same however often it is sent, or carries a key by which the daemon knows it again."""


class Source(NamedTuple):
    """A long body that is sent chunk by chunk.

    Attributes:
        open: begins it: an iterable of bytes, or, for the asynchronous client, an asynchronous one.
        is_repeatable: whether it can be opened a second time.
    """

    open: Callable[[], Any]
    is_repeatable: bool


class Answer(NamedTuple):
    """A whole answer.

    Attributes:
        status: as in RFC 9110.
        body: empty while it is still to be streamed.
        time: when it came, in seconds by the client's clock.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    time: float = 0.0

    def document(self) -> Any:
        """Its body as JSON.

        Raises:
            UnexpectedResponse: it is something else.
        """
        return self._parsed(self.body)

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Its body as JSON Lines.

        Raises:
            UnexpectedResponse: it is something else.
        """
        for line in self.body.splitlines():
            yield self._object(line)

    def members(self) -> Mapping[str, Any]:
        """Its body as one JSON object.

        Raises:
            UnexpectedResponse: it is something else.
        """
        return self._object(self.body)

    def _object(self, text: bytes) -> Mapping[str, Any]:
        found = self._parsed(text)
        if not isinstance(found, dict):
            raise UnexpectedResponse(f"the daemon returned status {self.status} with JSON that is not an object")
        return found

    def _parsed(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise UnexpectedResponse(
                f"the daemon returned status {self.status} with a body that is not JSON"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request, and how its answer is read.

    Attributes:
        method: in capitals.
        target: path and query, percent-encoded.
        wait: seconds that the daemon may take on purpose.
        timeout: seconds that connecting, sending and the answer may take each; None for what the client's user said.
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
    timeout: float | None = None
    read: Callable[[Answer], T]
    gone: Callable[[Refused], T] | None = None

    def result(self, answer: Answer, *, repeated: bool = False, is_unsure: bool = False) -> T:
        """The result of a call, or the error that its answer stands for.

        Raises:
            Refused: the daemon said no.
            UnexpectedResponse: no mq gives such an answer.
        """
        if answer.status >= 400:
            error = _refusal(answer, was_unsure=is_unsure)
            if repeated and self.gone is not None:
                return self.gone(error)
            raise error
        if answer.status >= 300:
            raise UnexpectedResponse(
                f"the {self.method} request was redirected with status {answer.status}. Check the URL"
            )
        try:
            return self.read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnexpectedResponse(f"the {self.method} request returned an unexpected response: {error}") from error


def as_method_of(make: Callable[..., Call[Any]]) -> Callable[[F], F]:
    """Give a client's method the name, the arguments and the docstring of the function that makes its request."""
    signature = inspect.signature(make)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    result = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")  # in help(), the call's result

    def described(method: F) -> F:
        wraps(make)(method)
        parameters = [own, *signature.parameters.values()]
        vars(method)["__signature__"] = signature.replace(parameters=parameters, return_annotation=result)
        return method

    return described


def nothing(answer: Answer) -> None:
    """Reads an answer that says no more than "done"."""


def changed_nothing(answer: Answer) -> bool:
    """Whether a refusal says for certain that nothing was done.

    One of mq's says so unless it has an ``outcome``. One of a proxy's does not: the proxy only gave up waiting for mq.
    """
    if answer.status == TOO_MANY_REQUESTS:
        return True
    said = _said(answer)
    return said.get("status") == answer.status and "outcome" not in said


def _refusal(answer: Answer, *, was_unsure: bool) -> Refused:
    """The error of a refusal, with mq's own line where it has one, else with the status."""
    detail = _said(answer).get("detail")
    text = detail if isinstance(detail, str) and detail else f"the daemon returned status {answer.status}"
    is_unsure = answer.status >= 500 and not changed_nothing(answer)
    if is_unsure and text != detail:
        text = f"{text}. The request may have been executed"
    elif was_unsure and not is_unsure:
        text = f"{text}. An earlier attempt may have succeeded"
    return refusal(answer.status, text, is_unsure=is_unsure or was_unsure)


def _said(answer: Answer) -> Mapping[str, Any]:
    try:
        return answer.members()
    except UnexpectedResponse:
        return {}


SyncBody = bytes | str | Iterable[bytes] | Callable[[], Iterable[bytes]]
"""Bytes, text, chunks (sent once), or a function that begins the chunks anew for every try."""
AsyncBody = SyncBody | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]]
"""The same for the asynchronous client, whose chunks may be asynchronous. Plain ones are taken in the event loop: they
should not block."""

_TEXT: Final = "text/plain; charset=utf-8"


class Given(NamedTuple):
    """A body as it is published.

    Attributes:
        data: all of it, or b"" where there is a source.
        source: where a long one comes from.
    """

    data: bytes
    source: Source | None = None
    content_type: str | None = None


def given(body: AsyncBody) -> Given:
    """The body that a caller gave.

    Raises:
        TypeError: it is neither bytes nor text, nor chunks of bytes.
    """
    if isinstance(body, str):
        return Given(body.encode(), None, _TEXT)
    if isinstance(body, bytes | bytearray | memoryview):
        return Given(bytes(body))
    if isinstance(body, Mapping) or not (callable(body) or hasattr(body, "__iter__") or hasattr(body, "__aiter__")):
        raise not_a_body(body)
    if isinstance(body, Collection) and not all(isinstance(chunk, bytes) for chunk in body):
        raise not_a_body(body)
    if callable(body):
        return Given(b"", Source(body, is_repeatable=True))
    return Given(b"", Source(lambda: body, is_repeatable=False))


async def asynchronous(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Plain chunks as the asynchronous client sends them."""
    for chunk in chunks:
        yield chunk
