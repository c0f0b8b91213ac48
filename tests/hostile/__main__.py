"""``python -m tests.hostile``: the table of :mod:`tests.hostile.cheap_frames`."""

from __future__ import annotations

import sys

from tests.hostile.cheap_frames import main

sys.exit(main())
