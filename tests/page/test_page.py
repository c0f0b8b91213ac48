"""The page in a browser: the main path whole, hostile content, users and rights, the keyboard, what keeps people out.

One browser and one daemon for all.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mq.web.page_files import FOLDER, page_files
from tests.access.files import PASSWORD, write_users
from tests.e2e.daemon import TREE
from tests.page.hand import SECONDS, Hand
from tests.page.hostile import HOSTILE, MARKER, declare_hostile, fill_with_hostile
from tests.web.test_tls import Authority

pytestmark = [pytest.mark.slow, pytest.mark.in_turn(3)]
each_commit = pytest.mark.in_turn(1)

MOST_CLICKS = 12
MOST_BYTES = 150 * 1024
VIEWS = ("queues", "dead", "schedules", "consumers", "connections", "exchanges", "node")

_PLACES = """[...document.querySelectorAll("main summary, main .bar:first-of-type button, main h2")]
    .filter((each) => each.checkVisibility())
    .map((each) => [each.innerText, JSON.stringify(each.getBoundingClientRect())])"""
"""What can be clicked, and where it is."""


@each_commit
def test_a_newcomers_path(hand: Hand) -> None:
    """Make a queue, publish, watch it arrive, let it die, find it among the dead, redrive it."""
    tab = hand.tab
    hand.press("New queue")
    hand.write("Queue name", "first")
    hand.click("button", "Create")
    tab.get_by_role("heading", name="first").wait_for()
    hand.press("Publish a message")
    hand.write("Body", "a message with an end")
    hand.write("Expires after", "2s")
    hand.click("button", "Publish")
    hand.row("a message with an end").wait_for()
    tab.get_by_text("No messages.").wait_for()  # it has died
    hand.click("link", re.compile("^Dead letters"))  # a badge stands behind it
    dead = hand.row("a message with an end")
    assert "time to live expired" in dead.inner_text()
    assert "first" in dead.inner_text()
    hand.clicks += 1
    dead.get_by_role("checkbox").check()
    hand.click("button", "Redrive")
    hand.sees("1 message moved back")
    assert hand.clicks <= MOST_CLICKS


def test_the_first_view_is_small(hand: Hand) -> None:
    """All that goes over the wire until it stands there."""
    sizes: dict[str, int] = {}
    network = hand.tab.context.new_cdp_session(hand.tab)
    network.send("Network.enable")
    network.send("Network.setCacheDisabled", {"cacheDisabled": True})
    network.on("Network.loadingFinished", lambda told: sizes.update({told["requestId"]: told["encodedDataLength"]}))
    hand.open()
    hand.tab.wait_for_load_state("load")
    assert len(sizes) >= len(page_files().files) - 1
    assert sum(sizes.values()) < MOST_BYTES / 3


def test_queues_are_sorted_and_filtered_and_live(hand: Hand) -> None:
    for name, count in (("sorted-a", 1), ("sorted-b", 3), ("sorted-c", 2)):
        hand.ask("PUT", f"/{name}")
        for _ in range(count):
            hand.ask("POST", f"/{name}/messages", b"x")
    hand.tab.get_by_label("Filter").fill("SORTED-")
    hand.sees("3 of ")
    hand.click("button", "Ready")
    names = hand.tab.locator("tbody th a")
    hand.until(lambda: names.all_inner_texts() == ["sorted-b", "sorted-c", "sorted-a"])
    hand.click("button", "Ready")
    hand.until(lambda: names.all_inner_texts() == ["sorted-a", "sorted-c", "sorted-b"])
    assert hand.tab.locator("th[aria-sort=ascending]").inner_text() == "Ready"
    for _ in range(4):
        hand.ask("POST", "/sorted-a/messages", b"x")
    hand.until(lambda: names.all_inner_texts() == ["sorted-c", "sorted-b", "sorted-a"])
    hand.ask("DELETE", "/sorted-c")
    hand.until(lambda: names.all_inner_texts() == ["sorted-b", "sorted-a"])


def test_sorting_and_filter_of_queues_are_kept_in_the_address(hand: Hand) -> None:
    """They outlive a reload, a look at a queue, and a bookmark in another tab."""
    for name, count in (("kept-a", 1), ("kept-b", 2)):
        hand.ask("PUT", f"/{name}")
        for _ in range(count):
            hand.ask("POST", f"/{name}/messages", b"x")
    names = hand.tab.locator("tbody th a")

    def shows_both() -> None:
        hand.until(lambda: names.all_inner_texts() == ["kept-b", "kept-a"])
        assert hand.tab.get_by_label("Filter").input_value() == "kept-"
        assert hand.tab.locator("th[aria-sort=descending]").inner_text() == "Ready"

    hand.tab.get_by_label("Filter").fill("kept-")
    hand.click("button", "Ready")
    shows_both()
    assert hand.tab.evaluate("location.hash") == "#/queues?sort=ready&filter=kept-"
    hand.tab.reload()
    shows_both()
    hand.click("link", "kept-a")
    hand.tab.get_by_role("heading", name="kept-a").wait_for()
    hand.tab.go_back()
    shows_both()
    hand.click("link", "kept-a")
    hand.tab.locator(".crumbs a").click()
    shows_both()
    hand.click("button", "Ready")
    hand.until(lambda: names.all_inner_texts() == ["kept-a", "kept-b"])
    assert hand.tab.evaluate("location.hash") == "#/queues?sort=ready&reverse=true&filter=kept-"


@pytest.mark.parametrize(
    "query", ["sort=nonsense&skip=-1&reverse=maybe", "sort=constructor&skip=1e9", "filter=%&skip="]
)
def test_address_with_a_wrong_query_shows_all_queues(hand: Hand, query: str) -> None:
    hand.ask("PUT", "/wrong-query")
    hand.open(f"#/queues?{query}")
    hand.tab.locator("th[aria-sort=ascending]", has_text="Queue").wait_for()
    hand.tab.locator("main .summary", has_text="queue").wait_for()
    assert hand.tab.locator("#said").inner_text() == ""


def test_zeros_of_queues_are_dimmed(hand: Hand) -> None:
    hand.ask("PUT", "/zeros")
    hand.ask("POST", "/zeros/messages", b"x")
    hand.tab.get_by_label("Filter").fill("zeros")
    ready, leased = hand.row("zeros").locator("td").nth(0), hand.row("zeros").locator("td").nth(1)
    hand.until(lambda: ready.inner_text() == "1")
    color = "it => getComputedStyle(it).color"
    assert ready.evaluate(color) != leased.evaluate(color)


HISTOGRAM = """mq_delivery_age_seconds_bucket{le="5.0"} 0
mq_delivery_age_seconds_bucket{le="300.0"} 0
mq_delivery_age_seconds_bucket{le="900.0"} 100
mq_delivery_age_seconds_bucket{le="+Inf"} 100
"""


def test_quantiles_are_interpolated_within_their_bucket(hand: Hand) -> None:
    """As Prometheus does: the half of 5 to 15 minutes is 10, and not the bucket's end."""
    hand.tab.route("**/-/metrics", lambda route: route.fulfill(body=HISTOGRAM, content_type="text/plain"))
    hand.open("#/node")
    row = hand.row("age of a message at delivery")
    row.wait_for()
    heads = hand.tab.get_by_role("table", name="Latency").locator("thead th").all_inner_texts()
    assert heads == [
        "Metric",
        "p50, last minute",
        "p99, last minute",
        "p50 since startup",
        "p99 since startup",
        "Measurements since startup",
    ]
    assert row.locator("td").all_inner_texts() == ["—", "—", "10 min", "14 min", "100"]


def test_who_goes_back_leaves_a_dialog_behind(hand: Hand) -> None:
    """Else it lies over the view before, which takes no click, and still asks about the one that is gone."""
    hand.ask("PUT", "/gone-back")
    hand.ask("POST", "/gone-back/messages", b"looked at")
    for opens in (lambda: hand.tab.locator("button.look").click(), lambda: hand.click("button", "Delete queue…")):
        hand.open("#/queues")
        hand.click("link", "gone-back")
        opens()
        hand.tab.locator("dialog").wait_for()
        hand.tab.go_back()
        hand.tab.get_by_role("heading", name="Queues").wait_for()
        assert hand.tab.locator("dialog").count() == 0
        hand.click("link", "gone-back")
        hand.tab.get_by_role("heading", name="gone-back").wait_for()


def test_a_name_that_does_not_do_is_told_what_does(hand: Hand) -> None:
    hand.press("New queue")
    hand.write("Queue name", "no name!")
    hand.click("button", "Create")
    name = hand.tab.get_by_label("Queue name", exact=True)
    assert name.evaluate("(it) => [it.matches(':invalid'), it.title]") == [True, "letters, digits and any of . _ @ -"]


def test_messages_are_looked_into(hand: Hand) -> None:
    hand.ask("PUT", "/bodies")
    large = json.dumps({"number": 12345678901234567890, "list": [1, {}, "é" * 200]})
    hand.ask("POST", "/bodies/messages", large, content_type="application/json", x_message_attribute_color="blue")
    hand.ask("POST", "/bodies/messages", bytes(range(256)))
    hand.open("#/queue/bodies")
    hand.tab.locator("button.look").first.click()
    body = hand.tab.locator("dialog pre")
    assert '"number": 12345678901234567890,' in body.inner_text()
    assert "blue" in hand.tab.locator("dialog").inner_text()
    hand.click("button", "Plain text")
    assert body.inner_text() == large
    hand.click("button", "Hex dump")
    assert body.inner_text().startswith("00000000  7b 22 6e 75")
    hand.tab.keyboard.press("Escape")
    hand.tab.locator("button.look").last.click()
    assert "000000f0  f0 f1" in body.inner_text()
    assert hand.tab.get_by_role("button", name="Plain text", exact=True).count() == 0  # it is none
    hand.click("button", "Close")


def test_what_waits_or_is_leased_says_until_when(hand: Hand) -> None:
    hand.ask("PUT", "/until")
    hand.ask("POST", "/until/messages", "ready")
    hand.open("#/queue/until")
    hand.sees("ready")
    until = hand.tab.get_by_role("columnheader", name="Becomes available", exact=True)
    assert until.count() == 0, "what is ready waits for nothing"
    hand.ask("GET", "/until/messages?visibility=3600")
    hand.ask("POST", "/until/messages", "far off", x_message_delay=str(40 * 86_400 + 60))
    for state, text, left in (("Leased", "ready", "59 min|1 h"), ("Delayed", "far off", "40 d")):
        hand.click("button", re.compile(f"^{state}"))
        row = hand.row(text)
        hand.until(lambda row=row, left=left: re.search(f", in ({left})$", row.locator("td").nth(3).inner_text()))
        shown = row.locator("td").nth(3).inner_text().rsplit(", in ", 1)[0]
        [message] = hand.ask("GET", f"/until/preview?state={state.lower()}")["messages"]
        local = "(at) => [new Date(at).toLocaleString(), new Date(at).toLocaleTimeString()]"
        assert shown in hand.tab.evaluate(local, message["at_ms"])
        assert until.is_visible()
        row.locator("button.look").click()
        assert shown in hand.tab.locator("dialog").inner_text()
        hand.click("button", "Close")


def test_dead_letters_of_one_kind_are_redriven(hand: Hand) -> None:
    for name in ("kinds", "kinds.dead"):
        hand.ask("PUT", f"/{name}")
    hand.ask("PATCH", "/kinds", '{"dead_letter_queue": "kinds.dead", "max_receives": 1}')
    for reason in ("no room", "a bug", "no room"):
        hand.ask("POST", "/kinds/messages", f"ended by {reason}")
        [message] = hand.ask("GET", "/kinds/preview")["messages"]
        hand.ask("GET", "/kinds/messages")
        hand.ask("PATCH", f"/kinds/messages/{message['id']}", json.dumps({"delay": 0, "reason": reason}))
        hand.until(lambda: hand.ask("GET", "/kinds")["ready"] + hand.ask("GET", "/kinds")["leased"] == 0)
    hand.ask("PATCH", "/kinds", '{"max_receives": null}')
    hand.open("#/dead")
    hand.row("ended by a bug").wait_for()
    hand.write("Filter", "NO ROOM")
    hand.row("ended by a bug").wait_for(state="detached")
    group = hand.tab.get_by_role("region", name="Messages in kinds.dead")
    group.get_by_role("checkbox", name="Select all listed messages in kinds.dead").check()
    hand.tab.locator("section[aria-label='kinds.dead']").get_by_role("button", name="Redrive", exact=True).click()
    hand.sees("2 messages moved back")
    assert hand.ask("GET", "/kinds")["ready"] == 2
    assert hand.ask("GET", "/kinds.dead")["ready"] == 1


def test_what_can_be_done_with_a_queue(hand: Hand) -> None:
    hand.ask("PUT", "/done")
    hand.ask("PUT", "/elsewhere")
    for number in range(3):
        hand.ask("POST", "/done/messages", f"message {number}")
    hand.open("#/queue/done")
    hand.row("message 0").get_by_role("checkbox").check()
    hand.click("button", "Move…")
    hand.write("Destination queue", "elsewhere", inside=hand.tab.locator("dialog"))
    hand.click("button", "Move")
    hand.sees("1 message moved to elsewhere")
    hand.row("message 1").get_by_role("checkbox").check()
    hand.click("button", "Remove…")
    hand.click("button", "Remove")
    hand.sees("1 message removed")
    hand.press("Settings")
    hand.write("Maximum deliveries", "2")
    hand.click("button", "Save")
    hand.sees("max_receives requires dead_letter_queue to be set")
    hand.write("Dead-letter queue", "elsewhere")
    hand.click("button", "Save")
    hand.sees("settings saved")
    assert hand.ask("GET", "/done")["dead_letter_queue"] == "elsewhere"
    hand.click("button", "Pause delivery")
    hand.sees("delivery paused")
    assert hand.ask("GET", "/done")["paused"]
    hand.click("button", "Resume delivery")
    hand.click("button", "Pause publishing")
    hand.sees("publishing paused")
    assert hand.ask("GET", "/done")["publish_paused"]
    hand.click("button", "Resume publishing")
    hand.sees("publishing resumed")
    hand.click("button", "Purge queue…")
    hand.click("button", "Cancel")
    assert hand.ask("GET", "/done")["ready"] == 1
    hand.click("button", "Purge queue…")
    hand.click("button", "Purge")
    hand.sees("No messages.")  # "1 message removed" may still stand there from above
    hand.click("button", "Delete queue…")
    hand.click("button", "Delete")
    hand.sees("done deleted")
    assert "done" not in [each["name"] for each in hand.ask("GET", "/-/queues")["queues"]]


def test_a_row_stays_where_it_is_clicked_while_messages_come(hand: Hand) -> None:
    """A click that is on its way is lost if its row is made anew meanwhile; so is the choice of a browser's driver."""
    hand.ask("PUT", "/coming")
    hand.ask("POST", "/coming/messages", "the first")
    hand.open("#/queue/coming")
    choice = hand.row("the first").get_by_role("checkbox").element_handle()
    look = hand.row("the first").locator("button.look").element_handle()
    for number in range(2):
        hand.ask("POST", "/coming/messages", f"later {number}")
        hand.row(f"later {number}").wait_for()
        assert choice.evaluate("box => box.isConnected")
        choice.set_checked(number == 0)
    hand.ask("GET", "/coming/messages")
    hand.row("the first").wait_for(state="detached")  # it is leased now
    hand.click("button", "Leased")
    hand.row("the first").get_by_text("1", exact=True).wait_for()
    assert hand.row("the first").get_by_role("checkbox").is_checked() is False
    assert not look.evaluate("button => button.isConnected")


@pytest.mark.parametrize("place", ["#/queues", "#/queue/held"])
def test_what_can_be_clicked_does_not_move_when_the_first_news_comes(hand: Hand, place: str) -> None:
    """A click whose press and release are on two sides of the news would miss."""
    hand.ask("PUT", "/held")
    held: list[Any] = []
    for news in ("**/-/events?*", "**/rates"):
        hand.tab.route(news, lambda route: held.append(route))
    hand.tab.goto("about:blank")  # an address that differs by its fragment alone is no new page
    hand.tab.goto(f"{hand.url}/{place}")
    hand.until(lambda: len(held) >= (2 if "queue/" in place else 1))
    before = hand.tab.evaluate(_PLACES)
    assert before
    for news in held:
        news.continue_()
    hand.tab.unroute_all()
    hand.tab.get_by_text("live", exact=True).wait_for()
    if "queue/" in place:
        hand.tab.locator(".plots:not(.unknown)").wait_for()
    after = dict(hand.tab.evaluate(_PLACES))
    assert {name: after[name] for name, _ in before} == dict(before)


def test_settings_that_are_opened_early_are_filled_in(hand: Hand) -> None:
    """Saved while it was empty, the form would take all settings away."""
    hand.ask("PUT", "/early")
    hand.ask("PATCH", "/early", '{"visibility": 45}')
    hand.tab.route("**/-/events?*", lambda route: None)  # the view does not come
    hand.open("#/queue/early")
    hand.press("Settings")
    lease = hand.tab.get_by_label("Visibility timeout", exact=True)
    lease.wait_for()
    assert lease.input_value() == ""
    hand.tab.unroute("**/-/events?*")
    hand.tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    hand.until(lambda: lease.input_value() == "45s")


def test_durations_and_sizes_are_written_with_units(hand: Hand) -> None:
    """A text that was no number was sent as null: a message without its delay, a setting at its default."""
    hand.ask("PUT", "/timed")
    hand.open("#/queue/timed")
    hand.press("Settings")
    hand.write("Retry delay", "1.5h")
    hand.write("Maximum total body size", "10MB")
    hand.click("button", "Save")
    hand.sees("settings saved")
    settings = hand.ask("GET", "/timed")
    assert (settings["retry_delay"], settings["max_bytes"], settings["visibility"]) == (5400, 10_000_000, None)
    hand.write("Retry delay", "5 minutes")
    hand.click("button", "Save")
    hand.sees("retry_delay must be a duration")
    hand.press("Publish a message")
    hand.write("Body", "later")
    hand.write("Expires after", "10y")
    hand.click("button", "Publish")
    hand.sees("ttl must be a duration")
    hand.write("Expires after", "2h")
    hand.click("button", "Publish")
    hand.until(lambda: hand.ask("GET", "/timed")["ready"] == 1)  # the plot's legend says "published" at any time


def test_a_schedule_is_made_and_deleted(hand: Hand) -> None:
    hand.ask("PUT", "/regular")
    hand.open("#/schedules")
    hand.press("New schedule")
    hand.write("Schedule name", "nightly")
    hand.write("Queue", "regular")
    hand.write("Cron expression", "0 25 * * *")
    hand.click("button", "Save schedule")
    hand.sees("bad hour")
    hand.write("Cron expression", "0 0 29 2 *")
    hand.write("Time zone", "Europe/Berlin")
    hand.click("button", "Save schedule")
    hand.sees("nightly saved")
    hand.row("0 0 29 2 * Europe/Berlin").wait_for()
    assert hand.ask("GET", "/-/schedules/nightly")["queue"] == "regular"
    hand.click("button", "Delete schedule nightly")
    hand.click("button", "Delete schedule")
    hand.sees("nightly deleted")
    assert hand.ask("GET", "/-/schedules")["schedules"] == []


# What is published here is not trusted


@each_commit
def test_hostile_content_is_text_in_every_view(hand: Hand, daemon: Any) -> None:
    fill_with_hostile(hand)
    connection = declare_hostile(daemon.amqp_port)
    tab = hand.tab
    for place in (*(f"#/{view}" for view in VIEWS), "#/queue/hostile", f"#/{HOSTILE[0]}"):
        hand.open(place)
        tab.locator("main tbody tr, main .tiles").first.wait_for()
        assert_harmless(hand)
        if place in ("#/exchanges", "#/consumers"):
            for text in HOSTILE:
                assert text in tab.locator("main").inner_text()
    connection.close()
    hand.open("#/dead")
    # The page asks one queue after the other: the letters of another queue may stand there alone for a while.
    tab.locator(".why strong", has_text=HOSTILE[1]).first.wait_for()
    for place in range(tab.locator("button.look").count()):
        tab.locator("button.look").nth(place).click()
        tab.locator("dialog pre").wait_for()
        assert_harmless(hand)
        tab.keyboard.press("Escape")
    for text in HOSTILE:
        assert text.strip() in tab.locator("main").inner_text()
    hand.open("#/queue/hostile")
    hand.press("Publish a message")
    for text in HOSTILE:  # what mq refuses is said, and said as text
        hand.write("Body", "x")
        hand.write("Content type", "text/plain")
        hand.write("Headers", f"{text}: {text}")
        hand.click("button", "Publish")
        tab.locator("#said:not(:empty)").wait_for()
        assert_harmless(hand)


def assert_harmless(hand: Hand) -> None:
    assert hand.tab.evaluate(f"window.{MARKER}") is None
    assert hand.tab.locator(f"[{MARKER}], main img, main script, main iframe, main style, dialog img").count() == 0
    assert hand.tab.title().endswith("mq")


@each_commit
def test_a_published_script_does_not_run(hand: Hand) -> None:
    """Not even by markup that stood in the page: its policy names the page's own files alone."""
    hand.ask("PUT", "/scripts")
    hand.ask("POST", "/scripts/messages", f"window.{MARKER} = 1", content_type="text/javascript")
    [message] = hand.ask("GET", "/scripts/preview")["messages"]
    hand.tab.evaluate(
        """([path, marker]) => new Promise((resolve) => {
            const script = document.createElement("script");
            script.onload = script.onerror = resolve;
            try { script.src = path; } catch { resolve(); }
            script.setAttribute("data-" + marker, "");
            document.head.append(script);
            setTimeout(resolve, 300);
        })""",
        [f"/scripts/messages/{message['id']}", MARKER],
    )
    assert hand.tab.evaluate(f"window.{MARKER}") is None
    assert any("TrustedScriptURL" in said or "Content Security Policy" in said for said in hand.complaints)
    hand.complaints.clear()


def test_slow_consumers_are_marked(hand: Hand) -> None:
    module = f"{FOLDER}{page_files().version}/connections.js"
    for prefetch, unacknowledged, idle, is_slow in (
        (5, 5, 11, True),
        (5, 5, 9, False),
        (5, 4, 30, False),
        (5, 1, 61, True),
        (0, 0, 999, False),
        (None, 0, 99, False),
    ):
        consumer = {"prefetch": prefetch, "unacknowledged": unacknowledged, "idle_seconds": idle}
        asked = "([module, each]) => import(module).then(({ isSlow }) => isSlow(each))"
        assert hand.tab.evaluate(asked, [module, consumer]) == is_slow


# Users


@each_commit
def test_a_reader_logs_in_and_sees_no_button_that_would_be_refused(browser: Any, guarded: Any) -> None:
    with Hand.at(browser, f"http://127.0.0.1:{guarded.port}") as hand:
        hand.open()
        log_in(hand, "reader", "wrong horse")
        hand.sees("wrong user name, password or token")
        hand.tab.wait_for_timeout(600)  # who was wrong waits for half a second
        log_in(hand, "reader", guarded.password)
        hand.tab.get_by_role("heading", name="Queues").wait_for()
        hand.tab.get_by_role("link", name="shop", exact=True).wait_for()
        assert hand.tab.locator("tbody th a").all_inner_texts() == ["shop"]
        assert hand.tab.locator("nav a").all_inner_texts() == ["Queues", "Dead letters"]
        assert hand.tab.get_by_text("New queue").count() == 0
        [cookie] = hand.tab.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert hand.tab.evaluate("document.cookie") == ""
        hand.open("#/queue/shop")
        hand.row("an order").wait_for()
        buttons = [text for text in hand.tab.locator("main button").all_inner_texts() if text]
        assert [text for text in buttons if text != "Show more"] == [
            "Ready",
            "Leased",
            "Delayed",
            "Remove…",
            "an order",
        ]
        assert hand.tab.get_by_text("Publish a message").count() == 0
        assert hand.tab.get_by_text("Settings").count() == 0
        hand.open("#/queue/secret")
        hand.sees("does not exist, or you do not have permission to see it")
        other = hand.tab.context.new_page()
        other.goto(hand.url)
        hand.open("#/queue/shop")
        other.get_by_role("button", name="Log out").click()
        other.get_by_role("heading", name="Log in to mq").wait_for()
        other.close()
        hand.click("button", "Delayed")  # with a session that is over
        hand.tab.get_by_role("heading", name="Log in to mq").wait_for()
        log_in(hand, "reader", guarded.password)
        hand.row("an order").wait_for()  # where it was before
        hand.click("button", "Log out")
        hand.tab.get_by_role("heading", name="Log in to mq").wait_for()
        assert hand.tab.context.cookies() == []


PAUSES = {"Pause delivery", "Pause publishing"}
MAKES = PAUSES | {"Purge queue…", "Delete queue…", "Save"}
READS = {"Ready", "Leased", "Delayed"}
SHOWN = {
    "publisher": {"Publish"},
    "pauser": PAUSES,
    "maker": MAKES,
    "watcher": set(),
    "reader": READS | {"an order", "Remove…"},
    "boss": MAKES | READS | {"Publish", "an order", "Move…", "Remove…"},
}
"""User -> the buttons of a queue's view."""


@pytest.mark.proof
@pytest.mark.parametrize("name", SHOWN)
def test_each_right_has_its_buttons_and_no_request_is_refused(browser: Any, guarded: Any, name: str) -> None:
    with Hand.at(browser, f"http://127.0.0.1:{guarded.port}") as hand:
        hand.open()
        log_in(hand, name, guarded.password)
        hand.tab.get_by_role("link", name="shop", exact=True).wait_for()
        refused: list[str] = []
        hand.tab.on("response", lambda reply: reply.status >= 400 and refused.append(reply.url))
        hand.open("#/queue/shop")
        hand.tab.locator(".tiles dd", has_text=re.compile(".")).first.wait_for()
        if "an order" in SHOWN[name]:
            hand.row("an order").wait_for()
        hand.open_all()
        buttons = hand.tab.locator("main button:visible")
        assert set(buttons.all_inner_texts()) == SHOWN[name]
        for link in hand.tab.locator("nav a").all():
            link.click()
            hand.tab.locator("main h1").wait_for()
            hand.tab.wait_for_timeout(200)
        views = {"boss": len(VIEWS), "watcher": len(VIEWS) - 1, "maker": 3}
        assert hand.tab.locator("nav a").count() == views.get(name, 2)
        assert refused == []


@pytest.mark.proof
def test_over_tls_the_cookie_is_secure_and_all_goes_over_http2(browser: Any, tmp_path: Path, free_port: int) -> None:
    files = Authority(tmp_path).files
    users = write_users(tmp_path / "users.toml", '[users.boss]\npassword = "PASSWORD"\nadminister = ["*"]\n')
    options = ("--users", users, "--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    said = tmp_path / "log"
    command = [sys.executable, "-m", "mq", "--root", tmp_path / "root", "--port", str(free_port), "--amqp-port", "0"]
    with said.open("wb") as log:
        daemon = subprocess.Popen([*command, *options], cwd=TREE, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with Hand.at(browser, f"https://localhost:{free_port}", ignore_https_errors=True) as hand:
            hand.until(lambda: "is serving" in said.read_text() or daemon.poll() is not None)
            hand.open()
            log_in(hand, "boss", PASSWORD)
            hand.tab.get_by_role("heading", name="Queues").wait_for()
            [cookie] = hand.tab.context.cookies()
            assert cookie["secure"]
            hand.press("New queue")
            hand.write("Queue name", "over-tls")
            hand.click("button", "Create")
            hand.press("Publish a message")
            hand.write("Body", "seen by an event")
            hand.click("button", "Publish")
            hand.row("seen by an event").wait_for()
            protocols = "performance.getEntriesByType('resource').map((each) => each.nextHopProtocol)"
            assert set(hand.tab.evaluate(protocols)) == {"h2"}
            daemon.terminate()  # with an event stream open
            assert daemon.wait(SECONDS) == 0
            hand.sees("disconnected")
            hand.complaints.clear()  # the browser's, that nobody is there
    finally:
        daemon.kill()
        daemon.wait()
    assert "Traceback" not in said.read_text()


def log_in(hand: Hand, name: str, secret: str) -> None:
    hand.write("User name", name)
    hand.write("Password or token", secret)
    hand.click("button", "Log in")


# Everybody


def test_the_keyboard_is_enough(hand: Hand) -> None:
    """The main path without a mouse: by Tab, Space and Enter alone."""
    keys = hand.tab.keyboard
    hand.tab_to("New queue")
    keys.press("Enter")
    hand.tab.locator("input[required]:focus").wait_for()
    keys.type("by-keys")
    keys.press("Enter")
    hand.tab.get_by_role("heading", name="by-keys").wait_for()
    hand.tab_to("Publish a message")
    keys.press("Enter")
    hand.tab_to("Body")
    keys.type("typed")
    hand.tab_to("Publish")
    keys.press("Space")
    hand.row("typed").wait_for()
    hand.tab_to("typed")
    keys.press("Enter")
    hand.tab.locator("dialog").wait_for()
    keys.press("Escape")
    hand.tab_to("Select all listed messages in by-keys")
    keys.press("Space")
    hand.tab_to("Remove…", back=True)
    keys.press("Enter")
    keys.press("Enter")  # the question's first button is the one that says yes
    hand.sees("1 message removed")


@pytest.mark.parametrize(
    ("scheme", "views"),
    [
        ("light", ("queues", "dead")),
        pytest.param("light", VIEWS, marks=pytest.mark.proof, id="light, all views"),
        pytest.param("dark", VIEWS, marks=pytest.mark.proof, id="dark, all views"),
    ],
)
def test_axe_finds_nothing_serious(browser: Any, daemon: Any, scheme: str, views: tuple[str, ...]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="there is no axe here: make dev").Axe()
    # axe is put into the page as a script, and the page's policy is there to refuse such
    with Hand.at(browser, f"http://127.0.0.1:{daemon.port}", color_scheme=scheme, bypass_csp=True) as hand:
        hand.open()
        prepare(hand)
        for place in (*(f"#/{view}" for view in views), "#/queue/axe"):
            hand.open(place)
            hand.tab.wait_for_timeout(100)
            hand.open_all()
            assert serious(axe, hand) == [], place
        hand.tab.locator("button.look").first.click()
        assert serious(axe, hand) == [], "a message"


def prepare(hand: Hand) -> None:
    if "axe" in [each["name"] for each in hand.ask("GET", "/-/queues")["queues"]]:
        return
    for name in ("axe", "axe.dead"):
        hand.ask("PUT", f"/{name}")
    hand.ask("PATCH", "/axe", json.dumps({"dead_letter_queue": "axe.dead"}))
    hand.ask("POST", "/axe/messages", b"x", x_message_ttl="0.01")
    hand.ask("POST", "/axe/messages", b"x")
    hand.until(lambda: hand.ask("GET", "/axe.dead")["ready"] == 1)


def serious(axe: Any, hand: Hand) -> list[str]:
    found = axe.run(hand.tab).response["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


def test_a_phone_needs_not_be_turned(browser: Any, daemon: Any) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with Hand.at(browser, f"http://127.0.0.1:{daemon.port}", **phone) as hand:
        hand.open()
        prepare(hand)
        for place in (*(f"#/{view}" for view in VIEWS), "#/queue/axe"):
            hand.open(place)
            hand.tab.wait_for_timeout(50)
            assert hand.tab.evaluate("document.documentElement.scrollWidth") <= 360, place
