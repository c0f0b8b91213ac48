"""What Prometheus scrapes, and what is shipped for it: the rules and the dashboard ask only for what there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mq.broker import Broker, BrokerConfig, QueueStatus, open_broker
from mq.broker.api import Health, Membership, NeighborLink
from mq.broker.settings import QueueSettings
from mq.lifecycle import Histogram, Kind
from mq.message import MessageIds
from mq.observers.metrics import OTHERS, Durations, Metrics
from mq.storage.interface import Damage
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from mq.web.prometheus import COUNTED, MOST_QUEUES, STEP, Scrape, page
from tests.web.talking import MAX_BODY, ask, publish

TREE: Final = Path(__file__).resolve().parent.parent.parent
ALERTS: Final = TREE / "deploy" / "prometheus" / "alerts.yml"
CASES: Final = ALERTS.with_name("alerts_test.yml")
DASHBOARD: Final = TREE / "deploy" / "grafana" / "mq.json"
PAGE: Final = TREE / "docs" / "metrics.md"
NAME: Final = re.compile(r"\b(?:mq|process)_[a-z_]+\b")

OF_HISTOGRAMS: Final = re.compile(r"(?<=_seconds)_(?:bucket|sum|count)$")

Samples = dict[tuple[str, str, str], float]
"""(name, queue, state) -> value."""


def samples(text: str) -> Samples:
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(each.name, each.labels.get("queue", ""), each.labels.get("state", "")): each.value for each in found}


def status(name: str, ready: int = 0, oldest_ns: int | None = None) -> QueueStatus:
    return QueueStatus(name, QueueSettings(), ready, 0, 0, oldest_ns)


def happened(metrics: Metrics, kind: Kind, queue: str, times: int = 1) -> None:
    metrics.counted(kind, queue, times, 3 * times if kind is Kind.PUBLISH else 0)


def scraped(metrics: Metrics, *queues: QueueStatus, most: int = MOST_QUEUES) -> Samples:
    totals = metrics.totals({queue.name for queue in queues}, most)
    return samples(page(Scrape("1", totals, queues, True, None, 20_000_000_000)).decode())


async def test_a_scrape_has_counts_depths_and_room(store: MemoryStorage, tmp_path: Path) -> None:
    metrics = Metrics(folder=str(tmp_path))
    async with open_broker(store, BrokerConfig(max_body=MAX_BODY), observers=[metrics]) as broker:
        endpoints = Endpoints(broker, MAX_BODY, metrics)
        await broker.create_queue("q")
        await publish(endpoints, "q", b"four")
        await publish(endpoints, "q", b"four")
        assert (await ask(endpoints, "GET", "/q/messages")).status == 200
        reply = await ask(endpoints, "GET", "/-/metrics")
    assert reply.status == 200
    assert dict(reply.headers)["content-type"].startswith("text/plain; version=0.0.4")
    assert isinstance(reply.body, bytes)
    found = samples(reply.body.decode())
    assert found["mq_messages_published_total", "q", ""] == 2
    assert found["mq_messages_leased_total", "q", ""] == 1
    assert found["mq_published_bytes_total", "q", ""] == 8
    assert [found["mq_queue_messages", "q", state] for state in ("ready", "leased", "delayed")] == [1, 1, 0]
    assert found["mq_store_ready", "", ""] == 1
    size = os.statvfs(tmp_path)
    assert found["mq_root_size_bytes", "", ""] == size.f_blocks * size.f_frsize
    assert found["process_cpu_seconds_total", "", ""] > 0


async def test_a_folder_that_is_gone_has_no_room_and_the_rest_is_told(broker: Broker) -> None:
    endpoints = Endpoints(broker, MAX_BODY, Metrics(folder="/no/such/folder"))
    reply = await ask(endpoints, "GET", "/-/metrics")
    assert isinstance(reply.body, bytes)
    assert "mq_store_ready 1.0" in reply.body.decode()
    assert "mq_root_free_bytes" not in reply.body.decode()


def test_the_age_of_the_oldest_message_is_told_in_seconds() -> None:
    found = scraped(Metrics(), status("q", 1, 5_000_000_000), status("ahead", 1, 30_000_000_000))
    assert found["mq_queue_oldest_seconds", "q", ""] == 15
    assert found["mq_queue_oldest_seconds", "ahead", ""] == 0


def test_queues_beyond_the_limit_are_summed_and_stay_there() -> None:
    """Else a counter would go back, which Prometheus takes for a restart."""
    metrics = Metrics()
    queues = [status(name, ready=1, oldest_ns=0) for name in "abcd"]
    for queue in "abcd":
        happened(metrics, Kind.PUBLISH, queue, 10)
    found = scraped(metrics, *queues, most=2)
    assert {queue for name, queue, _ in found if name == "mq_messages_published_total"} == {"a", "b", OTHERS}
    assert found["mq_messages_published_total", OTHERS, ""] == 20
    assert found["mq_published_bytes_total", OTHERS, ""] == 60
    assert found["mq_queue_messages", OTHERS, "ready"] == 2
    assert found["mq_queue_oldest_seconds", OTHERS, ""] == 20
    found = scraped(metrics, *queues[1:], most=2)  # a is deleted: its count goes to the others, and c stays there
    assert {queue for name, queue, _ in found if name == "mq_messages_published_total"} == {"b", OTHERS}
    assert found["mq_messages_published_total", OTHERS, ""] == 30
    assert found["mq_published_bytes_total", OTHERS, ""] == 90


def test_depths_that_another_node_tells_are_left_to_it() -> None:
    """Else a sum over the nodes has them three times, and a rule sees messages where nobody consumes."""
    metrics = Metrics()
    queues = [status("here", ready=2), status("there", ready=3)]
    totals = metrics.totals({"here", "there"}, MOST_QUEUES)
    text = page(Scrape("1", totals, queues, True, None, 0, led_elsewhere={"there"})).decode()
    found = samples(text)
    assert {queue for name, queue, _ in found if name == "mq_queue_messages"} == {"here", OTHERS}
    assert {queue for name, queue, _ in found if name == "mq_queue_oldest_seconds"} == {"here", OTHERS}
    assert found["mq_queue_messages", OTHERS, "ready"] == 0
    assert found["mq_queues", "", ""] == 2


def test_scrape_has_damage_the_background_check_and_a_clock_in_doubt() -> None:
    health = Health()
    health.damages = [Damage("queue", "q", "/root/state/records/queue/kq.1", "the content does not match its checksum")]
    health.damaged = {MessageIds().new(): ("q", "the content does not match its checksum") for _ in range(2)}
    health.torn, health.skipped, health.unchecked, health.verified = 3, 4, 5, 6
    health.progress, health.ended_seconds = 0.25, 1_700_000_000.0
    text = page(Scrape("1", Metrics().totals(set(), 1), [], True, None, 0, health=health, is_clock_untrusted=True))
    found = samples(text.decode())
    assert {name: found[name, "", ""] for name in OF_DAMAGE} == OF_DAMAGE


OF_DAMAGE: Final = {
    "mq_store_damaged_files": 1,
    "mq_messages_damaged": 2,
    "mq_messages_torn": 3,
    "mq_store_foreign_files": 4,
    "mq_messages_unchecked_total": 5,
    "mq_messages_verified_total": 6,
    "mq_check_progress_ratio": 0.25,
    "mq_check_completed_timestamp_seconds": 1_700_000_000,
    "mq_clock_untrusted": 1,
}


async def test_how_long_things_took_is_told(store: MemoryStorage) -> None:
    metrics = Metrics()
    async with open_broker(store, BrokerConfig(max_body=MAX_BODY), observers=[metrics]) as broker:
        endpoints = Endpoints(broker, MAX_BODY, metrics)
        await broker.create_queue("q")
        await publish(endpoints, "q", b"x")
        await publish(endpoints, "q", b"x")
        assert (await ask(endpoints, "GET", "/q/messages")).status == 200
        assert len(await broker.hold("q")) == 1
        reply = await ask(endpoints, "GET", "/-/metrics")
    assert isinstance(reply.body, bytes)
    lines = reply.body.decode()
    assert 'mq_publish_seconds_bucket{le="10.0"} 2.0' in lines
    assert 'mq_delivery_age_seconds_bucket{le="60.0"} 2.0' in lines
    found = samples(lines)
    assert found["mq_commit_seconds_count", "", ""] >= 2
    assert 'mq_connections{protocol="amqp"} 0.0' in lines
    assert 'mq_schedule_firings_total{outcome="failed"} 0.0' in lines
    assert found["mq_schedules", "", ""] == 0
    assert found["mq_publish_seconds_sum", "", ""] > 0
    steps = [
        float(line.rpartition(" ")[2]) for line in lines.splitlines() if "mq_event_loop_step_seconds_bucket" in line
    ]
    assert steps == sorted(steps)
    assert steps[0] > 10  # most steps are short
    assert found["mq_event_loop_step_seconds_count", "", ""] == steps[-1]


def test_a_value_is_counted_where_it_belongs() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert (histogram.cumulative(), histogram.total) == ([("1.0", 2), ("2.0", 3), ("+Inf", 4)], 6.0)


def test_a_name_that_looks_like_markup_is_a_label() -> None:
    metrics = Metrics()
    happened(metrics, Kind.PUBLISH, 'a"b\\c')
    assert scraped(metrics, status('a"b\\c'))["mq_messages_published_total", 'a"b\\c', ""] == 1


# What is shipped


def everything() -> str:
    """A page on which everything has happened once."""
    metrics = Metrics()
    for kind in Kind:
        happened(metrics, kind, "q")
    totals = metrics.totals({"q"}, 1)
    room = os.statvfs("/")
    snapshot = Scrape(
        "1",
        totals,
        [status("q")],
        True,
        room,
        0,
        {**metrics.durations(), STEP: Durations([("0.001", 1), ("+Inf", 1)], 0.0)},
        {"http": 1},
    )
    link = NeighborLink("10.9.0.2:5671", "b", is_up=True, is_inbound_up=True, latency_seconds=0.001)
    cluster = Membership("a", "master", (), 1, True, 1, 0, 5, 4.25, (link,))
    snapshot = snapshot._replace(schedules=1, firings={"published": 1}, cluster=cluster)
    return page(
        snapshot._replace(
            memory_refused={"input": 1}, slow_ended={"body": 1}, limit_refused={"connections": 1}, health=Health()
        )
    ).decode()


def shown() -> set[str]:
    """Every name on that page."""
    return {sample.name for family in text_string_to_metric_families(everything()) for sample in family.samples}


def test_the_rules_ask_for_what_there_is() -> None:
    asked = {name for line in ALERTS.read_text().splitlines() if "summary" not in line for name in NAME.findall(line)}
    assert len(asked) > 8
    assert asked <= shown()


def test_the_dashboard_asks_for_what_there_is() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for expression in targets for name in NAME.findall(expression)}
    assert len(asked) > 8
    assert asked <= shown()


def test_the_page_has_a_row_for_each() -> None:
    rows = set(re.findall(r"^\| `(mq_[a-z_]+)", PAGE.read_text(), re.MULTILINE))
    assert rows == {OF_HISTOGRAMS.sub("", name) for name in shown() if name.startswith("mq_")}
    assert all(f"{name}_total" in rows for name, _ in COUNTED.values())


def promtool(*words: str | Path, given: str = "") -> None:
    """Ask Prometheus' own judge; what it says against it fails the test."""
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool here: sudo bash tests/setup-system.sh --yes")
    told = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 0, told.stdout + told.stderr


def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", ALERTS)


@pytest.mark.slow
def test_each_rule_fires_when_it_should() -> None:
    promtool("test", "rules", CASES)


def test_each_rule_has_a_case() -> None:
    rules = re.findall(r"alert: (\w+)", ALERTS.read_text())
    assert len(rules) > 8
    assert set(rules) == set(re.findall(r"alertname: (\w+)", CASES.read_text()))


def test_promtool_takes_the_metrics() -> None:
    promtool("check", "metrics", given=everything())
