"""The requests that a data source makes beside those of every client: claims, and browsing by sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from mq.client.calls import Answer, Call, nothing
from mq.client.errors import NotUnderstood
from mq.spark.columns import COLUMNS, Columns, read_columns

_ACCEPT: Final = (("accept", COLUMNS),)


class Page(NamedTuple):
    """Messages as they came.

    Attributes:
        messages: in columns.
        next: the target of the page that follows; None after the last.
    """

    messages: Columns
    next: str | None


def ranges(queue: str, parts: int) -> Call[Mapping[str, Any]]:
    """A queue cut into parts of about the same length."""
    return Call(method="GET", target=_target(queue, "ranges", parts=parts), read=Answer.members)


def browse(queue: str, after: int, up_to: int, most: int) -> Call[Page]:
    """The first page of a part."""
    return page(_target(queue, "browse", after=after, up_to=up_to, max=most))


def page(target: str) -> Call[Page]:
    """Some messages."""
    return Call(method="GET", target=target, headers=_ACCEPT, read=_page)


def consumer(queue: str, name: str) -> Call[Mapping[str, Any]]:
    """How far a consumer is."""
    return Call(method="GET", target=_target(queue, "consumers", name), read=Answer.members)


def start(queue: str, name: str) -> Call[Mapping[str, Any]]:
    """Begin an epoch. Sent again it begins another one, which does no harm: nobody has used the first."""
    return Call(method="POST", target=_target(queue, "consumers", name), read=Answer.members)


def claim(
    queue: str,
    name: str,
    batch: int,
    epoch: int,
    lease: float,
    most: int | None = None,
    most_bytes: int | None = None,
    up_to: int | None = None,
) -> Call[Mapping[str, Any] | None]:
    """Make a claim, or have it again; None where nothing is to be had."""
    wanted = {"batch": batch, "epoch": epoch, "lease": lease, "max": most, "max_bytes": most_bytes, "up_to": up_to}
    return Call(
        method="PUT",
        target=_target(queue, "consumers", name, "claim", **wanted),
        read=lambda answer: None if answer.status == 204 else answer.members(),
    )


def read_claim(queue: str, name: str, batch: int, epoch: int, start: int, stop: int, most: int) -> Call[Page]:
    """The first page of a part of a claim."""
    where = {"batch": batch, "epoch": epoch, "from": start, "to": stop, "max": most}
    return page(_target(queue, "consumers", name, "claim", **where))


def acknowledge(queue: str, name: str, batch: int, epoch: int) -> Call[None]:
    """Remove what a claim has."""
    target = _target(queue, "consumers", name, "claim", batch=batch, epoch=epoch)
    return Call(method="DELETE", target=target, read=nothing)


def _target(*segments: str, **parameters: int | float | None) -> str:
    path = "/" + "/".join(quote(segment, safe="@") for segment in segments)
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _page(answer: Answer) -> Page:
    if answer.headers.get("content-type") != COLUMNS:
        raise NotUnderstood(f"the daemon does not know {COLUMNS}: it must not be older than the data source")
    link = answer.headers.get("link", "")
    return Page(read_columns(answer.body), link[1:].partition(">")[0] if 'rel="next"' in link else None)
