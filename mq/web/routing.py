"""From a path to what can be done there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mq.web.operations import Operation


class Route(NamedTuple):
    """A path, and what can be done there.

    Attributes:
        path: its segments; None stands for any, which is handed on: first the queue, then the message or consumer.
        methods: operation by method; their order is that of Allow.
    """

    path: tuple[str | None, ...]
    methods: Mapping[str, Operation]


class Router:
    """Finds the route of a path, segment by segment. A fixed segment goes before one that may be anything.

    Args:
        routes: all there are.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Fork()
        for route in routes:
            fork = self._root
            for segment in route.path:
                fork = fork.ways.setdefault(segment, _Fork())
            fork.route = route

    def find(self, segments: Sequence[str]) -> tuple[Route, tuple[str, ...]] | None:
        """The route, and the segments that stand where its path has None; None where nothing is."""
        return self._root.follow(segments, 0, ())


class _Fork:
    """Where one segment has been read: what is here, and where the next one may lead."""

    __slots__ = ("route", "ways")

    def __init__(self) -> None:
        self.route: Route | None = None
        self.ways: dict[str | None, _Fork] = {}

    def follow(self, segments: Sequence[str], at: int, names: tuple[str, ...]) -> tuple[Route, tuple[str, ...]] | None:
        if at == len(segments):
            return None if self.route is None else (self.route, names)
        segment = segments[at]
        fixed = self.ways.get(segment)
        found = None if fixed is None else fixed.follow(segments, at + 1, names)
        if found is None and segment and (free := self.ways.get(None)) is not None:
            return free.follow(segments, at + 1, (*names, segment))
        return found
