"""The program mq with a fault planted in its cluster: ``python -m tests.cluster.planted FAULT [mq's arguments]``."""

from __future__ import annotations

import sys
from urllib.parse import parse_qsl, urlencode

from mq_etcd import membership

from mq.cli import main
from mq.cluster import node
from mq.storage.registry import make_storage


def forget_fence_and_time() -> None:
    """A master goes on until it is told that it is none, and nothing stops what it writes."""

    def unfenced(address: str, options: object) -> object:
        places, _, said = address.partition("?")
        query = dict(parse_qsl(said))
        query["fence"] = query["fence"].partition("@")[0].rpartition("-members/")[0] + "-none@0"
        return make_storage(f"{places}?{urlencode(query)}", options)  # type: ignore[arg-type]

    membership.make_storage = unfenced  # type: ignore[assignment]
    node.Tenure.lasts = property(lambda self: True)  # type: ignore[assignment, method-assign]


FAULTS = {"no-fence": forget_fence_and_time}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    main(prog_name="mq")
