"""The operating system's disk behind the disk port: pread, pwrite, one sync round for many files, worker threads."""

import asyncio
import ctypes
import errno
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from typing_extensions import Buffer

from penstock.ports.disk import DirectoryLock, File, Space

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS = 8
# Where one `syncfs` is known to write back and flush every dirty page of the file system and to report errors.
# Elsewhere (FUSE, network file systems) it may be a silent no-op, so files are synced one by one.
_SYNCFS_TYPES = {0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs"}
_SYNCFS_KERNEL = (5, 8)  # the first one whose `syncfs` reports failed write-back
# One `syncfs` beats many fdatasyncs, but waits for everybody's dirty pages, so few files are synced by themselves.
# The tables these numbers come from are in docs/adr/0003-sync-rounds.md.
_THREADS_FROM_FILES = 3
_SYNCFS_FROM_FILES = 65
_PROBE_STEP = 512 * 1024  # a probe costs a microsecond; pages come and go in far larger stretches than this
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class LocalFile:
    """A descriptor, closed when the last user lets go of it: a pool may drop a file that is still being sent."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write_at(self, data: Buffer, position: int) -> None:
        view = memoryview(data)
        written = os.pwrite(self._fd, view, position)
        while written < len(view):
            step = os.pwrite(self._fd, view[written:], position + written)
            if step == 0:
                raise OSError(errno.ENOSPC, "device takes no more bytes", self.path)
            written += step

    def read_at(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def resident(self, size: int, position: int) -> bool:
        probe = bytearray(1)
        last = position + size - 1
        try:
            for at in (*range(position, last, _PROBE_STEP), last):
                os.preadv(self._fd, [probe], at, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # the file system cannot tell; tmpfs and FUSE
                return True
            raise
        return True

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def forget_cached(self, position: int, size: int = 0) -> None:
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _open_directory(path: str) -> int:
    return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


class _FileLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class LocalDisk:
    """The disk port on this machine. One per process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="penstock-disk")
        self._first_thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-commit")
        self._sync_threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="penstock-sync")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._syncfs_devices: dict[int, bool] = {}
        self._devices_lock = threading.Lock()
        self._spare_lock = threading.Lock()
        self._spare = _open_directory("/")

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return LocalFile(path, os.open(path, flags, 0o600))

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path) or "."
        self.make_dirs(parent)
        os.makedirs(path, 0o700, exist_ok=True)
        self.sync_dir(parent)

    def make_dir(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        try:
            fd = _open_directory(path)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            self._sync_dir_with_the_spare(path)
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _sync_dir_with_the_spare(self, path: str) -> None:
        """A round that names a new segment ends the broker if it fails, so it does not for want of a descriptor."""
        with self._spare_lock:
            if self._spare >= 0:
                os.close(self._spare)
                self._spare = -1
            fd = _open_directory(path)
            try:
                os.fsync(fd)
            finally:
                self._spare = fd  # any directory will do

    def sync_dirs(self, paths: Sequence[str]) -> None:
        one_per_device = {os.stat(path).st_dev: path for path in paths} if len(paths) >= _SYNCFS_FROM_FILES else {}
        fds = [_open_directory(path) for path in one_per_device.values()]
        try:
            if fds and all(map(self._syncfs_works, fds)):
                self._syncfs(fds)
                return
        finally:
            for fd in fds:
                os.close(fd)
        for path in paths:
            self.sync_dir(path)

    def sync_files(self, files: Sequence[File]) -> None:
        if len(files) >= _SYNCFS_FROM_FILES and all(self._syncfs_works(file.fileno()) for file in files):
            self._syncfs([file.fileno() for file in files])
        elif len(files) >= _THREADS_FROM_FILES:
            list(self._sync_threads.map(os.fdatasync, [file.fileno() for file in files]))
        else:
            for file in files:
                os.fdatasync(file.fileno())

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(os.path.abspath(path), found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)

    def lock(self, path: str) -> DirectoryLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return _FileLock(fd)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def run_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._first_thread, lambda: function(*args, **kwargs))

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self._first_thread.shutdown(wait=True)
        self._sync_threads.shutdown(wait=True)
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _syncfs(self, fds: Sequence[int]) -> None:
        """Sync the file system of each descriptor, once."""
        one_per_device = {os.fstat(fd).st_dev: fd for fd in fds}
        for fd in one_per_device.values():
            if self._libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), "syncfs")

    def _syncfs_works(self, fd: int) -> bool:
        device = os.fstat(fd).st_dev
        with self._devices_lock:
            known = self._syncfs_devices.get(device)
            if known is None:
                known = _kernel() >= _SYNCFS_KERNEL and self._file_system_type(fd) in _SYNCFS_TYPES
                self._syncfs_devices[device] = known
            return known

    def _file_system_type(self, fd: int) -> int:
        buffer = (ctypes.c_long * 32)()  # struct statfs starts with f_type, a long
        if self._libc.fstatfs(fd, ctypes.byref(buffer)) != 0:
            return -1
        return int(buffer[0]) & 0xFFFFFFFF


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)
