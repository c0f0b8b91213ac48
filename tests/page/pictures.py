"""The pictures of the docs, and from which markup and style each was made.

Each picture shows a view, which is made by its modules. Their digest is kept beside the pictures, so that a change of a
view without its picture is noticed without a browser.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from mq.web.page_files import INDEX, page_files

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "page"
DIGESTS: Final = FOLDER / "pictures.json"
NO_MARKUP: Final = frozenset({"api.js", "live.js"})
"""Modules that ask mq, and show nothing."""
_IMPORT: Final = re.compile(r'from "\./([^"]+)"')
_COMMENT: Final = re.compile(rb"^\s*(//.*|/\*.*\*/|\*.*|/\*\*.*)?$\n?", re.MULTILINE)
"""Empty lines too: what changes nothing that is shown."""


class Picture(NamedTuple):
    """A picture."""

    place: str
    module: str
    scheme: str
    size: tuple[int, int]


PICTURES: Final = {
    "queues": Picture("#/queues", "queues.js", "light", (960, 480)),
    "queue": Picture("#/queue/orders", "queue.js", "light", (960, 640)),
    "dead": Picture("#/dead", "dead.js", "light", (960, 640)),
    "message": Picture("#/dead", "message.js", "light", (960, 640)),
    "consumers": Picture("#/consumers", "connections.js", "dark", (960, 320)),
    "connections": Picture("#/connections", "connections.js", "dark", (960, 400)),
    "exchanges": Picture("#/exchanges", "exchanges.js", "light", (960, 480)),
    "node": Picture("#/node", "node.js", "dark", (960, 480)),
    "phone": Picture("#/queues", "queues.js", "light", (360, 640)),
}
"""By name: that of its file, without the end."""


def digest_of(picture: Picture) -> str:
    """The digest of the markup and the style that a picture shows, whatever comments say."""
    files = page_files().files
    wanted, found = [picture.module, "page.css", INDEX], {"page.js"}
    while wanted:
        name = wanted.pop()
        if name not in found | NO_MARKUP:
            found.add(name)
            wanted += _IMPORT.findall(files[name].body.decode())
    digest = hashlib.sha256()
    for name in sorted(found):
        body = files[name].body.replace(page_files().version.encode(), b"VERSION")
        digest.update(b"%b\n%b" % (name.encode(), _COMMENT.sub(b"", body)))
    return digest.hexdigest()[:16]


def digests() -> dict[str, str]:
    """Those of all pictures, as they are now."""
    return {name: digest_of(picture) for name, picture in PICTURES.items()}


def kept_digests() -> dict[str, str]:
    """Those of the markup and the style of which the pictures were made."""
    found: dict[str, str] = json.loads(DIGESTS.read_text("utf-8"))
    return found
