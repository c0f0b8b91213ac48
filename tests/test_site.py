"""The site of the docs: every page is in it once, its links lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

TREE: Final = Path(__file__).resolve().parent.parent
SECTIONS: Final = ["mq", "Tutorial", "How-to", "Reference", "Explanation", "Maintainers"]
LOADS: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "video": "src"}
"""Element -> the attribute that names what a browser loads for it."""


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, and passes over what only mkdocs can make."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: None)


def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((TREE / "mkdocs.yml").read_text(), _Loader)
    return found


def pages(nav: Any) -> Iterator[str]:
    for entry in nav:
        for place in entry.values():
            yield from [place] if isinstance(place, str) else pages(place)


def test_every_page_has_one_place() -> None:
    there = {str(path.relative_to(TREE / "docs")) for path in (TREE / "docs").rglob("*.md")}
    there |= {f"plugins/{path.parent.name}.md" for path in TREE.glob("plugins/*/README.md")}
    there |= {"index.md", "contributing.md", "changelog.md"}
    found = list(pages(config()["nav"]))
    assert sorted(found) == sorted(there)
    assert [name for entry in config()["nav"] for name in entry] == SECTIONS


def test_links_are_checked_and_fonts_are_the_readers() -> None:
    found = config()
    assert found["strict"] is True
    assert set(found["validation"]["links"].values()) == {"warn"}
    assert found["theme"]["font"] is False


class _Loaded(HTMLParser):
    """Gathers what a page has a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if value and LOADS.get(tag) == name]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path / "site"],
        cwd=TREE,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = list((tmp_path / "site").rglob("*.html"))
    assert len(made) > len(list(pages(config()["nav"])))  # 404, too
    for page in made:
        loaded = _Loaded()
        loaded.feed(page.read_text())
        assert loaded.addresses
        assert not [address for address in loaded.addresses if re.match(r"(https?:)?//", address)], page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_links_are_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(TREE / "tools"))
    from site_pages import relinked

    assert (
        relinked("[a](docs/cli.md#doctor) ![b](docs/page/q.png)", "index.md") == "[a](cli.md#doctor) ![b](page/q.png)"
    )
    assert relinked("[a](../README.md) [b](http.md)", "cli.md") == "[a](index.md) [b](http.md)"
    assert relinked("[a](../../docs/cli.md)", "plugins/mq-etcd.md") == "[a](../cli.md)"
    assert relinked("[a](../plugins/mq-etcd/README.md#x)", "cluster.md") == "[a](plugins/mq-etcd.md#x)"
    assert relinked("[the rules](../deploy/alerts.yml), `[a](b.md)`", "metrics.md") == "the rules, `[a](b.md)`"
    assert relinked("[a](#below) [b](http://127.0.0.1/)", "cli.md") == "[a](#below) [b](http://127.0.0.1/)"
