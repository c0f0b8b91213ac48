"""The data source's own requests, beside those of every client: claims, browsing by sequence, and write jobs.

Messages come as columns: Arrow arrays over the bytes of the answer, without work for each message.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from mq.client import requests
from mq.client.calls import Answer, Call, nothing
from mq.client.codec import JSON_LINES, outcomes
from mq.client.errors import UnexpectedResponse
from mq.client.values import Outcome, Outgoing
from mq.message import MessageId

COLUMNS: Final = "application/vnd.mq.columns"
_ACCEPT: Final = (("accept", COLUMNS),)

_ID_BYTES: Final = 36
_LONGEST_NAMES: Final = 4000
"""Characters of a request's target that queue names may take; proxies refuse longer targets."""
_INSTANT: Final = pa.timestamp("us", "UTC")
_TICKS_AT_1970: Final = MessageId.time_ns(0) // 100
"""What has to be added to the ticks of ids to count from 1970 on."""


class Columns(NamedTuple):
    """Messages, in columns.

    Attributes:
        body: its bytes.
        said: content type and attributes of messages that have any, by their number as text.
    """

    sequence: pa.Array
    timestamp: pa.Array
    receives: pa.Array
    id: pa.Array
    body: pa.Array
    said: Mapping[str, Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.sequence)


def read_columns(data: bytes) -> Columns:
    """Parse columns of messages, whose format docs/dev/storage-formats.md describes.

    Raises:
        UnexpectedResponse: the data is not in that format.
    """
    try:
        end = data.index(b"\n") + 1
        head = json.loads(data[:end])
        count, said = head["messages"], head["said"]
        rest = pa.py_buffer(data).slice(end)
        ends = rest.slice(20 * count, 4 * (count + 1))
        body_bytes = int.from_bytes(ends.slice(4 * count), "little")
        ids, bodies = rest.slice(24 * count + 4, _ID_BYTES * count), rest.slice((24 + _ID_BYTES) * count + 4)
        if len(bodies) != body_bytes:
            raise ValueError(f"received {len(bodies)} bytes of message bodies instead of {body_bytes} bytes")
        ticks = _array(pa.int64(), count, rest.slice(8 * count, 8 * count))
        id_ends = pa.array(range(0, _ID_BYTES * (count + 1), _ID_BYTES), pa.int32()).buffers()[1]
        return Columns(
            _array(pa.int64(), count, rest.slice(0, 8 * count)),
            pc.divide(pc.add(ticks, _TICKS_AT_1970), 10).cast(_INSTANT),
            _array(pa.int32(), count, rest.slice(16 * count, 4 * count)),
            _array(pa.string(), count, id_ends, ids),
            _array(pa.binary(), count, ends, bodies),
            said,
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise UnexpectedResponse(f"the daemon's response is not in the columnar message format: {error}") from error


def ticks_of(micros: int) -> int:
    """The first tick, as sequences count them, of an instant in microseconds since 1970."""
    return micros * 10 - _TICKS_AT_1970


def _array(kind: pa.DataType, length: int, *buffers: pa.Buffer) -> pa.Array:
    array = pa.Array.from_buffers(kind, length, [None, *buffers])
    array.validate(full=True)
    return array


class ColumnsPage(NamedTuple):
    """One answer with messages.

    Attributes:
        next: the target of the page that follows; None after the last.
    """

    messages: Columns
    next: str | None


def ranges(queue: str, parts: int) -> Call[Mapping[str, Any]]:
    """A queue cut into parts of about the same length."""
    return Call(method="GET", target=_target(queue, "ranges", parts=parts), read=Answer.members)


def browse(
    queue: str,
    after: int,
    up_to: int,
    most: int,
    *,
    ids: Iterable[str] | None = None,
    group: str | None = None,
    bodies: bool = True,
) -> Call[ColumnsPage]:
    """The first page of a part: of all messages, or of these ids or this message group. Very rarely another group comes
    with it, whose number is the same. Without `bodies` the daemon may leave out bodies and attributes."""
    named = None if ids is None else ",".join(sorted(ids))
    wanted = {"ids": named, "group": group, "bodies": None if bodies else "false"}
    return page(_target(queue, "browse", after=after, up_to=up_to, max=most, **wanted))


def page(target: str) -> Call[ColumnsPage]:
    """The page at a target."""
    return Call(method="GET", target=target, headers=_ACCEPT, read=_page)


def consumer(queue: str, name: str) -> Call[Mapping[str, Any]]:
    """How far a consumer is."""
    return Call(method="GET", target=_target(queue, "consumers", name), read=Answer.members)


def positions(name: str, queues: Sequence[str] | None) -> Iterator[Call[list[Mapping[str, Any]]]]:
    """How far a consumer is in these queues, and what waits there; None for every queue. One that does not exist is
    left out. One call, or several if the names are too long for one."""
    yield from (_positions(name, some) for some in ([None] if queues is None else _lists(queues)))


def _positions(name: str, queues: str | None) -> Call[list[Mapping[str, Any]]]:
    return Call(
        method="GET",
        target=_target("-", "consumers", name, queues=queues),
        read=lambda answer: list(answer.members()["queues"]),
    )


def _lists(names: Sequence[str]) -> Iterator[str]:
    """The names with commas, in texts of at most _LONGEST_NAMES characters."""
    text = ""
    for name in names:
        if text and len(text) + len(name) >= _LONGEST_NAMES:
            yield text
            text = ""
        text += f",{name}" if text else name
    yield text


def start(queue: str, name: str, checkpoint: str, *, take_over: bool, within: float) -> Call[Mapping[str, Any]]:
    """Begin an epoch. A repeated request begins another, which does no harm: the first is not used.

    The answer comes after about `within` seconds though acknowledged messages are left to be removed, and counts them.
    """
    wanted = {"checkpoint": checkpoint, "take_over": "true" if take_over else None, "timeout": within}
    return Call(method="POST", target=_target(queue, "consumers", name, **wanted), read=Answer.members)


def claim(
    queue: str,
    name: str,
    batch: int,
    epoch: int,
    lease: float,
    most: int | None = None,
    most_bytes: int | None = None,
    up_to: int | None = None,
    *,
    regain: bool = False,
) -> Call[Mapping[str, Any] | None]:
    """Make a claim, or renew the open one; None when the queue has nothing READY. With `regain` it gets those of its
    messages again that it has lost, and that are READY by now."""
    limits = {"max": most, "max_bytes": most_bytes, "up_to": up_to}
    wanted = {"batch": batch, "epoch": epoch, "lease": lease, **limits, "reclaim": "true" if regain else None}
    return Call(
        method="PUT",
        target=_target(queue, "consumers", name, "claim", **wanted),
        read=lambda answer: None if answer.status == 204 else answer.members(),
    )


def read_claim(
    queue: str, name: str, batch: int, epoch: int, start: int, stop: int, most: int, *, of: int
) -> Call[ColumnsPage]:
    """The first page of a part of a claim that has `of` messages."""
    where = {"batch": batch, "epoch": epoch, "from": start, "to": stop, "max": most, "expected": of}
    return page(_target(queue, "consumers", name, "claim", **where))


def note_read(
    queue: str, name: str, batch: int, epoch: int, start: int, stop: int, *, of: int, checkpoint: str
) -> Call[None]:
    """Note a part of a claim as read."""
    places: dict[str, str | int] = {"from": start, "to": stop, "expected": of}
    target = _target(queue, "consumers", name, "claim", batch=batch, epoch=epoch, **places, checkpoint=checkpoint)
    return Call(method="POST", target=target, read=nothing)


def acknowledge(queue: str, name: str, batch: int, epoch: int, within: float) -> Call[int]:
    """Remove the messages of a claim, if all of them are noted as read. The answer comes after about `within` seconds,
    and is how many are left: none, or the call is to be repeated."""
    target = _target(queue, "consumers", name, "claim", batch=batch, epoch=epoch, if_read="true", timeout=within)
    return Call(method="DELETE", target=target, read=lambda answer: int(answer.members()["remaining"]))


def hold_back(
    queue: str, job: str, part: str, number: int, body: bytes, count: int, content_type: str = JSON_LINES
) -> Call[list[Outcome]]:
    """Keep messages for a write job until it is committed."""
    return Call(
        method="POST",
        target=_target(queue, "writes", job, part=part, number=number),
        headers=(("content-type", content_type), ("accept", JSON_LINES)),
        body=body,
        read=lambda answer: outcomes(answer, count),
    )


def hold_one_back(queue: str, job: str, part: str, number: int, message: Outgoing) -> Call[list[Outcome]]:
    """Keep one message that is too long as a line."""
    call = requests.publish(queue, message)
    assert isinstance(call.body, bytes)
    boundary = uuid.uuid4().hex
    headers = "".join(f"{name}: {value}\r\n" for name, value in call.headers)
    head, end = f"--{boundary}\r\n{headers}\r\n".encode(), f"\r\n--{boundary}--\r\n".encode()
    whole = b"".join([head, call.body, end])
    return hold_back(queue, job, part, number, whole, 1, f'multipart/mixed; boundary="{boundary}"')


def commit_write(queue: str, job: str, parts: Sequence[str], rows: int) -> Call[Mapping[str, Any]]:
    """Let all rows of these parts of a write job into their queues."""
    body = json.dumps({"parts": list(parts), "rows": rows}).encode()
    return Call(method="PUT", target=_target(queue, "writes", job), body=body, read=Answer.members)


def end_write(queue: str, job: str) -> Call[None]:
    """Abort a write job, or forget one that is done."""
    return Call(method="DELETE", target=_target(queue, "writes", job), read=nothing)


def _target(*segments: str, **parameters: str | int | float | None) -> str:
    path = "/" + "/".join(quote(segment, safe="@") for segment in segments)
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _page(answer: Answer) -> ColumnsPage:
    if answer.headers.get("content-type") != COLUMNS:
        raise UnexpectedResponse(
            f"the daemon does not support the response format {COLUMNS}. Use the same version of mq for the "
            "daemon and the Spark data source"
        )
    link = answer.headers.get("link", "")
    return ColumnsPage(read_columns(answer.body), link[1:].partition(">")[0] if 'rel="next"' in link else None)
