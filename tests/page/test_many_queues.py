"""Ten thousand queues in a browser: what the page asks for and puts up is as much as of a hundred."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from mq.web.page_files import FOLDER
from tests.page.hand import Hand

pytestmark = [pytest.mark.slow, pytest.mark.proof]

QUEUES: Final = 10_000
PAGE: Final = 100
MOST_ELEMENTS: Final = 2000
"""Of the whole document: some 12 a row, and what stands around them."""
MOST_BYTES: Final = 32 * 1024
"""Of the event that begins a view: 100 rows, and a line of the last hour for each."""
MOST_NEWS: Final = 2 * 1024
"""Of one that tells what became of one queue."""
BEFORE: Final = ("/", "/-/session")
"""What is asked for before any view."""
NAMES: Final = [f"q{number:05}" for number in range(QUEUES)]


class Heard:
    """What the page asks mq for, and what it is told, on the wire.

    Attributes:
        asked: targets, as they were asked for since :meth:`forget`.
    """

    def __init__(self, hand: Hand) -> None:
        self.asked: list[str] = []
        self.told: list[int] = []
        hand.tab.on("request", lambda request: self.asked.append(request.url.removeprefix(hand.url)))
        network = hand.tab.context.new_cdp_session(hand.tab)
        network.send("Network.enable")
        network.on("Network.eventSourceMessageReceived", lambda event: self.told.append(len(event["data"])))

    def forget(self) -> None:
        self.asked.clear()
        self.told.clear()


@pytest.fixture(scope="module")
def crowd(daemon: Any) -> Any:
    """The daemon, with ten thousand queues; of three of them there is something to see."""
    with closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)) as connection:
        for name in NAMES:
            connection.request("PUT", f"/{name}?store=memory")
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 201
    with Hand.alone(f"http://127.0.0.1:{daemon.port}") as hand:
        for name, count in (("q04711", 3), ("q00815", 2), ("q09999", 1)):
            for _ in range(count):
                hand.ask("POST", f"/{name}/messages", b"x")
    return daemon


@pytest.fixture
def hand(browser: Any, crowd: Any) -> Iterator[Hand]:
    with Hand.at(browser, f"http://127.0.0.1:{crowd.port}") as hand:
        yield hand


def test_they_are_listed_sorted_and_filtered_a_page_at_a_time(hand: Hand) -> None:
    heard = Heard(hand)
    shown = hand.tab.locator("table.queues tbody th a")

    def after(step: Callable[[], object], names: list[str], place: str) -> None:
        """One step leads to these rows, by one request, and one event that is no larger than a page."""
        heard.forget()
        step()
        hand.until(lambda: shown.all_inner_texts() == names)
        hand.sees(place)
        [asked] = [target for target in heard.asked if target not in BEFORE and not target.startswith(FOLDER)]
        assert asked.startswith("/-/events")
        assert max(heard.told) <= MOST_BYTES
        assert shown.count() <= PAGE
        assert hand.tab.locator("*").count() <= MOST_ELEMENTS

    after(hand.open, NAMES[:PAGE], "1 to 100 of 10,000")
    hand.sees("10,000 queues: 6 ready, 0 leased, 0 delayed")
    after(lambda: hand.click("button", "Next page"), NAMES[PAGE : 2 * PAGE], "101 to 200 of 10,000")
    full = ["q04711", "q00815", "q09999"]
    rest = [name for name in NAMES[: PAGE + 3] if name not in full][: PAGE - 3]
    after(lambda: hand.click("button", "Ready"), full + rest, "1 to 100 of 10,000")
    assert hand.row("q04711").locator("td").first.inner_text() == "3"
    after(lambda: hand.click("button", "Queue"), NAMES[:PAGE], "1 to 100 of 10,000")
    after(lambda: hand.click("button", "Queue"), NAMES[: -PAGE - 1 : -1], "1 to 100 of 10,000")
    matching = [name for name in reversed(NAMES) if "47" in name]
    after(lambda: hand.tab.get_by_label("Filter").fill("47"), matching[:PAGE], f"1 to 100 of {len(matching)}")
    ten = [f"q0471{number}" for number in range(9, -1, -1)]
    after(lambda: hand.tab.get_by_label("Filter").fill("Q0471"), ten, "10 of 10,000")


def test_what_changes_is_told_and_nothing_else(hand: Hand) -> None:
    heard = Heard(hand)
    hand.open()
    hand.sees("1 to 100 of 10,000")
    heard.forget()
    hand.ask("POST", "/q00007/messages", b"x")
    hand.until(lambda: hand.row("q00007").locator("td").first.inner_text() == "1")
    hand.ask("POST", "/q08888/messages", b"x")  # on another page: only the sum is other
    hand.sees("10,000 queues: 8 ready")
    assert heard.asked == []
    assert max(heard.told) <= MOST_NEWS
    hand.ask("DELETE", "/q00007")
    hand.until(lambda: hand.tab.locator("table.queues tbody th a").count() == PAGE and not hand.row("q00007").count())
    hand.sees("9,999 queues")
    assert max(heard.told) <= MOST_NEWS
