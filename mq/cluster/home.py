"""The place where the highly available queues are served while this node is master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mq.cluster.term import Holder, Term


class Home:
    """A :class:`~mq.cluster.directory.Place`: this node's own term, asked by its own doors."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._holder = Holder()

    @property
    def term(self) -> int:
        """Of the mastership."""
        return self._term.number

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a method of the term."""
        return await self._term.perform(self._holder, method, args, named)

    def end_exclusion(self, number: int) -> None:
        """A consumer that was alone has gone."""
        self._holder.end_exclusion(number)

    def leave(self) -> None:
        """The term ends by itself."""
