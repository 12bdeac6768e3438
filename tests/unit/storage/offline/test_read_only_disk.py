"""A disk for looking only: whatever the disk port can change, it refuses."""

import inspect
from pathlib import Path

import pytest

from penstock.ports.disk import Disk
from penstock.storage.offline.read_only_disk import ReadOnlyDisk

LOOKING = {"open", "list_dir", "exists", "is_dir", "space", "run", "run_first"}
ARGUMENTS = {"rename": ("x", "y"), "sync_dirs": (["x"],), "sync_files": ([],)}
CHANGING = sorted(
    name for name, _ in inspect.getmembers(Disk, inspect.isfunction) if not name.startswith("_") and name not in LOOKING
)


@pytest.mark.parametrize("method", CHANGING)
def test_every_change_is_refused(method: str) -> None:
    disk = ReadOnlyDisk()
    with pytest.raises(OSError, match="Read-only file system"):
        getattr(disk, method)(*ARGUMENTS.get(method, ("x",)))
    disk.close()


def test_files_are_opened_for_reading(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"kept")
    disk = ReadOnlyDisk()
    file = disk.open(str(tmp_path / "f"))
    assert file.read_at(4, 0) == b"kept"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_at(b"x", 0)
    with pytest.raises(OSError, match="Read-only file system"):
        disk.open(str(tmp_path / "g"), create=True)
    file.close()
    disk.close()
