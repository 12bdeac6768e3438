"""One line on standard error for each step, with the time since the start, so that a long run can be watched."""

import sys
import time

_STARTED = time.monotonic()


def say(text: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - _STARTED), 60)
    sys.stderr.write(f"{minutes:3d}:{seconds:02d}  {text}\n")
    sys.stderr.flush()
