"""The disk as the core sees it: files, directories, sync rounds, and the threads that blocking work runs in.

Every primitive is a plain blocking call. The loop may call `File.write_at` and `File.resident` itself (both are
microseconds); whatever may wait for the device (open, truncate, unlink, rename, cold reads, syncs) is wrapped in
`await disk.run(function, ...)`. A simulated disk runs the same function in virtual time.
"""

import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from typing_extensions import Buffer

P = ParamSpec("P")
T = TypeVar("T")


_SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_shortage(error: OSError) -> bool:
    """Whether space, descriptors or memory ran out: that passes, and says nothing against the disk. All else does."""
    return error.errno in _SHORTAGES


class File(Protocol):
    """An open file. Errors are `OSError`, as the operating system gives them."""

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The descriptor, for sendfile. A simulated file has none and raises `OSError`."""
        ...

    def size(self) -> int: ...

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, or raise. The bytes are durable only after a sync."""
        ...

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def resident(self, size: int, position: int) -> bool:
        """Whether a read of this range is likely to be answered from memory."""
        ...

    def truncate(self, size: int) -> None: ...

    def forget_cached(self, position: int, size: int = 0) -> None:
        """Let the next read of a range, or of all from `position` on, ask the device for what is not to be written.

        After a failed sync, memory holds bytes the device has never got, and takes them for written.
        """
        ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """A file system's size, and what of it is free for us."""

    path: str
    total_bytes: int
    usable_bytes: int


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A mounted place for files. Paths are plain strings."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Without `create` a missing file raises `FileNotFoundError`.

        A created name survives a power cut only after `sync_dir` of its directory.
        """
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, durably (each parent is synced)."""
        ...

    def make_dir(self, path: str) -> None:
        """Create one directory if it is not there; durable after `sync_dir` of its parent."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if the directory does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target` atomically; durable after `sync_dir`."""
        ...

    def unlink(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def sync_dirs(self, paths: Sequence[str]) -> None:
        """The same for several, in no order; many cost no more than a few."""
        ...

    def sync_files(self, files: Sequence[File]) -> None:
        """Make the contents of all `files` durable. A failure means none of them may be trusted to be."""
        ...

    def space(self, path: str) -> Space: ...

    def lock(self, path: str) -> DirectoryLock:
        """Take an exclusive lock file, held until release or process end. Raises `BlockingIOError` if taken."""
        ...

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking disk work off the event loop."""
        ...

    async def run_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `run`, for the commit rounds: never queued behind other work."""
        ...
