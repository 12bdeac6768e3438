"""What a simulated disk holds: durable and pending pages and names, and what a power cut leaves of them.

Content: a write changes the pending view and marks 4 KiB pages dirty; a sync copies the dirty pages and the
size to the durable view. A power cut keeps any subset of the dirty pages, each whole or torn after some
512-byte sector, and some size the file has passed through since its last sync; what was not written back is
zeros.

Names: creates, renames and unlinks are pending in the order they were made until their directory is synced. A
power cut keeps a prefix of them for each directory. A rename between directories happens in both or neither.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

PAGE = 4096
SECTOR = 512


class FileNode:
    """The content of one file, whatever its names."""

    __slots__ = ("content", "dirty", "durable", "sizes")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.dirty: set[int] = set()
        # The durable size, then each size where growth turned into a cut or back; appends in a row are one.
        self.sizes = [len(content)]

    def write(self, data: memoryview, position: int) -> None:
        if not len(data):
            return
        end = position + len(data)
        if end > len(self.content):
            self.content.extend(bytes(end - len(self.content)))
            self._resized(end)
        self.content[position:end] = data
        self.dirty.update(range(position // PAGE, (end - 1) // PAGE + 1))

    def truncate(self, size: int) -> None:
        before = len(self.content)
        if size < before:
            del self.content[size:]
            self.dirty = {page for page in self.dirty if page * PAGE < size}
        else:
            self.content.extend(bytes(size - before))
        if size != before:
            self._resized(size)

    def sync(self) -> None:
        """Make content and size durable, as fdatasync does."""
        self._apply_sizes(self.durable, self.sizes)
        for page in self.dirty:
            self.durable[page * PAGE : (page + 1) * PAGE] = self.content[page * PAGE : (page + 1) * PAGE]
        self.dirty.clear()
        self.sizes = [len(self.durable)]

    def lose_dirty_pages(self) -> None:
        """A failed sync: the kernel marks the pages clean although they never reached the device.

        They are read from memory until it is needed for something else, or `forget_clean_pages`.
        """
        self.dirty.clear()

    def forget_clean_pages(self, position: int, size: int) -> None:
        """What is not dirty in a range, or from `position` on if its size is 0, is as the device has it."""
        last = min(position + size, len(self.content)) if size else len(self.content)
        for page in range(position // PAGE, -(-last // PAGE)):
            if page not in self.dirty:
                at = page * PAGE
                end = min(at + PAGE, len(self.content))
                self.content[at:end] = bytes(self.durable[at:end]).ljust(end - at, b"\0")

    def after_power_cut(self, random: Random) -> bytes:
        left = bytearray(self.durable)
        steps = random.randint(0, len(self.sizes) - 1)
        self._apply_sizes(left, self.sizes[: steps + 1])
        if steps + 1 < len(self.sizes) and random.random() < 0.5:
            growth = max(0, self.sizes[steps + 1] - len(left))
            left.extend(bytes(random.randint(0, growth)))
        for page in sorted(self.dirty):
            if random.random() < 0.5:
                whole = random.random() < 0.5
                self._keep_page(left, page, PAGE if whole else SECTOR * random.randrange(PAGE // SECTOR))
        return bytes(left)

    def _resized(self, size: int) -> None:
        sizes = self.sizes
        if len(sizes) > 1 and (sizes[-1] > sizes[-2]) == (size > sizes[-1]):
            sizes[-1] = size
        else:
            sizes.append(size)

    @staticmethod
    def _apply_sizes(target: bytearray, sizes: list[int]) -> None:
        for size in sizes:
            del target[size:]
            target.extend(bytes(size - len(target)))

    def _keep_page(self, target: bytearray, page: int, size: int) -> None:
        """Write the first `size` bytes of a page in place; after the file's end a page is zeros."""
        start = page * PAGE
        end = min(start + size, len(target))
        new = bytes(self.content[start : start + size]).ljust(size, b"\0")
        if end > start:
            target[start:end] = new[: end - start]


class DirectoryNode:
    """Names, as the running process sees them and as the device has them."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | DirectoryNode


@dataclass(slots=True)
class Change:
    """One pending, atomic change of names; a node of None takes the name away."""

    parts: list[tuple[DirectoryNode, str, Node | None]]

    def touches(self, directories: set[int]) -> bool:
        return any(id(directory) in directories for directory, _, _ in self.parts)

    def apply_durably(self) -> None:
        for directory, name, node in self.parts:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


@dataclass(slots=True)
class DiskTree:
    """All files and directories of a device."""

    root: DirectoryNode = field(default_factory=DirectoryNode)
    pending: list[Change] = field(default_factory=list)

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in split(path):
            if not isinstance(node, DirectoryNode) or name not in node.names:
                return None
            node = node.names[name]
        return node

    def find_durable(self, path: str) -> Node | None:
        node: Node = self.root
        for name in split(path):
            if not isinstance(node, DirectoryNode) or name not in node.durable:
                return None
            node = node.durable[name]
        return node

    def file(self, path: str) -> FileNode:
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, DirectoryNode):
            raise os_error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> DirectoryNode:
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[DirectoryNode, str]:
        *above, name = split(path) or [""]
        if not name:
            raise os_error(errno.EINVAL, path)
        return self.directory("/".join(above)), name

    def change(self, *parts: tuple[DirectoryNode, str, Node | None]) -> None:
        for directory, name, node in parts:
            if node is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = node
        self.pending.append(Change(list(parts)))

    def make_dirs(self, path: str) -> None:
        node: Node = self.root
        for name in split(path):
            if not isinstance(node, DirectoryNode):
                raise os_error(errno.ENOTDIR, path)
            if name not in node.names:
                self.change((node, name, DirectoryNode()))
                self.sync_directory(node)
            node = node.names[name]
        if not isinstance(node, DirectoryNode):
            raise os_error(errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        from_directory, from_name = self.parent(source)
        to_directory, to_name = self.parent(target)
        node = from_directory.names.get(from_name)
        if node is None:
            raise os_error(errno.ENOENT, source)
        replaced = to_directory.names.get(to_name)
        if replaced is node:
            return
        if isinstance(replaced, DirectoryNode):
            if isinstance(node, FileNode):
                raise os_error(errno.EISDIR, target)
            if replaced.names:
                raise os_error(errno.ENOTEMPTY, target)
        elif replaced is not None and isinstance(node, DirectoryNode):
            raise os_error(errno.ENOTDIR, target)
        self.change((from_directory, from_name, None), (to_directory, to_name, node))

    def put(self, path: str, node: Node | None) -> None:
        """Have something else at a path, durably; None takes away what is there."""
        directory, name = self.parent(path)
        self.change((directory, name, node))
        self.sync_directory(directory)

    def removals(self, path: str) -> list[tuple[DirectoryNode, str]]:
        """The steps that take a tree away, leaves first."""
        directory, name = self.parent(path)
        self.directory(path)
        return list(_leaves_first(directory, name))

    def sync_directory(self, directory: DirectoryNode, keep: int | None = None) -> None:
        """Make pending changes of a directory durable, in order; only the first `keep` of them if given."""
        wanted: list[Change] = []
        directories = {id(directory)}
        # Backwards: a rename between directories drags along what happened in the other one before it.
        for change in reversed(self.pending):
            if change.touches(directories):
                wanted.append(change)
                directories.update(id(part[0]) for part in change.parts)
        wanted.reverse()
        done = {id(change) for change in wanted[:keep]}
        for change in wanted[:keep]:
            change.apply_durably()
        self.pending = [change for change in self.pending if id(change) not in done]

    def pending_in(self, directory: DirectoryNode) -> int:
        return sum(change.touches({id(directory)}) for change in self.pending)

    def paths(self) -> Iterator[str]:
        """Of all files."""
        yield from _paths(self.root, "")

    def used_bytes(self) -> int:
        return sum(len(node.content) for node in _files(self.root))

    def after_power_cut(self, random: Random) -> "DiskTree":
        """What the device holds when the power is back. This tree must not be used again."""
        left_to_keep: dict[int, int] = {}
        stopped: set[int] = set()
        for change in self.pending:
            for directory, _, _ in change.parts:
                if id(directory) not in left_to_keep:
                    left_to_keep[id(directory)] = random.randint(0, self.pending_in(directory))
                if left_to_keep[id(directory)] == 0:
                    stopped.add(id(directory))
            if change.touches(stopped):
                stopped.update(id(part[0]) for part in change.parts)
                continue
            for key in {id(part[0]) for part in change.parts}:
                left_to_keep[key] -= 1
            change.apply_durably()
        return DiskTree(_survivor(self.root, random))


def copied(node: Node) -> Node:
    """The same as the running process sees it, all of it durable."""
    if isinstance(node, FileNode):
        return FileNode(bytes(node.content))
    copy = DirectoryNode()
    for name, inner in node.names.items():
        copy.names[name] = copy.durable[name] = copied(inner)
    return copy


def split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _leaves_first(directory: DirectoryNode, name: str) -> Iterator[tuple[DirectoryNode, str]]:
    node = directory.names[name]
    if isinstance(node, DirectoryNode):
        for inner in sorted(node.names):
            yield from _leaves_first(node, inner)
    yield directory, name


def _files(directory: DirectoryNode) -> Iterator[FileNode]:
    for node in directory.names.values():
        if isinstance(node, FileNode):
            yield node
        else:
            yield from _files(node)


def _paths(directory: DirectoryNode, above: str) -> Iterator[str]:
    for name, node in directory.names.items():
        if isinstance(node, FileNode):
            yield f"{above}/{name}"
        else:
            yield from _paths(node, f"{above}/{name}")


def _survivor(directory: DirectoryNode, random: Random) -> DirectoryNode:
    left = DirectoryNode()
    for name, node in sorted(directory.durable.items(), key=lambda item: item[0]):
        kept: Node
        kept = FileNode(node.after_power_cut(random)) if isinstance(node, FileNode) else _survivor(node, random)
        left.names[name] = left.durable[name] = kept
    return left
