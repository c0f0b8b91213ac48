"""The fonts in which the console is looked at: the default ones of most Linux desktops."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

FONTS: Final = {"Noto Sans": "fonts-noto-core", "DejaVu Sans": "fonts-dejavu-core"}
"""Font -> the package of Debian that has it."""
_CONFIGURATION: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<include>/etc/fonts/fonts.conf</include>
{matches}
</fontconfig>
"""
_MATCH: Final = """<match target="pattern"><test name="family"><string>{family}</string></test>
<edit name="family" mode="prepend" binding="strong"><string>{font}</string></edit></match>"""


def configured(folder: Path, font: str) -> dict[str, str]:
    """The environment in which a browser takes `font` where a page asks for the system's. Without it the test skips."""
    try:
        names = subprocess.run(
            ["fc-list", font, "family"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        names = ""
    if font not in names:
        pytest.skip(f"there is no {font} here ({FONTS[font]}): sudo bash tests/setup-system.sh --yes")
    wanted = {
        "system-ui": font,
        "sans-serif": font,
        "ui-monospace": "DejaVu Sans Mono",
        "monospace": "DejaVu Sans Mono",
    }
    matches = "\n".join(_MATCH.format(family=family, font=each) for family, each in wanted.items())
    file = folder / "fonts.conf"
    file.write_text(_CONFIGURATION.format(matches=matches))
    return {"FONTCONFIG_FILE": str(file)}
