"""The forgetful disk as mounted: what a broker does works on it, and the next process sees a cut."""

import ctypes
import fcntl
import mmap
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.power_mount import PowerCutMount, mounted, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[PowerCutMount]:
    with mounted(tmp_path / "disk") as disk:
        yield disk


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def in_child(code: str, path: Path) -> str:
    """Run Python in a process that ends without closing anything cleanly, as before a power cut."""
    script = f"import os, sys\npath = sys.argv[1]\n{code}\nsys.stdout.flush()\nos._exit(0)"
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


WRITER = """
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"synced" * 1000, 0)
os.{sync}(fd)
os.pwrite(fd, b"volatile" * 1000, 6000)
"""


@pytest.mark.parametrize("sync", ["fsync", "fdatasync"])
def test_a_cut_forgets_what_came_after_the_sync(mount: PowerCutMount, sync: str) -> None:
    path = mount.path / "a"
    in_child(WRITER.format(sync=sync), path)
    sync_directory(mount.path)
    assert path.read_bytes() == b"synced" * 1000 + b"volatile" * 1000
    assert mount.state()["volatile"] == ["/a"]
    mount.cut()
    assert path.stat().st_size == 6000
    assert path.read_bytes() == b"synced" * 1000
    assert in_child("print(len(open(path, 'rb').read()))", path) == "6000"


def test_a_cut_forgets_names_whose_directory_was_not_synced(mount: PowerCutMount) -> None:
    in_child(WRITER.format(sync="fsync"), mount.path / "a")
    in_child(WRITER.format(sync="fsync"), mount.path / "b")
    sync_directory(mount.path)
    os.rename(mount.path / "a", mount.path / "c")
    os.unlink(mount.path / "b")
    in_child(WRITER.format(sync="fsync"), mount.path / "d")
    assert sorted(os.listdir(mount.path)) == ["c", "d"]
    mount.cut()
    assert sorted(os.listdir(mount.path)) == ["a", "b"]
    assert (mount.path / "b").read_bytes() == b"synced" * 1000
    (mount.path / "d").write_bytes(b"again")
    assert (mount.path / "d").read_bytes() == b"again"


def test_not_strict_keeps_names_with_any_sync(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", strict=False) as mount:
        (mount.path / "d").mkdir()
        in_child(WRITER.format(sync="fsync"), mount.path / "d" / "a")
        mount.cut()
        assert (mount.path / "d" / "a").stat().st_size == 6000


UNSYNCED = """
fd = os.open(path, os.O_RDWR)
os.ftruncate(fd, 0)
os.fsync(fd)
os.pwrite(fd, b"n" * 40960, 0)
"""


def test_a_torn_cut_is_a_mixture(mount: PowerCutMount) -> None:
    path = mount.path / "a"
    path.write_bytes(b"")
    sync_directory(mount.path)
    sizes = set()
    for seed in range(20):
        in_child(UNSYNCED, path)
        mount.cut("torn", seed)
        data = path.read_bytes()
        sizes.add((len(data), data.count(b"n")))
    assert len(sizes) > 5


def test_syncfs_does_not_reach_the_mount(mount: PowerCutMount) -> None:
    """Known and important: on FUSE the kernel answers syncfs itself, so no broker may rely on it there."""
    path = mount.path / "a"
    path.write_bytes(b"x")
    descriptor = os.open(path, os.O_RDWR)
    assert ctypes.CDLL(None).syncfs(descriptor) == 0
    os.close(descriptor)
    assert mount.state()["volatile"] == ["/", "/a"]


def test_open_files_outlive_their_names(mount: PowerCutMount) -> None:
    path = mount.path / "d" / "a"
    path.parent.mkdir()
    path.write_bytes(b"still here")
    descriptor = os.open(path, os.O_RDWR)
    os.unlink(path)
    assert os.listdir(path.parent) == []
    assert os.fstat(descriptor).st_size == 10
    assert os.pread(descriptor, 10, 0) == b"still here"
    os.ftruncate(descriptor, 5)
    assert os.pread(descriptor, 10, 0) == b"still"
    path.parent.rmdir()
    assert os.pread(descriptor, 10, 0) == b"still"
    os.close(descriptor)


def test_locks_mappings_advice_and_space(mount: PowerCutMount) -> None:
    path = mount.path / "a"
    path.write_bytes(bytes(8192))
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with mmap.mmap(first, 8192) as mapping:
        mapping[0:5] = b"hello"
        assert os.pread(second, 5, 0) == b"hello"
    os.posix_fadvise(first, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fallocate(first, 0, 10000)
    assert os.fstat(second).st_size == 10000
    free = os.statvfs(mount.path).f_bavail * 4096
    assert 0 < free <= (1 << 30) - 10000
    os.close(first)
    os.close(second)


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", capacity_bytes=1 << 20) as mount:
        (mount.path / "filler").write_bytes(bytes(1 << 19))
        with pytest.raises(OSError, match="No space left"):
            (mount.path / "a").write_bytes(bytes(1 << 20))
        (mount.path / "filler").unlink()
        (mount.path / "a").write_bytes(bytes(1 << 20))


SQLITE = """
import sqlite3
db = sqlite3.connect(path, isolation_level=None)
assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
db.execute("pragma synchronous={synchronous}")
db.execute("create table if not exists t (a integer)")
for i in range(100):
    db.execute("insert into t values (?)", (i,))
"""


@pytest.mark.parametrize("kind", ["drop", "torn"])
def test_sqlite_in_wal_mode_keeps_its_commits(mount: PowerCutMount, kind: str) -> None:
    (mount.path / "meta").mkdir()
    sync_directory(mount.path)
    path = mount.path / "meta" / "db"
    for round_number in range(1, 4):
        in_child(SQLITE.format(synchronous="full"), path)
        assert (path.parent / "db-shm").exists()
        mount.cut(kind, round_number)  # type: ignore[arg-type]
        with sqlite3.connect(path) as db:
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
            assert db.execute("select count(*) from t").fetchone() == (100 * round_number,)
        db.close()


def test_sqlite_without_full_sync_loses_commits(mount: PowerCutMount) -> None:
    """The disk bites: in WAL mode `synchronous=normal` does not sync at commit."""
    path = mount.path / "db"
    in_child(SQLITE.format(synchronous="full"), path)
    in_child(SQLITE.format(synchronous="normal"), path)
    mount.cut()
    with sqlite3.connect(path) as db:
        rows = db.execute("select count(*) from t").fetchone()[0]
    db.close()
    assert 100 <= rows < 200
