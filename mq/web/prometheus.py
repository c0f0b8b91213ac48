"""What Prometheus scrapes: ``GET /-/metrics``, in its text format.

The names, what they count and their units are in ``docs/metrics.md``. At most :data:`MOST_QUEUES` queues have series of
their own. The others are summed under :data:`OTHERS`: a program that makes queues without end does not fill Prometheus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from mq.broker import QueueStatus
from mq.broker.api import ALONE, Health, Membership
from mq.lifecycle import Kind, Span
from mq.observers.metrics import DELIVERY_AGE, OTHERS, Durations, Totals

STEP: Final = "step"
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
MOST_QUEUES: Final = 1000

COUNTED: Final = {
    Kind.PUBLISH: ("mq_messages_published", "messages that were stored"),
    Kind.LEASE: ("mq_messages_leased", "messages delivered, by a lease or over AMQP; a redelivery counts again"),
    Kind.REQUEUE: ("mq_messages_requeued", "messages that came back unacknowledged: their lease or connection ended"),
    Kind.REMOVE: ("mq_messages_removed", "messages that were acknowledged or removed"),
    Kind.EXPIRE: ("mq_messages_expired", "messages whose time to live ended, and that have no dead-letter queue"),
    Kind.DEAD_LETTER: (
        "mq_messages_dead_lettered",
        "messages that went to a dead-letter queue, counted where they died",
    ),
    Kind.REROUTE: ("mq_messages_moved", "messages that a client moved to another queue"),
}
"""Transitions that are shown: the name of the counter, without its ``_total``, and its help."""


TIMED: Final = {
    Span.PUBLISH.value: (
        "mq_publish_seconds",
        "time from a publish, of one message or a batch, to its answer, in the broker",
    ),
    Span.COMMIT.value: ("mq_commit_seconds", "time until a batch that was given to the store was durable"),
    STEP: ("mq_event_loop_step_seconds", "length of a pass of the event loop: a step of each ready task"),
    DELIVERY_AGE: ("mq_delivery_age_seconds", "age of a message at each delivery, its delay included"),
}
"""Durations that are shown: the name of the histogram, and its help."""


class Scrape(NamedTuple):
    """What a page is made of.

    Attributes:
        version: of mq.
        totals: counts since the start.
        queues: those there are.
        is_ready: whether the store takes changes.
        room: of the root's file system; None where the store has none.
        now_ns: nanoseconds since 1970.
        durations: how long things took, by name.
        connections: how many are open over each protocol.
        led_elsewhere: names of queues that another node of the cluster counts: their depths are its to tell.
        schedules: how many there are.
        firings: how many of their firings were published, skipped, or failed.
        cluster: as this node sees it.
        memory: how many bytes clients have reserved, of how many they may.
        memory_refused: how often they were refused more, by what it was for.
        staged: how many bytes of disk arriving bodies have reserved, of how many they may.
        disk_refused: how often they were refused more.
        limit_refused: how often limits of users were in the way, by the limit.
        slow_ended: how often slow clients had to give it up, by what it was for.
        is_clock_untrusted: whether the wall clock is in doubt, so that nothing expires and no schedule fires.
        health: what the store knows of damage; None where it finds none by itself.
    """

    version: str
    totals: Totals
    queues: Sequence[QueueStatus]
    is_ready: bool
    room: os.statvfs_result | None
    now_ns: int
    durations: Mapping[str, Durations] = {}
    connections: Mapping[str, int] = {}
    led_elsewhere: Set[str] = frozenset()
    schedules: int = 0
    firings: Mapping[str, int] = {}
    cluster: Membership = ALONE
    memory: tuple[int, int] = (0, 0)
    memory_refused: Mapping[str, int] = {}
    staged: tuple[int, int] = (0, 0)
    disk_refused: int = 0
    limit_refused: Mapping[str, int] = {}
    slow_ended: Mapping[str, int] = {}
    is_clock_untrusted: bool = False
    health: Health | None = None


def page(snapshot: Scrape) -> bytes:
    """The page, in the text format. It takes its time with many queues: call it in a thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(lambda: families(snapshot)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    """What the registry asks."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect


def families(snapshot: Scrape) -> Iterator[Metric]:
    """Return what is shown of a scrape, one metric after the other."""
    yield InfoMetricFamily("mq_build", "which mq this is", {"version": snapshot.version})
    yield GaugeMetricFamily("mq_store_ready", "1 while the store takes changes, else 0", float(snapshot.is_ready))
    yield GaugeMetricFamily(
        "mq_clock_untrusted",
        "1 while the wall clock is in doubt: nothing expires, no schedule fires",
        float(snapshot.is_clock_untrusted),
    )
    yield GaugeMetricFamily("mq_queues", "queues there are", len(snapshot.queues))
    connections = GaugeMetricFamily("mq_connections", "connections that are open", labels=["protocol"])
    for protocol, count in snapshot.connections.items():
        connections.add_metric([protocol], count)
    yield connections
    yield GaugeMetricFamily("mq_schedules", "schedules there are", snapshot.schedules)
    firings = CounterMetricFamily("mq_schedule_firings", "firings of schedules", labels=["outcome"])
    for fate, count in snapshot.firings.items():
        firings.add_metric([fate], count)
    yield firings
    reserved, limit = snapshot.memory
    yield GaugeMetricFamily("mq_memory_reserved_bytes", "memory that clients have reserved", reserved)
    yield GaugeMetricFamily("mq_memory_limit_bytes", "memory that clients may reserve together", limit)
    refused = CounterMetricFamily("mq_memory_refusals", "times that memory was refused to a client", labels=["use"])
    for use, count in snapshot.memory_refused.items():
        refused.add_metric([use], count)
    yield refused
    reserved, limit = snapshot.staged
    yield GaugeMetricFamily("mq_staging_reserved_bytes", "disk that arriving bodies and write jobs reserve", reserved)
    yield GaugeMetricFamily("mq_staging_limit_bytes", "disk that they may reserve together", limit)
    yield CounterMetricFamily("mq_staging_refusals", "times that disk was refused to them", snapshot.disk_refused)
    text = "times that a slow client had to give up its memory or disk, for others wanted it"
    ended = CounterMetricFamily("mq_slow_clients_dropped", text, labels=["use"])
    for use, count in snapshot.slow_ended.items():
        ended.add_metric([use], count)
    yield ended
    text = "times that the limit of a user was in the way"
    limited = CounterMetricFamily("mq_user_limit_refusals", text, labels=["limit"])
    for kind, count in snapshot.limit_refused.items():
        limited.add_metric([kind], count)
    yield limited
    yield from _of_cluster(snapshot.cluster)
    if snapshot.health is not None:
        yield from _of_health(snapshot.health)
    if snapshot.room is not None:
        yield from _room(snapshot.room)
    yield from _counters(snapshot.totals)
    yield from _stores(snapshot)
    yield from _depths(snapshot)
    for name, found in snapshot.durations.items():
        yield HistogramMetricFamily(*TIMED[name], buckets=found.buckets, sum_value=found.total)


def _of_health(health: Health) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "mq_store_damaged_files",
        "records, folders and other files found lost or unreadable at the start",
        len(health.damages),
    )
    yield GaugeMetricFamily("mq_messages_damaged", "messages found damaged since the start", len(health.damaged))
    yield GaugeMetricFamily("mq_messages_torn", "torn messages, never confirmed, that the start took away", health.torn)
    yield GaugeMetricFamily("mq_store_foreign_files", "names in the root that are not mq's, left alone", health.skipped)
    yield CounterMetricFamily("mq_messages_unchecked", "reads of messages without a checksum", health.unchecked)
    yield CounterMetricFamily("mq_messages_verified", "messages that the background check has read", health.verified)
    yield GaugeMetricFamily("mq_check_progress_ratio", "part of the background check's pass done", health.progress)
    yield GaugeMetricFamily(
        "mq_check_completed_timestamp_seconds",
        "when the last complete pass ended; 0 before the first",
        health.ended_seconds,
    )


def _room(room: os.statvfs_result) -> Iterator[Metric]:
    yield GaugeMetricFamily("mq_root_size_bytes", "size of the root's file system", room.f_blocks * room.f_frsize)
    yield GaugeMetricFamily(
        "mq_root_free_bytes", "free there, for users other than root", room.f_bavail * room.f_frsize
    )
    yield GaugeMetricFamily("mq_root_free_inodes", "files that can still be made there", room.f_favail)


def _counters(totals: Totals) -> Iterator[Metric]:
    for kind, (name, help) in COUNTED.items():
        family = CounterMetricFamily(name, help, labels=["queue"])
        for queue, counts in totals.counts.items():
            if counts[kind]:
                family.add_metric([queue], counts[kind])
        yield family
    published = CounterMetricFamily("mq_published_bytes", "bytes of the bodies that were stored", labels=["queue"])
    for queue, size in totals.published_bytes.items():
        published.add_metric([queue], size)
    yield published


def _of_cluster(seen: Membership) -> Iterator[Metric]:
    """What a node of a cluster tells; nothing where there is none."""
    if not seen.node:
        return
    is_master, left = seen.role == "master", seen.lease_remaining_seconds or 0.0
    yield GaugeMetricFamily("mq_cluster_members", "nodes that are members of the cluster now", len(seen.nodes))
    yield GaugeMetricFamily("mq_cluster_master", "1 while this node is master, else 0", float(is_master))
    yield GaugeMetricFamily(
        "mq_cluster_available", "1 while a node serves the cluster's queues", float(seen.is_available)
    )
    yield CounterMetricFamily("mq_cluster_failovers", "new masters since the start of this node", value=seen.failovers)
    yield GaugeMetricFamily("mq_cluster_lease_remaining_seconds", "how long this node certainly stays a member", left)
    up = GaugeMetricFamily("mq_cluster_link_up", "1 while the link to a neighbor holds", labels=["neighbor"])
    heard = GaugeMetricFamily("mq_cluster_link_inbound_up", "1 while its link to this node does", labels=["neighbor"])
    lag = GaugeMetricFamily(
        "mq_cluster_link_latency_seconds", "how long a neighbor takes for an answer", labels=["neighbor"]
    )
    for link in seen.links:
        up.add_metric([link.address], float(link.is_up))
        heard.add_metric([link.address], float(link.is_inbound_up))
        if link.latency_seconds is not None:
            lag.add_metric([link.address], link.latency_seconds)
    yield from (up, heard, lag)


def _stores(snapshot: Scrape) -> Iterator[Metric]:
    """Where each queue lives, of those that have series of their own."""
    stores = InfoMetricFamily("mq_queue", "where a queue lives: disk, memory, node, cluster", labels=["queue"])
    for status in snapshot.queues:
        if status.name in snapshot.totals.counts:
            stores.add_metric([status.name], {"store": status.store})
    yield stores


def _depths(snapshot: Scrape) -> Iterator[Metric]:
    depths = GaugeMetricFamily(
        "mq_queue_messages", "messages in a queue: ready, leased, delayed", labels=["queue", "state"]
    )
    oldest = GaugeMetricFamily("mq_queue_oldest_seconds", "age of the message that is delivered next", labels=["queue"])
    ready = leased = delayed = 0
    age = 0.0
    for status in snapshot.queues:
        if status.name in snapshot.led_elsewhere:
            continue
        its_age = max(0.0, (snapshot.now_ns - status.oldest_ns) / 1e9) if status.oldest_ns is not None else 0.0
        if status.name in snapshot.totals.counts:
            for state, count in (("ready", status.ready), ("leased", status.leased), ("delayed", status.delayed)):
                depths.add_metric([status.name, state], count)
            oldest.add_metric([status.name], its_age)
        else:
            ready, leased, delayed = ready + status.ready, leased + status.leased, delayed + status.delayed
            age = max(age, its_age)
    for state, count in (("ready", ready), ("leased", leased), ("delayed", delayed)):
        depths.add_metric([OTHERS, state], count)
    oldest.add_metric([OTHERS], age)
    yield depths
    yield oldest
