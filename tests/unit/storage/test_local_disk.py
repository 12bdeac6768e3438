"""The disk of this machine, where it differs from what any other would do."""

import os
import resource
from pathlib import Path

from penstock.storage.local_disk import LocalDisk


def test_a_directory_is_synced_without_a_descriptor_to_spare(tmp_path: Path) -> None:
    disk = LocalDisk()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = os.open("/", os.O_RDONLY)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, before[1]))
        filler = []
        try:
            while True:
                filler.append(os.dup(held))
        except OSError:
            pass
        for _ in range(3):
            disk.sync_dir(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in (held, *filler):
            os.close(fd)
        disk.close()
