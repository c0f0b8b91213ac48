"""Every view, with its forms open, in the fonts and windows that people have: measured, and to be looked at.

`make layouts` keeps the screenshots of all of them in build/layouts.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from mq.web.page_files import FOLDER, page_files
from tests.page.conftest import Guarded, started_daemon
from tests.page.crowded import BASES, DEAD, QUEUE, crowded
from tests.page.fonts import FONTS, configured
from tests.page.hand import Hand, started_browser
from tests.page.test_page import log_in, serious

pytestmark = [pytest.mark.slow, pytest.mark.in_turn(3)]

WIDTHS: Final = (360, 768, 1280, 1366, 1920)
HEIGHTS: Final = {360: 740, 768: 1024}
"""Of windows of that width; of others 900."""
MEASURE: Final = (Path(__file__).parent / "measure.js").read_text("utf-8")
PICTURE: Final = (Path(__file__).parent / "measure_picture.js").read_text("utf-8").strip()
LARGE: Final = 62_600_000
"""Bytes of a connection that the test does not wait for."""


def _at(place: str, wanted: str) -> Callable[[Hand], None]:
    def go(hand: Hand) -> None:
        hand.open(place)
        hand.tab.locator(wanted).first.wait_for()
        hand.open_all()

    return go


def _message(hand: Hand) -> None:
    _at(f"#/queue/{DEAD}", "button.look")(hand)
    hand.tab.locator("button.look").first.click()
    hand.tab.locator("dialog pre").wait_for()


def _question(hand: Hand) -> None:
    _at(f"#/queue/{DEAD}", "button.look")(hand)
    hand.click("button", "Delete queue…")
    hand.tab.locator("dialog").wait_for()


def _form(hand: Hand) -> None:
    _at(f"#/queue/{DEAD}", "button.look")(hand)
    hand.tab.locator("tbody input").first.check()
    hand.click("button", "Move…")
    hand.tab.locator("dialog").wait_for()


def _leased(hand: Hand) -> None:
    _at(f"#/queue/{QUEUE}", "button.look")(hand)
    hand.click("button", "Leased")
    hand.tab.get_by_text("leased until the consumer's connection closes").first.wait_for()


LAYOUTS: Final[dict[str, Callable[[Hand], None]]] = {
    "queues": _at("#/queues", "tbody tr"),
    "queues-found": _at("#/queues?sort=consumers&filter=eu-", "tbody tr"),
    "queue": _at(f"#/queue/{QUEUE}", "button.look"),
    "queue-leased": _leased,
    "queue-paused": _at(f"#/queue/{BASES[2]}", "button.look"),
    "queue-dead": _at(f"#/queue/{DEAD}", "button.look"),
    "queue-long-name": _at(f"#/queue/{BASES[-4]}", "button.look"),
    "dead": _at("#/dead", "button.look"),
    "schedules": _at("#/schedules", "tbody tr"),
    "consumers": _at("#/consumers", "tbody tr"),
    "connections": _at("#/connections", "tbody tr"),
    "exchanges": _at("#/exchanges", "svg.bindings"),
    "node": _at("#/node", ".tiles dd"),
    "message": _message,
    "question": _question,
    "form": _form,
}
"""Name -> what leads a tab there."""
SAMPLE: Final = ("queues", "queue", "dead", "schedules", "connections", "exchanges", "node", "form")
"""Those that each commit is measured in."""


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """The URL of a busy daemon. Its root is in memory where there is such a folder: it is only looked at."""
    memory = "/dev/shm"
    where = memory if os.access(memory, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="mq-", dir=where) as folder,
        started_daemon(Path(folder)) as daemon,
        crowded(daemon) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept."""
    chosen = os.environ.get("MQ_LAYOUTS")
    if chosen is None:
        return tmp_path_factory.mktemp("layouts")
    kept = Path(chosen)
    kept.mkdir(parents=True, exist_ok=True)
    return kept


NOTO, DEJAVU = FONTS


@pytest.fixture(scope="module", params=[NOTO, pytest.param(DEJAVU, marks=pytest.mark.proof)])
def in_font(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """A font, and a browser that has it as the system's."""
    with started_browser(configured(tmp_path_factory.mktemp("font"), request.param)) as browser:
        yield request.param, browser


def much_traffic(route: Any) -> None:
    """Sizes of connections as they are after a day, not after a second."""
    answer = route.fetch()
    told = answer.json()
    for connection in told["connections"]:
        connection |= {"received_bytes": LARGE, "sent_bytes": 17 * LARGE, "open_seconds": 40_000}
    route.fulfill(response=answer, json=told)


def complaints(hand: Hand, font: str, scheme: str, folder: Path, name: str, *, keeps_all: bool) -> list[str]:
    """What is wrong with a layout in windows of all widths. Its screenshots are kept where something is, or always."""
    found: list[str] = []
    hand.tab.emulate_media(color_scheme=scheme)
    for width in WIDTHS:
        hand.tab.set_viewport_size({"width": width, "height": HEIGHTS.get(width, 900)})
        wrong = hand.tab.evaluate(MEASURE, [width])
        picture = folder / f"{name}-{font.partition(' ')[0].lower()}-{width}-{scheme}.png"
        if wrong or keeps_all:
            hand.tab.screenshot(path=picture, full_page=True)
        found += [f"{picture}: {each}" for each in wrong]
    hand.tab.keyboard.press("Escape")  # a dialog would lie over the next layout
    return found


def font_of(hand: Hand) -> str:
    """In which font the browser wrote the heading."""
    network = hand.tab.context.new_cdp_session(hand.tab)
    network.send("DOM.enable")
    network.send("CSS.enable")
    root = network.send("DOM.getDocument")["root"]["nodeId"]
    heading = network.send("DOM.querySelector", {"nodeId": root, "selector": "h1"})["nodeId"]
    fonts: list[dict[str, str]] = network.send("CSS.getPlatformFontsForNode", {"nodeId": heading})["fonts"]
    return fonts[0]["familyName"]


def test_nothing_overlaps_overflows_or_wraps(in_font: tuple[str, Any], shop: str, folder: Path) -> None:
    font, browser = in_font
    found = []
    with Hand.at(browser, shop) as hand:
        hand.tab.route("**/-/connections?*", much_traffic)
        for name in SAMPLE:
            LAYOUTS[name](hand)
            found += complaints(hand, font, "light", folder, name, keeps_all=False)
        assert font_of(hand) == font
    assert found == []


@pytest.mark.proof
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_layout_has_its_screenshot_and_no_fault(
    in_font: tuple[str, Any], shop: str, guarded: Guarded, folder: Path, scheme: str
) -> None:
    font, browser = in_font
    found = []
    for is_phone in (False, True):
        options = {"is_mobile": True, "has_touch": True} if is_phone else {}
        with Hand.at(browser, shop, **options) as hand:
            hand.tab.route("**/-/connections?*", much_traffic)
            for name, go in LAYOUTS.items():
                go(hand)
                shown = f"{name}-touch" if is_phone else name
                found += complaints(hand, font, scheme, folder, shown, keeps_all=True)
    with Hand.at(browser, f"http://127.0.0.1:{guarded.port}") as hand:
        hand.open()
        found += complaints(hand, font, scheme, folder, "login", keeps_all=True)
        log_in(hand, "boss", guarded.password)
        hand.tab.locator("tbody tr").first.wait_for()
        found += complaints(hand, font, scheme, folder, "logged-in", keeps_all=True)
    assert found == []


@pytest.mark.proof
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_serious_in_any_layout(in_font: tuple[str, Any], shop: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="there is no axe here: make dev").Axe()
    window = {"width": width, "height": HEIGHTS.get(width, 900)}
    with Hand.at(in_font[1], shop, color_scheme=scheme, viewport=window, bypass_csp=True) as hand:
        for name, go in LAYOUTS.items():
            go(hand)
            assert serious(axe, hand) == [], name
            hand.tab.keyboard.press("Escape")


# A phone


@pytest.fixture
def phone(in_font: tuple[str, Any], shop: str) -> Iterator[Hand]:
    _, browser = in_font
    with Hand.at(browser, shop, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as hand:
        yield hand


def test_header_of_a_phone_is_one_line_with_the_current_view_in_sight(phone: Hand) -> None:
    for view in ("queues", "dead", "exchanges", "node"):
        phone.open(f"#/{view}")
        phone.tab.locator("nav a[aria-current=page]").wait_for()
        header, nav, current = (
            phone.tab.locator(which).bounding_box() for which in ("header", "nav", "nav a[aria-current=page]")
        )
        assert header["height"] <= 60, view
        assert nav["x"] <= current["x"] < current["x"] + current["width"] <= nav["x"] + nav["width"] + 1, view


def test_reason_of_a_dead_letter_is_on_the_screen_of_a_phone(phone: Hand) -> None:
    phone.open("#/dead")
    reason = phone.tab.get_by_text("the card was declined").first
    reason.wait_for()
    box = reason.bounding_box()
    assert 0 <= box["x"] < box["x"] + box["width"] <= 390
    assert box["y"] < 844


# What is shown of a busy shop


@pytest.fixture
def desk(in_font: tuple[str, Any], shop: str) -> Iterator[Hand]:
    _, browser = in_font
    with Hand.at(browser, shop, viewport={"width": 1280, "height": 900}) as hand:
        yield hand


def test_first_message_of_a_queue_is_on_the_screen(desk: Hand) -> None:
    desk.open(f"#/queue/{QUEUE}")
    first = desk.tab.locator("button.look").first
    first.wait_for()
    assert first.bounding_box()["y"] < 800
    assert desk.tab.locator("form.publish").is_hidden()


def test_dead_letters_are_counted_in_the_queues_that_have_some(desk: Hand) -> None:
    desk.open("#/dead")
    desk.sees("68 dead letters in 5 queues")


def test_row_of_a_dead_letter_begins_with_its_error(desk: Hand) -> None:
    desk.open("#/dead")
    row = desk.row("no such customer: 4711").first
    row.wait_for()
    assert row.inner_text().strip().startswith("no such customer: 4711\nnot acknowledged after 1 delivery")


def test_message_leased_over_amqp_shows_its_delivery_and_how_long_it_lasts(desk: Hand) -> None:
    _leased(desk)
    cells = desk.tab.locator("section[aria-label=Messages] tbody tr").first.locator("td.short").all_inner_texts()
    assert cells[1:3] == ["leased until the consumer's connection closes", "1"]


def test_redrive_is_offered_where_there_are_dead_letters(desk: Hand) -> None:
    for name, is_offered in ((QUEUE, False), (f"{BASES[20]}.dead", False), (DEAD, True)):
        desk.open(f"#/queue/{name}")
        desk.tab.locator(".tiles dd", has_text=re.compile(r"\d")).first.wait_for()
        if name != f"{BASES[20]}.dead":
            desk.tab.locator("button.look").first.wait_for()
        offered = desk.tab.get_by_role("button", name=re.compile("Redrive"))
        desk.until(lambda offered=offered, is_offered=is_offered: (offered.count() > 0) == is_offered)


def test_consumers_of_queues_are_a_column_to_sort_by(desk: Hand) -> None:
    desk.open("#/queues")
    desk.click("button", "Consumers")
    rows = desk.tab.locator("table.queues tbody tr")
    desk.until(lambda: rows.first.locator("td").nth(4).inner_text() == "2")
    assert rows.first.locator("th").inner_text() == QUEUE


def test_picture_of_bindings_has_no_label_over_another_and_no_line_through_a_node(desk: Hand) -> None:
    desk.open("#/exchanges")
    desk.tab.locator("svg.bindings g.way").first.wait_for()
    assert desk.tab.locator("svg.bindings .key").count() >= 10
    assert desk.tab.evaluate(f"() => ({PICTURE}).ofShown()") == []


def test_picture_of_any_graph_has_no_label_over_another_and_no_line_through_a_node(desk: Hand) -> None:
    desk.open("#/exchanges")
    address = f"{desk.url}{FOLDER}{page_files().version}/graph.js"
    for count, nodes, lines in ((60, 8, 12), (20, 30, 60)):
        measured = f"([address, count, nodes, lines]) => ({PICTURE}).ofRandom(address, count, nodes, lines)"
        assert desk.tab.evaluate(measured, [address, count, nodes, lines]) == []
