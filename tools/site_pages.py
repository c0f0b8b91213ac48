"""Makes pages of the site of the texts that stand beside docs/: README, CONTRIBUTING, CHANGELOG, the pages of the
plugins.

A hook of mkdocs (``mkdocs.yml``). A link from one page to another is put right where one of the two stands elsewhere on
the site than in the tree; a link to what is no page, such as a file of the code, becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

TREE: Final = Path(__file__).resolve().parent.parent
MOVED: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    **{
        f"plugins/{path.parent.name}/README.md": f"plugins/{path.parent.name}.md"
        for path in TREE.glob("plugins/*/*.md")
    },
}
"""Path in the tree -> path on the site, of what does not stand in docs/."""
_ORIGIN: Final = {place: path for path, place in MOVED.items()}
_LINK: Final = re.compile(
    r"(?P<code>```.*?```|`[^`\n]*`)|(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)", re.DOTALL
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand elsewhere in the tree."""
    for path, place in MOVED.items():
        files.append(File.generated(config, place, content=(TREE / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the links of a page right."""
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, place: str) -> str:
    """The text of the page at `place` on the site, with links that fit there."""
    origin = _ORIGIN.get(place, f"docs/{place}")

    def put_right(found: re.Match[str]) -> str:
        if found["code"] is not None or re.match(r"[a-z]+:|#", found["target"]):
            return found[0]
        path, hash, anchor = found["target"].partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        target = MOVED.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None:
            return found["text"]
        target = posixpath.relpath(target, posixpath.dirname(place) or ".")
        return f"{found['picture']}[{found['text']}]({target}{hash}{anchor})"

    return _LINK.sub(put_right, markdown)
