"""mq behind nginx, HAProxy and Caddy: the console, clients over HTTP and SQS, live views, addresses."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mq.client import Access, Client
from tests.access.files import PASSWORD, TOKEN
from tests.page.hand import Hand, started_browser
from tests.proxies.conftest import AUTHORIZATION, Proxied
from tests.sqs.clients import make_client

pytestmark = pytest.mark.slow


@pytest.fixture
def http(proxied: Proxied) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(proxied.files.ca))
    with httpx.Client(verify=context, base_url=f"{proxied.url}/", timeout=30) as client:
        yield client


def test_the_page_and_its_files_are_there(proxied: Proxied, http: httpx.Client) -> None:
    page = http.get("")
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    named = [part.split('"')[0] for part in page.text.split('href="-')[1:]]
    assert named
    for address in named:
        assert http.get(f"-{address}").status_code == 200


def test_a_browser_logs_in_and_its_cookie_is_the_proxys(proxied: Proxied, http: httpx.Client) -> None:
    browser = {"origin": proxied.origin, "sec-fetch-site": "same-origin", "user-agent": "Mozilla/5.0"}
    reply = http.post("-/session", json={"name": "boss", "secret": PASSWORD}, headers=browser)
    assert reply.status_code == 200, reply.text
    guards = reply.headers["set-cookie"].split("; ")[1:]
    assert f"Path={proxied.path or '/'}" in guards
    assert ("Secure" in guards) is proxied.is_trusted
    shown = http.get("-/session", headers=browser)
    assert shown.json()["user"] == "boss"
    csrf = {"x-csrf-token": shown.json()["csrf"]}
    assert http.put("made", headers={**browser, **csrf}).status_code in (200, 201)
    assert http.delete("-/session", headers={**browser, **csrf}).status_code == 200


def test_a_page_of_another_origin_is_refused(proxied: Proxied, http: httpx.Client) -> None:
    for headers in (
        {"origin": "https://evil.test", "sec-fetch-site": "cross-site"},
        {"origin": "https://evil.test"},
        {"origin": proxied.origin, "sec-fetch-site": "cross-site"},
    ):
        assert http.put("planted", headers={**AUTHORIZATION, **headers}).status_code == 403


def test_a_client_publishes_fetches_and_waits(proxied: Proxied) -> None:
    access = Access(url=proxied.url, token=TOKEN, ca=proxied.files.ca)
    with Client(access) as client:
        client.create_queue("work")
        body = bytes(3 << 20)
        client.publish("work", body)
        message = client.fetch("work", wait=5)
        assert message is not None
        assert message.body == body
        client.remove(message)
        assert client.fetch("work", wait=0.2) is None


def test_sqs_works_with_signatures(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    if not proxied.is_trusted or "localhost" not in _host_that_arrives(proxied):
        pytest.skip("this configuration leaves out the port of Host, which SDKs sign: docs/proxies.md says so")
    key = {"aws_access_key_id": proxied.key.id, "aws_secret_access_key": proxied.key.secret}
    sqs = make_client(f"{proxied.url}/", "json", verify=str(proxied.files.ca), **key)
    url = sqs.create_queue(QueueName="sqs")["QueueUrl"]
    assert url == f"{proxied.url}/000000000000/sqs"
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "hello"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.close()


def _host_that_arrives(proxied: Proxied) -> str:
    """The Host with its port, where the proxy reports that; else nothing."""
    context = ssl.create_default_context(cafile=str(proxied.files.ca))
    asked = {"name": "boss", "secret": PASSWORD}
    reply = httpx.post(f"{proxied.url}/-/session", json=asked, verify=context)
    port = proxied.origin.rpartition(":")[2]
    return f"localhost:{port}" if reply.headers["set-cookie"].startswith(f"mq-session-{port}=") else ""


def test_live_views_come_through_as_they_are_made(proxied: Proxied, http: httpx.Client) -> None:
    """Buffered, nothing would come before the stream ends."""
    http.put("live", headers=AUTHORIZATION)
    with http.stream("GET", "-/events", params={"seconds": 60}, headers=AUTHORIZATION, timeout=20) as stream:
        events = stream.iter_lines()
        first = next(line for line in events if line.startswith("data: "))
        assert "live" in json.loads(first.removeprefix("data: "))["names"]
        http.post("live/messages", content=b"x", headers=AUTHORIZATION)
        for line in events:
            if line.startswith("data: ") and json.loads(line.removeprefix("data: ")).get("ready"):
                return
    raise AssertionError("the change did not come")


def test_the_audit_log_has_the_clients_address_and_takes_no_forged_one(proxied: Proxied, http: httpx.Client) -> None:
    context = ssl.create_default_context(cafile=str(proxied.files.ca))
    transport = httpx.HTTPTransport(verify=context, local_address="127.0.0.9")  # the proxy's is 127.0.0.1
    with httpx.Client(transport=transport, base_url=f"{proxied.url}/", headers=AUTHORIZATION) as client:
        for number, forged in enumerate(
            ({}, {"x-forwarded-for": "192.0.2.66"}, {"forwarded": "for=192.0.2.66"}, {"x-forwarded-for": "uid:0"})
        ):
            reply = client.put(f"audited{number}", headers=forged)
            assert reply.status_code == 201 or (reply.status_code == 400 and "forwarded" in forged)
    lines = [line for line in proxied.audit.read_text().splitlines() if 'queue="audited' in line]
    assert len(lines) >= 3
    address = "127.0.0.9" if proxied.is_trusted else "127.0.0.1"
    assert all(f'address="{address}"' in line for line in lines)


def test_the_base_path_without_a_slash_leads_to_the_page(proxied: Proxied) -> None:
    if not proxied.path:
        pytest.skip("this proxy serves mq at its root")
    context = ssl.create_default_context(cafile=str(proxied.files.ca))
    direct = httpx.get(f"http://127.0.0.1:{proxied.daemon.port}{proxied.path}")
    assert (direct.status_code, direct.headers["location"]) == (308, "mq/")
    assert httpx.get(f"{proxied.url}/", verify=context).status_code == 200


# A browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.mark.in_turn(2)
def test_the_console_works_in_a_browser(proxied: Proxied, browser: Any) -> None:
    with Hand.at(browser, proxied.url, ignore_https_errors=True) as hand:
        hand.open()
        hand.write("User name", "boss")
        hand.write("Password or token", PASSWORD)
        hand.click("button", "Log in")
        hand.tab.get_by_role("heading", name="Queues").wait_for()
        [cookie] = hand.tab.context.cookies()
        assert cookie["path"] == (proxied.path or "/")
        assert cookie["secure"] is proxied.is_trusted
        hand.press("New queue")
        hand.write("Queue name", "console")
        hand.click("button", "Create")
        hand.press("Publish a message")
        hand.write("Body", "seen by an event")
        hand.click("button", "Publish")
        hand.row("seen by an event").wait_for()
        hand.click("button", "Log out")
        hand.tab.get_by_role("heading", name="Log in").wait_for()
