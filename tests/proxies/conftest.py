"""A daemon with users behind a proxy, each proxy in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mq.access.aws_keys import AwsKey
from mq.access.users_editor import UsersFile
from mq.testing.ports import HeldPort
from tests.access.files import TOKEN, write_users
from tests.cases import proof
from tests.e2e.daemon import Daemon
from tests.proxies.servers import Files, documented, fitted, running

USERS = """
[users.boss]
password = "PASSWORD"
tokens = ["TOKEN"]
administer = ["*"]
"""

# What most guides have: no port in Host, HTTP/1.0, no X-Forwarded-Host, buffering.
MOST_GUIDES = """
server {
    listen 8443 ssl;
    ssl_certificate /etc/mq/tls/cert.pem;
    ssl_certificate_key /etc/mq/tls/key.pem;
    client_max_body_size 8m;
    location / {
        proxy_pass http://127.0.0.1:8080;
        proxy_set_header Host $host;
        proxy_set_header X-Real-IP $remote_addr;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
    }
}
"""
STRIPPING = MOST_GUIDES.replace("location / {", "location /mq/ {").replace(":8080;", ":8080/;")
"""The proxy takes the path away itself."""
HAPROXY_PATH = "use_backend mq if { path_beg /mq/ }"

TRUSTED = ("--trusted-proxies", "127.0.0.1")
UNDER = (*TRUSTED, "--base-path", "/mq")
CASES = {
    "nginx": ("nginx", lambda: documented("nginx"), "", TRUSTED),
    "nginx under a path": ("nginx", lambda: documented("nginx", 1), "/mq", UNDER),
    "nginx of most guides": ("nginx", lambda: MOST_GUIDES, "", TRUSTED),
    "nginx of most guides, not trusted": ("nginx", lambda: MOST_GUIDES, "", ()),
    "nginx that takes the path away": ("nginx", lambda: STRIPPING, "/mq", UNDER),
    "haproxy": ("haproxy", lambda: documented("haproxy"), "", TRUSTED),
    "haproxy under a path": (
        "haproxy",
        lambda: documented("haproxy").replace("default_backend mq", HAPROXY_PATH),
        "/mq",
        UNDER,
    ),
    "caddy": ("caddy", lambda: documented("caddy"), "", TRUSTED),
    "caddy under a path": (
        "caddy",
        lambda: documented("caddy").replace("\treverse_proxy", "\thandle /mq/* {\n\treverse_proxy") + "}\n",
        "/mq",
        UNDER,
    ),
}


class Proxied(NamedTuple):
    """A daemon behind a proxy."""

    url: str
    path: str
    daemon: Daemon
    files: Files
    key: AwsKey
    audit: Path
    is_trusted: bool

    @property
    def origin(self) -> str:
        return self.url.removesuffix(self.path)


EACH_COMMIT = ("nginx under a path", "nginx of most guides, not trusted", "haproxy", "caddy under a path")
"""Each proxy, at the root and under a path, trusted and not. The others are for ``make proof``."""


@pytest.fixture(scope="module", params=[name if name in EACH_COMMIT else proof(name) for name in CASES], ids=str)
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    name, text, path, flags = CASES[request.param]
    folder = tmp_path_factory.mktemp("proxied")
    files, port = Files(folder), HeldPort()
    users = write_users(folder / "users.toml", USERS)
    key = UsersFile(users).add_aws_key("boss")
    options = ("--users", users, "--audit", str(folder / "audit"), *flags)
    with Daemon(folder / "root", folder / "log", *options) as daemon:
        with running(name, folder / name, fitted(text(), port.number, daemon.port, files), port.number):
            url = f"https://localhost:{port}{path}"
            yield Proxied(url, path, daemon, files, key, folder / "audit", bool(flags))
        daemon.stop()
    assert "Traceback" not in (folder / "log").read_text()


AUTHORIZATION = {"authorization": f"Bearer {TOKEN}"}
