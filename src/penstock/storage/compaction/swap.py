"""New segments take the place of the old ones: decided in one file, then done, and finished after any crash.

Before `swap` is durable nothing has changed and the cleaned files are leftovers. From then on they are the log: every
step below may be done again, in part or wholly done before, and ends with the same names. Nothing old is removed before
the new segment is seen to be there in its full size.
"""

from dataclasses import dataclass

import orjson

from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.job import (
    CLEANED_INDEX_SUFFIX,
    CLEANED_SUFFIX,
    CompactionError,
    Result,
    cleaned_names,
)

FILE_NAME = "swap"
_KIND = b"swap"
_VERSION = 1
_LOG, _INDEX, _CHECKPOINT = ".log", ".index", ".checkpoint"


@dataclass(frozen=True, slots=True)
class Swap:
    """One new segment and the bases of those it replaces, its own among them."""

    into: int
    size: int
    replaced: tuple[int, ...]


def prepare_swap(disk: Disk, directory: str, result: Result) -> bool:
    """Decide durably for what a pass has written; False if it changed nothing. Blocking.

    Raises:
        CompactionError: a cleaned file is not there as reported; nothing was decided.
    """
    swaps = [Swap(group.base, group.size, group.replaced) for group in result.changed]
    for swap in swaps:
        path, index_path = (f"{directory}/{name}" for name in cleaned_names(swap.into))
        if not disk.exists(index_path) or _size(disk, path) != swap.size:
            raise CompactionError(f"{path} is not the {swap.size} bytes and a card that were written; run a new pass")
    if not swaps:
        return False
    rows = [{"into": swap.into, "size": swap.size, "from": swap.replaced} for swap in swaps]
    checked_file.save(disk, f"{directory}/{FILE_NAME}", _KIND, _VERSION, orjson.dumps(rows))
    return True


def load_swap(disk: Disk, directory: str) -> list[Swap]:
    """What was decided and not finished yet. Raises `DamagedFile`. Blocking."""
    path = f"{directory}/{FILE_NAME}"
    try:
        rows = orjson.loads(checked_file.load(disk, path, _KIND, _VERSION))
    except FileNotFoundError:
        return []
    return [Swap(row["into"], row["size"], tuple(row["from"])) for row in rows]


def finish_swap(disk: Disk, directory: str) -> list[Swap]:
    """Do what was decided, or what a crash left of it; returns it, nothing if nothing was decided. Blocking.

    Raises:
        DamagedFile: the decision cannot be read, or a new segment is nowhere to be found; nothing was removed.
    """
    path = f"{directory}/{FILE_NAME}"
    if not disk.exists(path):
        return []
    swaps = load_swap(disk, directory)
    for swap in swaps:
        check_there(disk, directory, swap)
    for swap in swaps:
        _put_into_place(disk, directory, swap)
    for swap in swaps:
        _remove_replaced(disk, directory, swap)
    disk.sync_dir(directory)
    disk.unlink(path)
    disk.sync_dir(directory)
    return swaps


def drop_leftovers(disk: Disk, directory: str) -> list[str]:
    """Remove what a pass wrote that was given up; to be called when nothing is decided. Returns the names."""
    names = disk.list_dir(directory)
    assert FILE_NAME not in names, f"{directory}: finish the swap first"
    left = [name for name in names if name.endswith((CLEANED_SUFFIX, CLEANED_INDEX_SUFFIX))]
    for name in left:
        disk.unlink(f"{directory}/{name}")
    return left


def where(disk: Disk, directory: str, base: int) -> tuple[str, str]:
    """The files that a decided swap makes, or has made, segment and card of `base`."""
    old = f"{directory}/{base:020d}"
    log, index = (f"{directory}/{name}" for name in cleaned_names(base))
    return log if disk.exists(log) else old + _LOG, index if disk.exists(index) else old + _INDEX


def check_there(disk: Disk, directory: str, swap: Swap) -> None:
    """Raises `DamagedFile` unless the new segment is there, under its old or its new name."""
    log, index = where(disk, directory, swap.into)
    if not disk.exists(index) or _size(disk, log) != swap.size:
        raise DamagedFile(
            f"{directory}/{FILE_NAME}: {log} was to hold {swap.size} bytes and to have a card, but does not; "
            "nothing was removed: restore it from a replica or backup"
        )


def _put_into_place(disk: Disk, directory: str, swap: Swap) -> None:
    old = f"{directory}/{swap.into:020d}"
    for name, target in zip(cleaned_names(swap.into), (old + _LOG, old + _INDEX), strict=True):
        if disk.exists(f"{directory}/{name}"):
            disk.rename(f"{directory}/{name}", target)


def _remove_replaced(disk: Disk, directory: str, swap: Swap) -> None:
    gone = [f"{swap.into:020d}{_CHECKPOINT}"]
    for base in swap.replaced:
        if base != swap.into:
            gone += [f"{base:020d}{suffix}" for suffix in (_INDEX, _CHECKPOINT, _LOG)]
    for name in gone:
        if disk.exists(f"{directory}/{name}"):
            disk.unlink(f"{directory}/{name}")


def _size(disk: Disk, path: str) -> int:
    """-1 if there is no such file."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return -1
    try:
        return file.size()
    finally:
        file.close()
