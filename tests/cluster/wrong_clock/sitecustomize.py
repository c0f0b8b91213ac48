"""On the path of a daemon, it lets the clock on its wall go wrong by so many seconds (``WRONG_BY_SECONDS``)."""

import os
import time

_by = float(os.environ["WRONG_BY_SECONDS"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _by
time.time_ns = lambda: _time_ns() + int(_by * 1e9)
