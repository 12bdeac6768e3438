"""The disk port in memory, with what real disks do to programs: power cuts, torn writes, errors, no space.

One `FaultyDisk` is one incarnation of a process using a device. After a power cut (or `abandon`, a kill -9)
every call on it and on its files raises `PowerCut`, and a new object carries what the device still holds. The
same seed and the same calls give the same outcome.

A test that wants every crash point runs its work once, reads `operations`, and then runs it again with
`cut_power_after(n)` for each n up to that number.
"""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ParamSpec, TypeVar

from typing_extensions import Buffer

from penstock.ports.disk import DirectoryLock, File, Space
from penstock.testing.disk_tree import DirectoryNode, DiskTree, FileNode, copied, os_error

P = ParamSpec("P")
T = TypeVar("T")

_UNLIMITED = 1 << 40


class PowerCut(BaseException):
    """The process using this disk is dead. Not an `Exception`, so no handler of the core's swallows it."""


@dataclass(slots=True)
class _Fault:
    operation: str
    code: int
    matches_left: int
    times_left: int
    path_contains: str


class FaultyFile:
    """An open file of a `FaultyDisk`."""

    def __init__(self, disk: "FaultyDisk", path: str, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node: FileNode | None = node

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor", self._path)

    def size(self) -> int:
        return len(self.node().content)

    def write_at(self, data: Buffer, position: int) -> None:
        node = self.node()
        view = memoryview(data).cast("B")
        self._disk._write(self._path, node, view, position)

    def read_at(self, size: int, position: int) -> bytes:
        node = self.node()
        self._disk._begin("read_at", self._path)
        data = bytes(node.content[position : position + size])
        self._disk.bytes_read += len(data)
        return data

    def resident(self, size: int, position: int) -> bool:
        self.node()
        return self._disk.is_resident

    def truncate(self, size: int) -> None:
        node = self.node()
        self._disk._change("truncate", lambda: node.truncate(size), self._path)

    def forget_cached(self, position: int, size: int = 0) -> None:
        self.node().forget_clean_pages(position, size)

    def close(self) -> None:
        self._disk._check_alive()
        self._node = None

    def node(self) -> FileNode:
        self._disk._check_alive()
        if self._node is None:
            raise OSError(errno.EBADF, "file is closed", self._path)
        return self._node


class _Lock:
    def __init__(self, locks: set[FileNode], node: FileNode) -> None:
        self._locks = locks
        self._node = node

    def release(self) -> None:
        self._locks.discard(self._node)


class FaultyDisk:
    """The disk port in memory.

    Attributes:
        capacity_bytes: what fits on the device; None is no limit.
        is_resident: what `File.resident` answers.
        lies: syncs of files succeed and do nothing, as on a device with a careless cache.
        max_delay_s: the longest (virtual) wait before and after work given to `run`.
        counts: calls by the name of the operation; `counts["sync_files"]` is sync rounds.
        operations: calls that changed the device, the unit of `cut_power_after`.
        bytes_read: what `read_at` returned.
        on_power_cut: called at the moment the incarnation dies, for example to kill its simulated process.
    """

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None, max_delay_s: float = 0.002) -> None:
        self.capacity_bytes = capacity_bytes
        self.is_resident = True
        self.lies = False
        self.max_delay_s = max_delay_s
        self.counts: Counter[str] = Counter()
        self.operations = 0
        self.bytes_read = 0
        self.on_power_cut: Callable[[], None] | None = None
        self._random = Random(seed)  # noqa: S311 - a replayable simulation, not a secret
        self._tree = DiskTree()
        self._locks: set[FileNode] = set()
        self._faults: list[_Fault] = []
        self._cut_at: int | None = None
        self._dead = False

    # The port.

    def open(self, path: str, *, create: bool = False) -> File:
        self._begin("open", path)
        if create and self._tree.find(path) is None:
            directory, name = self._tree.parent(path)
            self._apply(lambda: self._tree.change((directory, name, FileNode())))
        return FaultyFile(self, path, self._tree.file(path))

    def make_dirs(self, path: str) -> None:
        self._begin("make_dirs", path)
        if not isinstance(self._tree.find(path), DirectoryNode):
            self._apply(lambda: self._tree.make_dirs(path))

    def make_dir(self, path: str) -> None:
        self._begin("make_dir", path)
        if self._tree.find(path) is None:
            directory, name = self._tree.parent(path)
            self._apply(lambda: self._tree.change((directory, name, DirectoryNode())))

    def list_dir(self, path: str) -> list[str]:
        self._begin("list_dir", path)
        return [] if self._tree.find(path) is None else sorted(self._tree.directory(path).names)

    def exists(self, path: str) -> bool:
        self._begin("exists", path)
        return self._tree.find(path) is not None

    def is_dir(self, path: str) -> bool:
        self._begin("is_dir", path)
        return isinstance(self._tree.find(path), DirectoryNode)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", lambda: self._tree.rename(source, target), source, target)

    def unlink(self, path: str) -> None:
        self._begin("unlink", path)
        self._tree.file(path)
        directory, name = self._tree.parent(path)
        self._apply(lambda: self._tree.change((directory, name, None)))

    def remove_tree(self, path: str) -> None:
        self._begin("remove_tree", path)
        for directory, name in self._tree.removals(path):
            self._apply(lambda at=directory, gone=name: self._tree.change((at, gone, None)))  # type: ignore[misc]

    def sync_dir(self, path: str) -> None:
        self._begin("sync_dir", path)
        directory = self._tree.directory(path)
        if self._is_cut_now():
            keep = self._random.randint(0, self._tree.pending_in(directory))
            self._tree.sync_directory(directory, keep)
            self._die()
        self._tree.sync_directory(directory)

    def sync_dirs(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.sync_dir(path)

    def sync_files(self, files: Sequence[File]) -> None:
        self._check_alive()
        self.counts["sync_files"] += 1
        nodes = [(file.path, self._node_of(file)) for file in files]
        if self._is_cut_now():
            for _, node in nodes:
                if self._random.random() < 0.5:
                    node.sync()
            self._die()
        failure: OSError | None = None
        for path, node in nodes:
            fault = self._matching_fault("sync_files", (path,))
            if fault is None:
                if not self.lies:
                    node.sync()
            else:
                node.lose_dirty_pages()
                failure = failure or os_error(fault, path)
        if failure is not None:
            raise failure

    def space(self, path: str) -> Space:
        return Space(path, 1 << 40, 1 << 39)

    def lock(self, path: str) -> DirectoryLock:
        self.open(path, create=True)
        node = self._tree.file(path)
        if node in self._locks:
            raise os_error(errno.EAGAIN, path)
        self._locks.add(node)
        return _Lock(self._locks, node)

    async def run_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(function, *args, **kwargs)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the work after a seeded wait and report it after another, so the loop's writes fall in between.

        As with a thread, cancelling the caller does not stop work that has begun.
        """
        self._check_alive()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def begin() -> None:
            if result.cancelled() and self._random.random() < 0.5:
                return
            try:
                value = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - handed to the caller, power cuts too
                loop.call_later(self._delay(), fail, error)
            else:
                loop.call_later(self._delay(), succeed, value)

        def fail(error: BaseException) -> None:
            if not result.done():
                result.set_exception(error)

        def succeed(value: T) -> None:
            if self._dead:
                fail(PowerCut())
            elif not result.done():
                result.set_result(value)

        loop.call_later(self._delay(), begin)
        return await result

    # What a test does to it.

    @property
    def dead(self) -> bool:
        return self._dead

    def cut_power_after(self, operations: int) -> None:
        """Let the n-th change from now raise `PowerCut`, perhaps done in part; 1 is the next one."""
        self._cut_at = self.operations + operations

    def cut_power(self) -> None:
        """Cut the power between two operations. Does not raise; the next call on this disk does."""
        if not self._dead:
            self._dead = True
            if self.on_power_cut is not None:
                self.on_power_cut()

    def after_power_cut(self) -> "FaultyDisk":
        """The device when the power is back. Cuts it if nobody has."""
        self.cut_power()
        return self._next_incarnation(self._tree.after_power_cut(self._random))

    def abandon(self) -> "FaultyDisk":
        """The device after a kill -9: what was written stays, synced or not, and locks are gone."""
        self.cut_power()
        disk = self._next_incarnation(self._tree)
        disk.lies = self.lies
        return disk

    def fail(self, operation: str, code: int, when: int = 1, path_contains: str = "", *, times: int = 1) -> None:
        """Let the `when`-th matching call, and the `times` - 1 after it, raise `OSError(code)`.

        A failed `sync_files` marks the pages of the matching files clean without making them durable, as
        Linux does. A failed `write_at` may have written the first part.
        """
        self._faults.append(_Fault(operation, code, when, times, path_contains))

    def clear_faults(self) -> None:
        self._faults.clear()

    def flip_byte(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Damage a byte at rest: the device and the cache both have the wrong one."""
        node = self._tree.file(path)
        node.content[position] ^= mask
        if position < len(node.durable):
            node.durable[position] ^= mask

    def backup(self) -> "FaultyDisk":
        """Another device with what this one holds now."""
        root = copied(self._tree.root)
        assert isinstance(root, DirectoryNode)
        return self._next_incarnation(DiskTree(root))

    def restore(self, path: str, backup: "FaultyDisk") -> None:
        """Put a file or directory back as a backup has it."""
        node = backup._tree.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        self._tree.make_dirs(path.rpartition("/")[0])
        self._tree.put(path, copied(node))

    def lose(self, path: str) -> None:
        """Take a file or directory away, as if it had never been there."""
        self._tree.put(path, None)

    def files(self) -> list[str]:
        """The paths of all files."""
        return sorted(self._tree.paths())

    def size_of(self, path: str) -> int:
        return len(self._tree.file(path).content)

    def read_durable(self, path: str) -> bytes:
        """What a power cut leaves for certain. Raises `FileNotFoundError` if the name itself might go."""
        node = self._tree.find_durable(path)
        if not isinstance(node, FileNode):
            raise os_error(errno.ENOENT, path)
        return bytes(node.durable)

    # How it does it.

    def _next_incarnation(self, tree: DiskTree) -> "FaultyDisk":
        disk = FaultyDisk(capacity_bytes=self.capacity_bytes, max_delay_s=self.max_delay_s)
        disk.is_resident = self.is_resident
        disk._random = self._random
        disk._tree = tree
        return disk

    def _delay(self) -> float:
        return self._random.uniform(0, self.max_delay_s)

    def _check_alive(self) -> None:
        if self._dead:
            raise PowerCut("this incarnation of the process is dead")

    def _die(self) -> None:
        self.cut_power()
        raise PowerCut("the power was cut")

    def _begin(self, operation: str, *paths: str) -> None:
        self._check_alive()
        self.counts[operation] += 1
        code = self._matching_fault(operation, paths)
        if code is not None:
            raise os_error(code, paths[0])

    def _matching_fault(self, operation: str, paths: tuple[str, ...]) -> int | None:
        found: int | None = None
        for fault in self._faults:
            if fault.operation != operation or not any(fault.path_contains in path for path in paths):
                continue
            fault.matches_left -= 1
            if fault.matches_left <= 0 and fault.times_left > 0:
                fault.times_left -= 1
                found = fault.code
        self._faults = [fault for fault in self._faults if fault.times_left > 0]
        return found

    def _is_cut_now(self) -> bool:
        self.operations += 1
        return self._cut_at is not None and self.operations >= self._cut_at

    def _apply(self, change: Callable[[], None]) -> None:
        if self._is_cut_now():
            if self._random.random() < 0.5:
                change()
            self._die()
        change()

    def _change(self, operation: str, change: Callable[[], None], *paths: str) -> None:
        self._begin(operation, *paths)
        self._apply(change)

    def _write(self, path: str, node: FileNode, view: memoryview, position: int) -> None:
        self._check_alive()
        self.counts["write_at"] += 1
        if self._is_cut_now():
            node.write(view[: self._random.randint(0, len(view))], position)
            self._die()
        code = self._matching_fault("write_at", (path,))
        fits = len(view)
        if code is not None:
            fits = self._random.randrange(len(view)) if len(view) else 0
        elif self.capacity_bytes is not None:
            growth = max(0, position + len(view) - len(node.content))
            lacking = growth - max(0, self.capacity_bytes - self._tree.used_bytes())
            if lacking > 0:
                code, fits = errno.ENOSPC, max(0, len(view) - lacking)
        node.write(view[:fits], position)
        if code is not None:
            raise os_error(code, path)

    def _node_of(self, file: File) -> FileNode:
        if not isinstance(file, FaultyFile) or file._disk is not self:
            raise TypeError(f"{file.path} was not opened on this disk")
        return file.node()
