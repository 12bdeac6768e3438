"""`python -m bench.sync_rounds`: what one sync round costs, by how many files are dirty and how they are synced.

Each file gets 16 KiB before every round. Median and worst, in milliseconds; with `--neighbour`, while another process
writes 100 MB/s to the same file system without ever syncing, and with rounds 0.1 s apart.
See docs/adr/0003-sync-rounds.md.
"""

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILES = (1, 2, 3, 6, 50, 300, 1000)
WRITE = os.urandom(16 * 1024)
THREADS = 8
NEIGHBOUR = """
import os, sys, time
file, block = open(sys.argv[1], "wb", buffering=0), os.urandom(1 << 20)
while True:
    file.write(block)
    if file.tell() > 500 << 20:
        file.seek(0)
    time.sleep(0.01)
"""


def strategies(pool: ThreadPoolExecutor) -> dict[str, Callable[[list[int]], object]]:
    libc = ctypes.CDLL(None, use_errno=True)

    def one_by_one(fds: list[int]) -> None:
        for fd in fds:
            os.fdatasync(fd)

    def in_threads(fds: list[int]) -> None:
        list(pool.map(os.fdatasync, fds))

    def whole_file_system(fds: list[int]) -> None:
        if libc.syncfs(fds[0]) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")

    return {"fdatasync each": one_by_one, f"{THREADS} threads": in_threads, "syncfs": whole_file_system}


def measure(directory: Path, count: int, rounds: int, pause_s: float) -> dict[str, tuple[float, float]]:
    fds = [os.open(directory / f"{count}-{number}", os.O_RDWR | os.O_CREAT, 0o600) for number in range(count)]
    took: dict[str, list[float]] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        ways = strategies(pool)
        for number in range(rounds + 1):
            for way, (name, sync) in enumerate(ways.items()):
                time.sleep(pause_s)
                for fd in fds:
                    os.pwrite(fd, WRITE, (number * len(ways) + way) * len(WRITE))
                started = time.perf_counter()
                sync(fds)
                if number:  # the first round allocates
                    took.setdefault(name, []).append((time.perf_counter() - started) * 1000)
    for fd in fds:
        os.close(fd)
    return {name: (statistics.median(values), max(values)) for name, values in took.items()}


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        neighbour = None
        if "--neighbour" in sys.argv[1:]:
            neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, f"{made}/neighbour"])
        try:
            if neighbour is None:
                rows = {count: measure(Path(made), count, 200 if count < 50 else 20, 0) for count in FILES}
            else:
                rows = {count: measure(Path(made), count, 30, 0.1) for count in FILES[:-1]}
        finally:
            if neighbour is not None:
                neighbour.kill()
                neighbour.wait()
    names = list(next(iter(rows.values())))
    print("| dirty files | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for count, row in rows.items():
        print(f"| {count} | " + " | ".join("{:.2f} / {:.1f}".format(*row[name]) for name in names) + " |")


if __name__ == "__main__":
    main()
