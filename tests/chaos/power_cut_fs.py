"""A mounted file system on `PowerDisk`: un-fsynced data is lost when it is told to cut the power.

    python -m tests.chaos.power_cut_fs MOUNTPOINT [--not-strict] [--capacity-bytes N]

Control is by extended attributes of the mount point, so that no extra file is seen in it:

    setxattr user.power.cut  "drop"          forget all that is volatile
    setxattr user.power.cut  "torn 42"       keep a seeded random part of it
    getxattr user.power.state                counters and volatile paths, as JSON

Kill the processes that use the mount before a cut, as a power cut does. Writes reach this process when
write() is called: the kernel's write-back cache stays off. Attributes and names are not cached, and opening a
file drops its cached pages, so the next process sees what survived. flock and POSIX locks are the kernel's
own. Shared mappings work (SQLite's -shm file needs them); what is written through one is volatile until msync
or fsync.

syncfs(2) is answered by the kernel with success and never reaches a plain FUSE mount: here it makes nothing
durable.
"""

import argparse
import errno
import json
import os
import stat
import time
from dataclasses import asdict
from typing import Any, cast

import mfusepy

from tests.chaos.power_disk import PAGE, CutKind, Directory, File, Node, PowerDisk
from tests.chaos.power_mount import CUT, STATE


class Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """mfusepy 3.1 forgets the handle of ftruncate and fchmod, and with an open file there may be no path."""

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        return cast(int, self.ftruncate(path, length, fip))

    def chmod_fuse_3(self, path: bytes | None, mode: int, fip: Any) -> int:
        handle = fip.contents.fh if fip else None
        return cast(int, self.operations.chmod(path and path.decode(), mode, handle))


class PowerCutFs(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, disk: PowerDisk) -> None:
        self._disk = disk
        self._open: dict[int, Node] = {}
        self._next_handle = 1
        # libfuse turns the unlink of an open file into a rename to a hidden name, so that fstat still finds
        # it. Those names are kept beside the disk: for the disk the file is unlinked.
        self._unlinked: dict[str, File] = {}

    def _find(self, path: str | None, fh: int | None = None) -> Node:
        if fh:
            return self._open[fh]
        return self._unlinked.get(path or "/") or self._disk.find(path or "/")

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        config_3.use_ino = 1
        config_3.nullpath_ok = 1
        for timeout in ("entry_timeout", "negative_timeout", "attr_timeout"):
            setattr(config_3, timeout, 0.0)

    def _handle(self, node: Node) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = node
        return handle

    def _file(self, path: str | None, fh: int | None) -> File:
        node = self._find(path, fh)
        if not isinstance(node, File):
            raise OSError(errno.EISDIR, path)
        return node

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        node = self._find(path, fh)
        size = len(node.data) if isinstance(node, File) else PAGE
        return {
            "st_mode": node.mode,
            "st_ino": node.number,
            "st_nlink": 1 if isinstance(node, File) else 2,
            "st_size": size,
            "st_blocks": -(-size // 512),
            "st_blksize": PAGE,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": node.mtime_ns,
            "st_ctime": node.mtime_ns,
            "st_atime": node.mtime_ns,
        }

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return self._handle(self._disk.create(path, stat.S_IFREG | stat.S_IMODE(mode)))

    def mknod(self, path: str, mode: int, dev: int) -> int:
        if not stat.S_ISREG(mode):
            raise OSError(errno.EPERM, path)
        self._disk.create(path, mode)
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._disk.create(target, stat.S_IFLNK | 0o777).write(source.encode(), 0)
        return 0

    def readlink(self, path: str) -> str:
        return self._disk.file(path).data.decode()

    def open(self, path: str, flags: int) -> int:
        return self._handle(self._disk.file(path))

    def opendir(self, path: str) -> int:
        return self._handle(self._disk.directory(path))

    def release(self, path: str | None, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    releasedir = release

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._file(path, fh).data[offset : offset + size])

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        self._disk.write(self._file(path, fh), data, offset)
        return len(data)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        self._file(path, fh).truncate(length)
        return 0

    def fallocate(self, path: str | None, mode: int, offset: int, size: int, fh: int) -> int:
        if mode != 0:
            raise OSError(errno.EOPNOTSUPP, path)
        file = self._file(path, fh)
        file.truncate(max(len(file.data), offset + size))
        return 0

    def fsync(self, path: str | None, datasync: int, fh: int) -> int:
        self._disk.sync_file(self._file(path, fh))
        return 0

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        self._disk.sync_directory(cast(Directory, self._open[fh]))
        return 0

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        here = cast(Directory, self._open[fh])
        entries: dict[str, Node] = {".": here, "..": here, **here.names}
        return [(n, {"st_mode": e.mode, "st_ino": e.number}, 0) for n, e in entries.items()]

    def mkdir(self, path: str, mode: int) -> int:
        self._disk.make_directory(path, stat.S_IMODE(mode))
        return 0

    def rmdir(self, path: str) -> int:
        self._disk.remove_directory(path)
        return 0

    def unlink(self, path: str) -> int:
        if self._unlinked.pop(path, None) is None:
            self._disk.unlink(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        if "/.fuse_hidden" in new:
            self._unlinked[new] = self._disk.file(old)
            self._disk.unlink(old)
        else:
            self._disk.rename(old, new)
        return 0

    def chmod(self, path: str | None, mode: int, fh: int | None = None) -> int:
        node = self._find(path, fh)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return 0

    def chown(self, path: str | None, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        # futimens comes without a path and mfusepy hands no handle over; nothing here depends on the times.
        if path is not None:
            self._disk.find(path).mtime_ns = times[1] if times else time.time_ns()
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        free = max(0, self._disk.capacity_bytes - self._disk.used_bytes()) // PAGE
        total = self._disk.capacity_bytes // PAGE
        sizes = {"f_bsize": PAGE, "f_frsize": PAGE, "f_blocks": total, "f_bfree": free, "f_bavail": free}
        return {**sizes, "f_files": 1 << 20, "f_ffree": 1 << 20, "f_namemax": 255}

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        if (path, name) != ("/", CUT):
            raise OSError(errno.EOPNOTSUPP, path)
        kind, _, seed = bytes(value).decode().partition(" ")
        if kind not in ("drop", "torn"):
            raise OSError(errno.EINVAL, kind)
        self._disk.cut(cast(CutKind, kind), int(seed or 0))
        return 0

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        if (path, name) != ("/", STATE):
            raise OSError(errno.ENODATA, path)
        state = {**asdict(self._disk.counters), "used_bytes": self._disk.used_bytes()}
        return json.dumps({**state, "volatile": self._disk.volatile_paths()[:200]}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="mount a disk that forgets un-fsynced data on command")
    parser.add_argument("mount_point")
    parser.add_argument("--not-strict", action="store_true", help="any sync makes all names durable, as ext4 does")
    parser.add_argument("--capacity-bytes", type=int, default=1 << 30)
    arguments = parser.parse_args()
    disk = PowerDisk(strict=not arguments.not_strict, capacity_bytes=arguments.capacity_bytes)
    # One thread: requests are served in the order they arrive, and a cut falls between two of them.
    Fuse(PowerCutFs(disk), arguments.mount_point, foreground=True, nothreads=True, fsname="power-cut")


if __name__ == "__main__":
    main()
