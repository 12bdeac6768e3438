"""The process that works off jobs: a line of JSON in on stdin, a line out on stdout, at the lowest priority.

    python -m penstock.storage.compaction.worker PARENT_PID

It ends with its parent, by the kernel's hand and by asking: an orphan must not write files that belong to the pass of
a restarted broker by then. Its priority falls before the imports, which are a tenth of a second of work: a task of the
idle class gives way to whoever wakes up, nearly always at once, one that is only nice after a slice of milliseconds.
Niceness 19 is also the lowest best-effort I/O priority; the idle class of I/O may starve. The imports are interrupted
to offer the core to others, the passes do it by themselves (`pace`).
"""

import os
import signal
import sys

_IMPORT_STEP_S = 0.0002


def _step_back() -> None:
    os.nice(19)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _give_way_every(seconds: float) -> None:
    """From now on and again and again; 0 ends it."""
    signal.signal(signal.SIGALRM, lambda *_: os.sched_yield())
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


if __name__ == "__main__":
    _step_back()
    _give_way_every(_IMPORT_STEP_S)

import ctypes  # noqa: E402 - see above
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

import orjson  # noqa: E402

from penstock.storage.compaction.cleaning import clean  # noqa: E402
from penstock.storage.compaction.job import CompactionError, Job  # noqa: E402
from penstock.storage.local_disk import LocalDisk  # noqa: E402

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    _give_way_every(0)
    _die_with_parent()

    def proceed() -> None:
        if os.getppid() != parent:
            sys.exit(f"process {parent} is gone, nobody wants its compaction")

    for line in sys.stdin.buffer:
        proceed()
        sys.stdout.buffer.write(orjson.dumps(_answer(Job.decode(line), proceed)) + b"\n")
        sys.stdout.buffer.flush()


def _answer(job: Job, proceed: Callable[[], None]) -> dict[str, object]:
    disk = LocalDisk()
    try:
        result = clean(disk, job, monotonic=time.monotonic, pause=time.sleep, proceed=proceed, give_way=os.sched_yield)
    except CompactionError as error:
        return {"given_up": str(error)}
    except OSError as error:
        return {"disk": [error.errno, error.strerror, error.filename]}
    finally:
        disk.close()
    return {"result": result}


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
