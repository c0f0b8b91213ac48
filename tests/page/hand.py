"""Somebody at the page: clicks, and counts them; what the browser complains of fails the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

SECONDS = 60
"""Only what hangs takes as long."""
MOST_TABS = 60
_REFUSED = re.compile("the server responded with a status of 4")
"""The browser notes each refusal of mq's, which is for the page to tell."""
_FOCUSED = """(() => {
    const it = document.activeElement;
    return [it.ariaLabel, it.textContent.trim(), ...[...(it.labels ?? [])].map((label) => label.textContent)];
})()"""
"""What the focused element is called."""


@contextmanager
def started_browser(environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A Chromium of one's own, on the network of this thread; without one the test skips."""
    api = pytest.importorskip("playwright.sync_api", reason="there is no playwright here: make dev")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no chromium here: sudo bash tests/setup-system.sh --yes")
    with api.sync_playwright() as playwright:
        # Its sandbox needs rights that tests in a container have not; it is led to our own pages alone.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP *.test 127.0.0.1"]
        browser = playwright.chromium.launch(
            executable_path=program, args=flags, env={**os.environ, **(environment or {})}
        )
        yield browser
        browser.close()


class _NoTab:
    """Takes the place of a tab."""

    def set_default_timeout(self, milliseconds: float) -> None:
        """There is nothing to wait for."""

    def on(self, event: str, tell: object) -> None:
        """Nothing happens."""

    def wait_for_timeout(self, milliseconds: float) -> None:
        time.sleep(milliseconds / 1000)


class Hand:
    """A tab of a browser, and who uses it.

    Attributes:
        clicks: so many until now.
        complaints: what the browser's console had to say that is wrong.
    """

    def __init__(self, tab: Any, url: str) -> None:
        self.tab = tab
        self.url = url
        self.clicks = 0
        self.complaints: list[str] = []
        tab.set_default_timeout(SECONDS * 1000)
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("console", self._note)

    @classmethod
    @contextmanager
    def alone(cls, url: str) -> Iterator[Hand]:
        """Without a tab: to ask the daemon, and to wait."""
        yield cls(_NoTab(), url)

    def _note(self, said: Any) -> None:
        if said.type in ("error", "warning") and _REFUSED.search(said.text) is None:
            self.complaints.append(said.text)

    @classmethod
    @contextmanager
    def at(cls, browser: Any, url: str, **options: Any) -> Iterator[Hand]:
        """In a session of its own: no cookie is shared with another test."""
        context = browser.new_context(**options)
        hand = cls(context.new_page(), url)
        try:
            yield hand
            assert hand.complaints == []
        finally:
            context.close()

    def open(self, place: str = "") -> None:
        """Lead the tab to the page, and wait until it shows something."""
        self.tab.goto(f"{self.url}/{place}")
        self.tab.wait_for_selector("h1")

    def press(self, text: str) -> None:
        """One click on what is called that and has no role of its own: what opens a part of the page."""
        self.clicks += 1
        self.tab.locator("summary", has_text=text).click()

    def open_all(self) -> None:
        """Open every part of the page that is closed."""
        self.tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")

    def click(self, role: str, name: str | re.Pattern[str], *, inside: Any = None) -> None:
        self.clicks += 1
        (inside or self.tab).get_by_role(role, name=name, exact=True).click()

    def write(self, label: str, text: str, *, inside: Any = None) -> None:
        """Fill a field. Keys are no clicks, but to get there is one."""
        self.clicks += 1
        (inside or self.tab).get_by_label(label, exact=True).fill(text)

    def sees(self, text: str, *, seconds: float = SECONDS) -> Any:
        """Wait until a text is to be seen."""
        found = self.tab.get_by_text(text).first
        found.wait_for(state="visible", timeout=seconds * 1000)
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the page is about to show."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, "it never came to that"
            self.tab.wait_for_timeout(20)

    def tab_to(self, name: str, *, back: bool = False) -> None:
        """Press Tab until the focus is on what has that name."""
        for _ in range(MOST_TABS):
            self.tab.keyboard.press("Shift+Tab" if back else "Tab")
            if name in self.tab.evaluate(_FOCUSED):
                return
        raise AssertionError(f"Tab does not lead to {name}")

    def row(self, text: str) -> Any:
        return self.tab.get_by_role("row").filter(has_text=text)

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> Any:
        """Ask the daemon past the page; the JSON that it answers, or the bytes."""
        data = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, named, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            found = reply.read()
        try:
            return json.loads(found)
        except ValueError:
            return found
