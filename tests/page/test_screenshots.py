"""A picture of each view, as docs/page.md shows them: made anew by `make pictures`."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.fonts import FONTS, configured
from tests.page.hand import Hand, started_browser
from tests.page.pictures import DIGESTS, FOLDER, PICTURES, digests, kept_digests
from tests.page.test_pictures import MOST_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.proof]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """In the default font of most desktops, wherever the pictures are made."""
    with started_browser(configured(tmp_path_factory.mktemp("font"), next(iter(FONTS)))) as browser:
        yield browser


@pytest.fixture(scope="module")
def shop(daemon: Any) -> Iterator[str]:
    """A shop's queues, two of its workers over AMQP, and what has died."""
    pika = pytest.importorskip("pika")
    with Hand.alone(f"http://127.0.0.1:{daemon.port}") as hand:
        depths = {"orders": 42, "mails": 7, "invoices": 3, "thumbnails": 1830, "returns": 0, "orders.dead": 0}
        for name, count in depths.items():
            hand.ask("PUT", f"/{name}")
            for start in range(0, count, 500):
                lines = [json.dumps(order(number)) for number in range(start, min(count, start + 500))]
                hand.ask("POST", f"/{name}/messages/batch", "\n".join(lines), content_type="application/x-ndjson")
        hand.ask("PATCH", "/orders", '{"dead_letter_queue": "orders.dead", "max_receives": 1}')
        hand.ask("PATCH", "/mails", '{"dead_letter_queue": "orders.dead"}')
        hand.ask("PATCH", "/invoices", '{"paused": true}')
        for reason in ("the card was declined", "the card was declined", "no such customer: 4711"):
            [message] = hand.ask("GET", "/orders/preview?max=1")["messages"]
            hand.ask("GET", "/orders/messages")
            hand.ask("PATCH", f"/orders/messages/{message['id']}", json.dumps({"delay": 0, "reason": reason}))
        hand.ask("POST", "/mails/messages", "Your parcel is on its way", x_message_ttl="0.01")
        hand.until(lambda: hand.ask("GET", "/orders.dead")["ready"] == 4)
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", daemon.amqp_port))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.exchange_declare("events", "topic", durable=True)
        channel.exchange_declare("audit", "fanout", durable=True)
        channel.exchange_bind("audit", "events", "order.#")
        for queue, key in (("orders", "order.new"), ("mails", "order.*"), ("thumbnails", "picture.#")):
            channel.queue_bind(queue, "events", key)
        channel.queue_bind("returns", "audit", "")
        for queue, tag in (("thumbnails", "worker-1"), ("mails", "mailer")):
            channel.basic_consume(queue, lambda *_: None, consumer_tag=tag)
        connection.process_data_events(0.5)
        yield hand.url
        connection.close()


def order(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    body = {"order": 1000 + number, "customer": chance.randrange(5000), "total": f"{chance.randrange(999)}.90"}
    return {"body": json.dumps(body), "content_type": "application/json", "attributes": {"shop": "north"}}


def made_up_hour(route: Any) -> None:
    """A test does not last an hour: what a queue's plots show is made up, and everything else is as it is."""
    answer = route.fetch()
    rates, chance = answer.json(), random.Random(1)
    depth, minutes = 260, rates["minutes"]
    for place in range(60):
        published = 300 + 200 * (25 < place < 40) + chance.randrange(80)
        acknowledged = min(depth + published, 330 + chance.randrange(60))
        depth += published - acknowledged
        for flow, count in (("publish", published), ("deliver", acknowledged + 9), ("acknowledge", acknowledged)):
            minutes[flow][place] = count
        minutes["redeliver"][place], minutes["dead_letter"][place] = chance.randrange(9), chance.randrange(3)
        minutes["messages"][place] = depth
    for flow in rates["slots"].keys() - {"seconds"}:
        rates["slots"][flow][-2] = minutes[flow][-2] // 12
    route.fulfill(response=answer, json=rates)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_each_view(browser: Any, shop: str, name: str) -> None:
    place, _, scheme, (width, height) = PICTURES[name]
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": height}, "is_mobile": name == "phone"}
    with Hand.at(browser, shop, **options) as hand:
        hand.tab.route("**/orders/rates", made_up_hour)
        hand.open(place)
        hand.tab.wait_for_load_state("load")
        if name == "queue":
            hand.tab.locator(".plot").first.wait_for()
        elif name in ("dead", "message"):
            hand.tab.locator("button.look").first.wait_for()
        else:
            hand.tab.locator("main tbody tr").first.wait_for()
        if name == "message":
            hand.tab.locator("button.look").first.click()
            hand.tab.locator("dialog pre").wait_for()
        hand.tab.mouse.move(0, 0)
        hand.tab.wait_for_timeout(100)
        picture = hand.tab.screenshot()
    assert 5_000 < len(picture) <= MOST_BYTES
    if "MQ_SCREENSHOTS" in os.environ:
        (FOLDER / f"{name}.png").write_bytes(picture)


def test_digests_are_kept_of_what_the_pictures_show() -> None:
    """The last one: it comes to this only if all pictures were made."""
    if "MQ_SCREENSHOTS" in os.environ:
        DIGESTS.write_text(json.dumps(digests(), indent=2) + "\n", "utf-8")
    assert kept_digests() == digests()
