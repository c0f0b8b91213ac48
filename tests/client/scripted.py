"""A daemon that says what a test has written down, in that order, and notes what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import anyio.lowlevel
import httpx

from mq.client import AsyncClient, Client, ClientError, Retry

URL = "http://mq.test:8080"
AT_ONCE = Retry(first=0.0, longest=0.0, patience=5.0)
ID = "4ad814ab-213e-11e3-a9a3-0025904f6e08"
OTHER = "4ad814ac-213e-11e3-a9a3-0025904f6e08"

Step = httpx.Response | Exception


class Asked(NamedTuple):
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Script:
    """Answers, one for each request. More requests than answers is an error."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.asked: list[Asked] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        return self._next(request, request.read())

    async def answer_async(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()  # as a network does: here a cancelled task ends
        return self._next(request, await request.aread())

    def client(self, **options: Any) -> Client:
        return Client(URL, retry=AT_ONCE, **options, transport=httpx.MockTransport(self.answer))

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient(URL, retry=AT_ONCE, **options, transport=httpx.MockTransport(self.answer_async))

    def _next(self, request: httpx.Request, body: bytes) -> httpx.Response:
        self.asked.append(Asked(request.method, request.url.raw_path.decode(), dict(request.headers), body))
        assert self.steps, f"nothing was written down for {request.method} {request.url}"
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    @property
    def only(self) -> Asked:
        """The one request that there was."""
        (asked,) = self.asked
        return asked


def refused(status: int, detail: str = "no", **headers: str) -> httpx.Response:
    """A refusal as mq gives it."""
    return _problem({"status": status, "detail": detail}, **headers)


def unsure(status: int = 503, detail: str = "it may have been done") -> httpx.Response:
    return _problem({"status": status, "detail": detail, "outcome": "unknown"})


def _problem(said: dict[str, Any], **headers: str) -> httpx.Response:
    kind = {"content-type": "application/problem+json"}
    return httpx.Response(int(said["status"]), headers={**kind, **headers}, content=json.dumps(said))


def message(body: bytes = b"hello", **headers: str) -> httpx.Response:
    """A message as a fetch hands it out."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    shown = {
        "x-message-id": ID,
        "etag": '"r1"',
        "x-message-receives": "1",
        "x-message-lease": "30",
        "content-type": "text/plain",
        **names,
    }
    return httpx.Response(200, headers=shown, content=body)


def lines(*values: dict[str, Any], **headers: str) -> httpx.Response:
    body = "".join(json.dumps(value) + "\n" for value in values)
    return httpx.Response(200, headers={"content-type": "application/x-ndjson", **headers}, content=body)


def read_lines(body: bytes) -> list[dict[str, Any]]:
    """What was sent as JSON Lines."""
    return [json.loads(line) for line in body.splitlines()]


async def both(
    make: Callable[[], Iterable[Step]], verb: Callable[[Any], Any], **options: Any
) -> list[tuple[Script, Any]]:
    """Run a verb with each of the two clients over the same script. Each outcome is a result, or the error."""
    found = []
    script = Script(*make())
    with script.client(**options) as client:
        try:
            found.append((script, verb(client)))
        except (ClientError, ValueError) as error:
            found.append((script, error))
    script = Script(*make())
    async with script.async_client(**options) as async_client:
        try:
            found.append((script, await verb(async_client)))
        except (ClientError, ValueError) as error:
            found.append((script, error))
    return found
