"""A disk in memory that loses at a power cut what was not synced.

Every file has its live bytes and, per 4 KiB page changed since the last sync, the page as it was then. Every
directory has its live names and its synced names. Syncing a file makes its bytes durable, syncing a directory
makes its names durable; in strict mode neither does the other's work, which is all that POSIX promises.
Without strict, any sync also makes every name durable, as a journalling file system such as ext4 does.

A cut comes in two kinds. `drop` forgets everything volatile. `torn` keeps or forgets each changed page, each
file's new size and each directory's new names by the toss of a seeded coin, as a device with a cache may.
"""

import errno
import random
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

PAGE = 4096
CutKind = Literal["drop", "torn"]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, errno.errorcode[code], path)


class File:
    """A regular file or a symbolic link (whose bytes are its target)."""

    __slots__ = ("data", "durable_size", "mode", "mtime_ns", "number", "undo")

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.mtime_ns = time.time_ns()
        self.data = bytearray()
        self.durable_size = 0
        self.undo: dict[int, bytes] = {}
        """Page number → its durable bytes, for pages changed since the last sync."""

    @property
    def volatile(self) -> bool:
        return bool(self.undo) or len(self.data) != self.durable_size

    def _remember(self, start: int, end: int) -> None:
        for page in range(start // PAGE, (end + PAGE - 1) // PAGE):
            if page not in self.undo:
                low = page * PAGE
                self.undo[page] = bytes(self.data[low : max(low, min(low + PAGE, self.durable_size))])

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        self._remember(offset, end)
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset:end] = data
        self.mtime_ns = time.time_ns()

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            self._remember(size, len(self.data))
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))
        self.mtime_ns = time.time_ns()

    def sync(self) -> None:
        self.undo.clear()
        self.durable_size = len(self.data)

    def cut(self, coin: random.Random | None) -> int:
        """Return to what survives; the number of bytes in pages that were forgotten."""
        live_size = len(self.data)
        size = self.durable_size
        if coin is not None:
            between = coin.randint(min(size, live_size) // PAGE, max(size, live_size) // PAGE) * PAGE
            between = min(max(between, min(size, live_size)), max(size, live_size))
            size = coin.choice((size, live_size, between))
        longest = max(size, live_size)
        self.data.extend(bytes(longest - live_size))
        lost = 0
        for page, old in sorted(self.undo.items()):
            if coin is not None and coin.random() < 0.5 and (page + 1) * PAGE <= live_size:
                continue
            low = page * PAGE
            high = min(low + PAGE, longest)
            if low < high:
                self.data[low:high] = old[: high - low].ljust(high - low, b"\0")
            lost += min(PAGE, max(0, max(live_size, self.durable_size) - low))
        del self.data[size:]
        self.sync()
        return lost


class Directory:
    __slots__ = ("durable", "mode", "mtime_ns", "names", "number")

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.mtime_ns = time.time_ns()
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def changed(self) -> None:
        self.mtime_ns = time.time_ns()

    def sync(self) -> None:
        self.durable = dict(self.names)


Node = File | Directory


@dataclass
class Counters:
    writes: int = 0
    file_syncs: int = 0
    directory_syncs: int = 0
    cuts: int = 0
    lost_bytes: int = 0
    """Of all cuts so far: bytes of pages forgotten."""
    lost_names: int = 0
    """Of all cuts so far: names that vanished or came back."""


@dataclass
class PowerDisk:
    """Paths are absolute and start with `/`, as FUSE hands them over."""

    strict: bool = True
    capacity_bytes: int = 1 << 30
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self._numbers = count(1)
        self.root = Directory(next(self._numbers), stat.S_IFDIR | 0o755)
        # Growth that certainly fits; counted anew only when used up, as counting walks the whole tree.
        self._headroom = 0

    def find(self, path: str) -> Node:
        node: Node = self.root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, Directory):
                raise _os_error(errno.ENOTDIR, path)
            child = node.names.get(name)
            if child is None:
                raise _os_error(errno.ENOENT, path)
            node = child
        return node

    def file(self, path: str) -> File:
        node = self.find(path)
        if not isinstance(node, File):
            raise _os_error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> Directory:
        node = self.find(path)
        if not isinstance(node, Directory):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.directory(parent), name

    def create(self, path: str, mode: int) -> File:
        parent, name = self._place(path)
        if name in parent.names:
            raise _os_error(errno.EEXIST, path)
        made = File(next(self._numbers), mode)
        parent.names[name] = made
        parent.changed()
        return made

    def make_directory(self, path: str, mode: int) -> None:
        parent, name = self._place(path)
        if name in parent.names:
            raise _os_error(errno.EEXIST, path)
        parent.names[name] = Directory(next(self._numbers), stat.S_IFDIR | mode)
        parent.changed()

    def unlink(self, path: str) -> None:
        parent, name = self._place(path)
        self.file(path)
        del parent.names[name]
        parent.changed()

    def remove_directory(self, path: str) -> None:
        parent, name = self._place(path)
        if self.directory(path).names:
            raise _os_error(errno.ENOTEMPTY, path)
        del parent.names[name]
        parent.changed()

    def rename(self, old: str, new: str) -> None:
        source, source_name = self._place(old)
        target, target_name = self._place(new)
        node = self.find(old)
        there = target.names.get(target_name)
        if there is node:
            return
        if isinstance(there, Directory):
            if not isinstance(node, Directory):
                raise _os_error(errno.EISDIR, new)
            if there.names:
                raise _os_error(errno.ENOTEMPTY, new)
        elif there is not None and isinstance(node, Directory):
            raise _os_error(errno.ENOTDIR, new)
        del source.names[source_name]
        target.names[target_name] = node
        source.changed()
        target.changed()

    def write(self, file: File, data: bytes, offset: int) -> None:
        growth = max(0, offset + len(data) - len(file.data))
        if growth > self._headroom:
            self._headroom = self.capacity_bytes - self.used_bytes()
            if growth > self._headroom:
                raise _os_error(errno.ENOSPC, "")
        self._headroom -= growth
        self.counters.writes += 1
        file.write(data, offset)

    def sync_file(self, file: File) -> None:
        self.counters.file_syncs += 1
        file.sync()
        self._sync_names()

    def sync_directory(self, directory: Directory) -> None:
        self.counters.directory_syncs += 1
        directory.sync()
        self._sync_names()

    def _sync_names(self) -> None:
        if not self.strict:
            for node in self._nodes():
                if isinstance(node, Directory):
                    node.sync()

    def _nodes(self, *, also_durable: bool = False) -> Iterator[Node]:
        seen: set[int] = set()
        waiting: list[Node] = [self.root]
        while waiting:
            node = waiting.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            yield node
            if isinstance(node, Directory):
                waiting.extend(node.names.values())
                if also_durable:
                    waiting.extend(node.durable.values())

    def used_bytes(self) -> int:
        return sum(len(node.data) for node in self._nodes() if isinstance(node, File))

    def volatile_paths(self) -> list[str]:
        """Live files with unsynced bytes and directories with unsynced names."""
        found: list[str] = []

        def walk(node: Node, path: str) -> None:
            if isinstance(node, File):
                if node.volatile:
                    found.append(path)
                return
            if node.names != node.durable:
                found.append(path + "/")
            for name, child in sorted(node.names.items()):
                walk(child, f"{path}/{name}")

        walk(self.root, "")
        return found

    def cut(self, kind: CutKind = "drop", seed: int = 0) -> None:
        """The power goes: what was not synced is gone (`drop`) or partly gone (`torn`)."""
        coin = random.Random(seed) if kind == "torn" else None
        self.counters.cuts += 1
        for node in sorted(self._nodes(also_durable=True), key=lambda node: node.number):
            if isinstance(node, File):
                self.counters.lost_bytes += node.cut(coin)
                continue
            if node.names != node.durable and (coin is None or coin.random() < 0.5):
                both = node.names.keys() | node.durable.keys()
                self.counters.lost_names += sum(node.names.get(n) is not node.durable.get(n) for n in both)
                node.names = dict(node.durable)
            node.sync()
