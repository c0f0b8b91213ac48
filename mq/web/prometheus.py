"""What Prometheus scrapes: ``GET /-/metrics``, in its text format.

The names, what they count and their units are in ``docs/metrics.md``. At most :data:`MOST_QUEUES` queues have series of
their own. The others are summed under :data:`OTHERS`: a program that makes queues without end does not fill Prometheus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple, TypeVar

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

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)

STEP: Final = "step"
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
MOST_QUEUES: Final = 1000

COUNTED: Final = {
    Kind.PUBLISH: ("mq_messages_published", "messages published"),
    Kind.LEASE: ("mq_messages_leased", "message deliveries over all protocols, including redeliveries"),
    Kind.REQUEUE: (
        "mq_messages_requeued",
        ("messages requeued because a lease expired or a connection closed; an increase indicates failing consumers"),
    ),
    Kind.REMOVE: ("mq_messages_removed", "messages acknowledged or deleted"),
    Kind.EXPIRE: (
        "mq_messages_expired",
        ("expired messages that were deleted because their queue has no dead-letter queue"),
    ),
    Kind.DEAD_LETTER: (
        "mq_messages_dead_lettered",
        "messages moved to a dead-letter queue, counted under their original queue",
    ),
    Kind.REROUTE: ("mq_messages_moved", "messages moved to another queue by a client"),
}
"""Transitions that are shown: the name of the counter, without its ``_total``, and its help."""


TIMED: Final = {
    Span.PUBLISH.value: (
        "mq_publish_seconds",
        "time in seconds that mq takes to store a published message or batch of messages",
    ),
    Span.COMMIT.value: (
        "mq_commit_seconds",
        ("time in seconds that mq takes to sync a batch of changes to disk; an increase indicates a slow disk"),
    ),
    STEP: (
        "mq_event_loop_step_seconds",
        "duration of an event loop iteration in seconds; an increase means that mq is short of processor time",
    ),
    DELIVERY_AGE: ("mq_delivery_age_seconds", "age in seconds of a message when it is delivered, including its delay"),
}
"""Durations that are shown: the name of the histogram, and its help."""


class Scrape(NamedTuple):
    """What a page is made of.

    Attributes:
        is_ready: whether the store takes changes.
        room: of the root's file system; None where the store has none.
        led_elsewhere: names of queues that another node of the cluster counts: their depths are its to tell.
        firings: how many of their firings were published, skipped, or failed.
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
    yield InfoMetricFamily("mq_build", "mq version", {"version": snapshot.version})
    yield GaugeMetricFamily("mq_store_ready", "1 if mq's storage accepts writes, otherwise 0", float(snapshot.is_ready))
    yield GaugeMetricFamily(
        "mq_clock_untrusted",
        "1 if mq does not trust the wall clock, otherwise 0; while the value is 1, no messages expire and no "
        "schedules run",
        float(snapshot.is_clock_untrusted),
    )
    yield GaugeMetricFamily("mq_queues", "number of queues", len(snapshot.queues))
    yield _by_label(
        GaugeMetricFamily("mq_connections", "open client connections", labels=["protocol"]), snapshot.connections
    )
    yield GaugeMetricFamily("mq_schedules", "number of schedules", snapshot.schedules)
    text = "schedule runs by outcome; an increase in failed runs means that messages were not published"
    yield _by_label(CounterMetricFamily("mq_schedule_firings", text, labels=["outcome"]), snapshot.firings)
    reserved, limit = snapshot.memory
    yield GaugeMetricFamily(
        "mq_memory_reserved_bytes",
        "bytes of memory reserved for clients; when the value reaches mq_memory_limit_bytes, requests are refused",
        reserved,
    )
    yield GaugeMetricFamily(
        "mq_memory_limit_bytes",
        "maximum memory in bytes that can be reserved across all clients",
        limit,
    )
    text = "memory reservations that were refused; an increase means that clients send or receive too much data at once"
    yield _by_label(CounterMetricFamily("mq_memory_refusals", text, labels=["use"]), snapshot.memory_refused)
    reserved, limit = snapshot.staged
    yield GaugeMetricFamily(
        "mq_staging_reserved_bytes",
        "disk space in bytes that is reserved for message bodies being uploaded and for uncommitted Spark writes",
        reserved,
    )
    yield GaugeMetricFamily(
        "mq_staging_limit_bytes",
        "maximum disk space in bytes for message bodies being uploaded and for uncommitted Spark writes",
        limit,
    )
    yield CounterMetricFamily(
        "mq_staging_refusals",
        "requests refused because mq_staging_limit_bytes was reached; an increase means that clients upload too much "
        "data at once",
        snapshot.disk_refused,
    )
    text = "slow clients that mq disconnected to free memory or disk space for other clients"
    yield _by_label(CounterMetricFamily("mq_slow_clients_dropped", text, labels=["use"]), snapshot.slow_ended)
    text = "connections and publish requests that were refused or delayed because a user reached a limit"
    yield _by_label(CounterMetricFamily("mq_user_limit_refusals", text, labels=["limit"]), snapshot.limit_refused)
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


def _by_label(family: _Family, values: Mapping[str, float]) -> _Family:
    """The family with a series for each of these, by the only label that it has."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _of_health(health: Health) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "mq_store_damaged_files",
        "files, folders and records found missing or damaged at startup; if the value is above 0, run mq doctor",
        len(health.damages),
    )
    yield GaugeMetricFamily(
        "mq_messages_damaged",
        "damaged messages found since startup; if the value is above 0, run mq doctor",
        len(health.damaged),
    )
    yield GaugeMetricFamily(
        "mq_messages_torn", "partially written, unconfirmed messages that were deleted at startup", health.torn
    )
    yield GaugeMetricFamily(
        "mq_store_foreign_files", "files in mq's root folder that do not belong to mq and are ignored", health.skipped
    )
    yield CounterMetricFamily(
        "mq_messages_unchecked",
        "messages that were read without verification because they have no checksum",
        health.unchecked,
    )
    yield CounterMetricFamily(
        "mq_messages_verified",
        "number of stored messages that the background verification has checked against their checksums",
        health.verified,
    )
    yield GaugeMetricFamily(
        "mq_check_progress_ratio",
        "progress of the current background verification of messages, from 0 to 1",
        health.progress,
    )
    yield GaugeMetricFamily(
        "mq_check_completed_timestamp_seconds",
        "Unix time at which the last background verification of messages completed; 0 if none has completed",
        health.ended_seconds,
    )


def _room(room: os.statvfs_result) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "mq_root_size_bytes",
        "size in bytes of the file system that holds mq's root folder",
        room.f_blocks * room.f_frsize,
    )
    yield GaugeMetricFamily(
        "mq_root_free_bytes",
        "bytes available on the file system that holds mq's root folder; at 0, new messages are refused",
        room.f_bavail * room.f_frsize,
    )
    yield GaugeMetricFamily(
        "mq_root_free_inodes",
        "number of files that can still be created on the file system that holds mq's root folder",
        room.f_favail,
    )


def _counters(totals: Totals) -> Iterator[Metric]:
    for kind, (name, help) in COUNTED.items():
        counted = {queue: counts[kind] for queue, counts in totals.counts.items() if counts[kind]}
        yield _by_label(CounterMetricFamily(name, help, labels=["queue"]), counted)
    published = CounterMetricFamily(
        "mq_published_bytes", "total size of published message bodies, in bytes", labels=["queue"]
    )
    yield _by_label(published, totals.published_bytes)


def _of_cluster(seen: Membership) -> Iterator[Metric]:
    """What a node of a cluster tells; nothing where there is none."""
    if not seen.node:
        return
    is_master, left = seen.role == "master", seen.lease_remaining_seconds or 0.0
    yield GaugeMetricFamily("mq_cluster_members", "number of nodes that are members of the cluster", len(seen.nodes))
    yield GaugeMetricFamily("mq_cluster_master", "1 if this node is the master, otherwise 0", float(is_master))
    yield GaugeMetricFamily(
        "mq_cluster_available",
        "1 if a master serves the cluster's queues, otherwise 0; while the value is 0, publish requests fail "
        "with status 503",
        float(seen.is_available),
    )
    yield CounterMetricFamily(
        "mq_cluster_failovers",
        "master changes since this node started; an increase indicates slow disks or slow connections between nodes",
        value=seen.failovers,
    )
    yield GaugeMetricFamily(
        "mq_cluster_lease_remaining_seconds", "seconds until this node's membership expires unless it is renewed", left
    )
    up = GaugeMetricFamily(
        "mq_cluster_link_up",
        "1 if this node's outgoing connection to the neighboring node is up, otherwise 0",
        labels=["neighbor"],
    )
    heard = GaugeMetricFamily(
        "mq_cluster_link_inbound_up",
        "1 if the incoming connection from the neighboring node to this node is up, otherwise 0",
        labels=["neighbor"],
    )
    lag = GaugeMetricFamily(
        "mq_cluster_link_latency_seconds", "response time of the neighboring node in seconds", labels=["neighbor"]
    )
    for link in seen.links:
        up.add_metric([link.address], float(link.is_up))
        heard.add_metric([link.address], float(link.is_inbound_up))
        if link.latency_seconds is not None:
            lag.add_metric([link.address], link.latency_seconds)
    yield from (up, heard, lag)


def _stores(snapshot: Scrape) -> Iterator[Metric]:
    """Where each queue lives, of those that have series of their own."""
    stores = InfoMetricFamily(
        "mq_queue",
        "where the queue is stored: on disk, in memory, on this cluster node only (node) or on all "
        "nodes (cluster). The value is always 1",
        labels=["queue"],
    )
    for status in snapshot.queues:
        if status.name in snapshot.totals.counts:
            stores.add_metric([status.name], {"store": status.store})
    yield stores


def _depths(snapshot: Scrape) -> Iterator[Metric]:
    depths = GaugeMetricFamily(
        "mq_queue_messages", "messages in a queue by state: ready, leased or delayed", labels=["queue", "state"]
    )
    oldest = GaugeMetricFamily(
        "mq_queue_oldest_seconds",
        "age in seconds of the next message to be delivered; an increase means that consumers cannot keep up",
        labels=["queue"],
    )
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
