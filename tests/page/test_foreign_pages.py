"""A page of another origin, in a browser on the machine of a daemon without users, gets nothing done there."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon
from tests.page.hand import Hand

pytestmark = pytest.mark.slow

HOSTS = ("127.0.0.1", "localhost")
"""Of the same site, as browsers have it, and of another."""

ATTACK = """<!doctype html><title>working</title>
<iframe id="frame" src="{target}/"></iframe>
<form id="form" action="{target}/q/messages" method="post" enctype="text/plain" target="sink">
<input name="planted" value="by a form"></form><iframe name="sink"></iframe>
<script>
const tries = [
  () => fetch("{target}/q/messages", {{method: "POST", mode: "no-cors", body: new Blob(["<b>planted</b>"])}}),
  () => fetch("{target}/q/messages", {{method: "POST", mode: "no-cors", body: "planted", credentials: "include"}}),
  () => fetch("{target}/q/purge", {{method: "POST", mode: "no-cors"}}),
  () => fetch("{target}/planted", {{method: "PUT"}}),
  () => fetch("{target}/q", {{method: "DELETE"}}),
  () => fetch("{target}/q/messages").then(answer => answer.text()).then(text => {{ window.stolen = text; }}),
];
const ends = tries.map(one => one().then(() => "done", error => "refused"));
document.getElementById("form").submit();
Promise.all(ends).then(() => {{ document.title = "tried"; }});
</script>"""


@contextmanager
def stranger(browser: Any) -> Iterator[Any]:
    """A tab for pages of others, which may complain in the console."""
    context = browser.new_context()
    try:
        yield context.new_page()
    finally:
        context.close()


@pytest.fixture
def elsewhere() -> Iterator[tuple[int, list[str]]]:
    """A server of pages: its port, and the list of what its one page has (to be filled in)."""
    page: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write("".join(page).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_address[1], page
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("host", HOSTS)
def test_a_foreign_page_gets_nothing_done(
    browser: Any, daemon: Any, elsewhere: tuple[int, list[str]], host: str
) -> None:
    target = f"http://127.0.0.1:{daemon.port}"

    def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        asked = urllib.request.Request(f"{target}{path}", body, method=method)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found: bytes = answer.read()
            return found

    ask("PUT", "/q")
    ask("POST", "/q/messages", b"a secret")
    port, page = elsewhere
    page[:] = [ATTACK.format(target=target)]
    with stranger(browser) as tab:
        answers: list[tuple[str, str, int]] = []
        tab.on("response", lambda answer: answers.append((answer.request.method, answer.url, answer.status)))
        tab.goto(f"http://{host}:{port}/")
        tab.wait_for_function("document.title == 'tried'")
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate("window.stolen") is None
        asked = [(method, status) for method, url, status in answers if url.startswith(target)]
    assert ("POST", 403) in asked
    assert ("GET", 403) in asked
    assert not [one for one in asked if one[1] < 400]
    assert b'"ready": 1' in ask("GET", "/q")
    assert ask("GET", "/q/messages") == b"a secret"
    assert b"planted" not in ask("GET", "/-/queues")
    ask("DELETE", "/q")


def test_the_attack_works_where_nothing_guards(browser: Any, elsewhere: tuple[int, list[str]]) -> None:
    """Else the test above would show nothing."""
    reached = []

    class Naive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reached.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    port, page = elsewhere
    with ThreadingHTTPServer(("127.0.0.1", 0), Naive) as naive:
        serving = threading.Thread(target=naive.serve_forever)
        serving.start()
        page[:] = [ATTACK.format(target=f"http://127.0.0.1:{naive.server_address[1]}")]
        with stranger(browser) as tab:
            tab.goto(f"http://localhost:{port}/")
            tab.wait_for_function("document.title == 'tried'")
            tab.wait_for_load_state("networkidle")
        naive.shutdown()
        serving.join()
    assert ("/q/messages", b"<b>planted</b>") in reached
    assert ("/q/messages", b"planted=by a form\r\n") in reached


def test_an_image_leases_nothing_where_browsers_send_no_metadata(
    browser: Any, tmp_path: Path, elsewhere: tuple[int, list[str]]
) -> None:
    """Without TLS, under a name of the network, a browser says nothing of where an image comes from."""
    port, page = elsewhere
    with Daemon(tmp_path / "root", tmp_path / "log", "--hosts", "mq.test") as daemon:
        target, direct = f"http://mq.test:{daemon.port}", f"http://127.0.0.1:{daemon.port}"
        for method, path, body in (("PUT", "/q", None), ("POST", "/q/messages", b"a secret")):
            urllib.request.urlopen(urllib.request.Request(direct + path, body, method=method), timeout=10).close()
        image = f"""<img src="{target}/q/messages" onerror="document.title = 'tried'">"""
        page[:] = ["<!doctype html><title>working</title>", image]
        with stranger(browser) as tab:
            asked: list[Any] = []
            tab.on("requestfailed", lambda request: asked.append(request))
            tab.goto(f"http://page.test:{port}/")
            tab.wait_for_function("document.title == 'tried'")
            [request] = asked
            assert request.url == f"{target}/q/messages"
            assert "sec-fetch-site" not in request.all_headers()
        assert 'operation="GET /q/messages" why="page"' in (tmp_path / "log").read_text()
        with Hand.at(browser, target) as hand:  # the console works there all the same
            hand.open()
            hand.click("link", "q")
            hand.row("a secret").wait_for()
        assert urllib.request.urlopen(f"{direct}/q/messages", timeout=10).read() == b"a secret"
        daemon.stop()
