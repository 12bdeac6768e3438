"""The operating system's disk, for looking only: files are opened for reading, every change is refused.

For commands that look into a data directory while a broker may be running on it.
"""

import errno
import os
from collections.abc import Sequence
from typing import NoReturn

from penstock.ports.disk import DirectoryLock, File
from penstock.storage.local_disk import LocalDisk, LocalFile


class ReadOnlyDisk(LocalDisk):
    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            _refuse(path)
        return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def make_dirs(self, path: str) -> None:
        _refuse(path)

    def make_dir(self, path: str) -> None:
        _refuse(path)

    def rename(self, source: str, target: str) -> None:
        _refuse(source)

    def unlink(self, path: str) -> None:
        _refuse(path)

    def remove_tree(self, path: str) -> None:
        _refuse(path)

    def sync_dir(self, path: str) -> None:
        _refuse(path)

    def sync_dirs(self, paths: Sequence[str]) -> None:
        _refuse(paths[0] if paths else "")

    def sync_files(self, files: Sequence[File]) -> None:
        _refuse(files[0].path if files else "")

    def lock(self, path: str) -> DirectoryLock:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
