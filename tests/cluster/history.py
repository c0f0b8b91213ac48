"""What happened to a cluster under faults, out of the logs of its clients, of its nodes and of a witness; and whether
it is what was promised."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

ANSWER = re.compile(r"term (\d+) answered request (\S+) at monotonic time (\d+) ns")
MASTER = re.compile(r"node (\S+) is serving \d+ queues? in term (\d+)")
WRITES = ("publish", "remove", "acknowledge", "declare", "delete_queue", "take", "put_back", "requeue", "extend")


@dataclass
class History:
    """What happened.

    Attributes:
        answers: (time in ns, term, method) of whatever a master answered that changes something.
        members: (revision, node, revision at which its membership began, or None at its end), in order.
        begins: when each term answered something for the first time, in ns.
    """

    clients: list[Mapping[str, Any]] = field(default_factory=list)
    answers: list[tuple[int, int, str]] = field(default_factory=list)
    masters: list[tuple[int, str]] = field(default_factory=list)
    members: list[tuple[int, str, int | None]] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, clients: Iterable[Path], nodes: Iterable[Path], witness: Path) -> History:
        """Out of the logs."""
        history = cls()
        for path in clients:
            history.clients += _lines(path)
        for path in nodes:
            for line in path.read_text(errors="replace").splitlines():
                if found := ANSWER.search(line):
                    term, method, at = int(found[1]), found[2], int(found[3])
                    history.begins[term] = min(at, history.begins.get(term, at))
                    if method in WRITES:
                        history.answers.append((at, term, method))
                elif found := MASTER.search(line):
                    history.masters.append((int(found[2]), found[1]))
        for each in _lines(witness):
            history.members.append((each["revision"], each["node"], each["made"]))
        return history

    def bodies(self, *events: str) -> set[str]:
        """Of which messages clients noted one of these."""
        return {line["body"] for line in self.clients if line["event"] in events and line["body"]}

    def violations(self) -> list[str]:
        """What was promised and is not so. The queue must have been emptied in the end."""
        of_messages = [*self.lost(), *self.invented(), *self.twice(), *self.come_back(), *self.taken()]
        return [*of_messages, *self.two_queues(), *self.ghosts(), *self.not_oldest(), *self.too_late()]

    def lost(self) -> Iterator[str]:
        """Every message that was confirmed was received by somebody, if nobody tried to purge its queue."""
        for body in sorted(self.bodies("stored") - self.bodies("got", "purging")):
            yield f"{body} was confirmed, and nobody ever got it"

    def invented(self) -> Iterator[str]:
        """Nothing is received that nobody published."""
        for body in sorted(self.bodies("got") - self.bodies("try")):
            yield f"{body} was received, and nobody published it"

    def twice(self) -> Iterator[str]:
        """What was published once is one message, whoever stored it."""
        ids: dict[str, set[str]] = defaultdict(set)
        for line in self.clients:
            if "id" in line:
                ids[line["body"]].add(line["id"])
        for body, found in sorted(ids.items()):
            if len(found) > 1:
                yield f"{body} was stored twice: {sorted(found)}"

    def come_back(self) -> Iterator[str]:
        """What was removed is not handed out to who asks after that."""
        removed = {line["body"]: line["at"] for line in self.clients if line["event"] == "removed"}
        for line in self.clients:
            if line["event"] == "got" and line.get("asked", 0) > removed.get(line["body"], line["at"]):
                yield f"{line['body']} was removed, and somebody got it who asked later"

    def taken(self) -> Iterator[str]:
        """A lease that was extended is the only one for so long, if the master stays."""
        got = defaultdict(list)
        for line in self.clients:
            if line["event"] == "got" and "asked" in line:
                got[line["body"]].append(line)
        for line in self.clients:
            if line["event"] == "extended":
                ends = line["asked"] + line["seconds"] * 1e9
                for other in got[line["body"]]:
                    is_other = line["at"] < other["asked"] and other["at"] < ends
                    if is_other and not any(line["asked"] <= at <= other["at"] for at in self.begins.values()):
                        yield f"{line['body']} was handed out again while its lease, which was extended, went on"

    def two_queues(self) -> Iterator[str]:
        """A name that the cluster has is no node's."""
        places: dict[str, set[str]] = defaultdict(set)
        for line in self.clients:
            if line["event"] == "made":
                places[line["queue"]].add(line["place"])
        for queue, found in sorted(places.items()):
            if "cluster" in found and len(found) > 1:
                yield f"there are two queues {queue}: {sorted(found)}"

    def ghosts(self) -> Iterator[str]:
        """What was deleted is known to be gone."""
        for line in self.clients:
            if line["event"] == "ghost":
                yield f"queue {line['body']} was deleted, and node {line['node']} answers {line['status']}"

    def not_oldest(self) -> Iterator[str]:
        """Every master was the oldest member when it became that."""
        oldest = list(self._oldest())
        terms = [term for term, _ in sorted(self.masters)]
        if len(set(terms)) != len(terms):
            yield f"two nodes have served in the same term: {self.masters}"
        place = 0
        for term, node in sorted(self.masters):
            if (term, node) not in oldest[place:]:
                yield f"node {node} became master in term {term}, and was not the oldest: {oldest}"
            else:
                place = oldest.index((term, node), place)

    def too_late(self) -> Iterator[str]:
        """Who is deposed answers nothing after its successor's first answer."""
        first: dict[int, int] = {}
        last: dict[int, tuple[int, str]] = {}
        for at, term, method in sorted(self.answers):
            first.setdefault(term, at)
            last[term] = (at, method)
        terms = sorted(first)
        for earlier, later in pairwise(terms):
            at, method = last[earlier]
            if at > first[later]:
                late = (at - first[later]) / 1e6
                yield f"term {earlier} answered {method} {late:.1f} ms after the first answer of term {later}"

    def served_after(self, at: int, term: int) -> float | None:
        """Seconds from an instant to the first message that was stored in a later term; None for never."""
        times = [when for when, number, method in self.answers if number > term and method == "publish" and when > at]
        return (min(times) - at) / 1e9 if times else None

    def _oldest(self) -> Iterator[tuple[int, str]]:
        """Who was the oldest, one after the other."""
        made: dict[str, int] = {}
        for _, node, number in self.members:
            if number is None:
                made.pop(node, None)
            else:
                made[node] = number
            if made:
                oldest = min(made, key=lambda name: made[name])
                yield made[oldest], oldest


def _lines(path: Path) -> Sequence[Mapping[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
