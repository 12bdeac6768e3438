"""Runs a command and ends as it does, after whatever it has left behind: `python reaper.py SECONDS COMMAND...`.

What has not ended by itself so many seconds after the command, as a JVM does that finds its driver gone, is killed.

The kernel tells a parent the CPU time of the children it has waited for. A JVM whose driver ends before it, or a broker
that a test has forgotten, would be a child of the first process of the machine then, and cost nothing.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main(grace_s: float, command: list[str]) -> int:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # Whoever interrupts the group means the command. A handler is not inherited by it; to ignore would be.
    signal.signal(signal.SIGINT, lambda *_: None)
    process = os.posix_spawnp(command[0], command, os.environ)
    while (found := os.wait())[0] != process:
        pass
    deadline = time.monotonic() + grace_s
    with suppress(ChildProcessError):  # there is none left
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                if time.monotonic() > deadline:
                    _kill_children()
                time.sleep(0.02)
    return max(os.waitstatus_to_exitcode(found[1]), -1) % 256


def _kill_children() -> None:
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
