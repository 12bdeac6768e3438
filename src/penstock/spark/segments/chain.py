"""The sealed segments of a partition and their cards, found and opened while the broker may be changing them.

Compaction replaces segments under their names, retention removes them. What is opened here together is of one moment:
after everything is open, each name must still lead to the card that was opened, with what a `swap` has decided taken as
done. Versions of a card follow each other and the inode of an open one is not given away again, so a card found once
more was there all the time. So was its segment, which is opened after it and replaced before it. An old segment beside
a new card would be worse than none: the card may have forgotten transactions whose aborted records the old one has.
"""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from penstock.ports.disk import Disk, File
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log import card as cards
from penstock.storage.log.card import SUMMARY_BYTES, Card, Summary
from penstock.storage.log.segment import CHECKPOINT_SUFFIX, INDEX_SUFFIX
from penstock.storage.offline.segment_files import find_segments

T = TypeVar("T")

_ATTEMPTS = 25
_RETRY_S = 0.02  # a swap is a few renames and a sync


class Changed(Exception):
    """A file that was just listed is not there any more, or is another one: begin again."""


class Link(NamedTuple):
    """A segment as the head of its card tells."""

    name: str
    card: File
    summary: Summary


class OpenSegment(NamedTuple):
    file: File
    card: Card


class Names:
    """The names in a partition's directory at one moment."""

    def __init__(self, disk: Disk, directory: str, *, stopped: bool) -> None:
        self._disk = disk
        self._stopped = stopped
        self._listed = frozenset(disk.list_dir(directory))
        self._files = find_segments(disk, directory, sorted(self._listed))
        # What is being written has a card of its beginning, too; it says where to stop only if nobody is writing.
        self._suffixes = (INDEX_SUFFIX, CHECKPOINT_SUFFIX) if stopped else (INDEX_SUFFIX,)

    @property
    def first_base(self) -> int:
        """The first offset of the first segment, -1 if there is none."""
        return int(self._files.names[0]) if self._files.names else -1

    def log_path(self, name: str) -> str:
        return self._files.log_path(name)

    def card_path(self, name: str) -> str | None:
        for suffix in self._suffixes:
            path = self._files.card_path(name, suffix)
            if path is not None and (name in self._files.swapped or f"{name}{suffix}" in self._listed):
                return path
        return None

    def chain(self, start: int) -> Iterator[Link]:
        """Segments with cards from the one that holds `start` on, each beginning where the one before it ends.

        Raises:
            Changed: also where a decided swap cannot be followed; no broker that runs leaves it so.
        """
        if self._files.problem is not None:
            raise Changed(self._files.problem)
        names = self._files.names
        expected: int | None = None
        for name in names[max(bisect_right(names, f"{start:020d}") - 1, 0) :]:
            path = self.card_path(name)
            if path is None or (expected is not None and int(name) != expected):
                break
            file = _open(self._disk, path)
            try:
                summary = Summary(file.read_at(SUMMARY_BYTES, 0), path)
            except DamagedFile:
                break
            if summary.base != int(name):
                break
            yield Link(name, file, summary)
            expected = summary.next_offset
        # A new card and old names do not fit together, which looks like a hole.
        if Names(self._disk, self._files.directory, stopped=self._stopped)._files.names != names:
            raise Changed(f"the list of segments in {self._files.directory} changed")


def steadily(function: Callable[[], T]) -> T:
    """What the function returns when the files stay in place for long enough. Raises `Changed` if they never do."""
    for _ in range(_ATTEMPTS):
        try:
            return function()
        except Changed:
            time.sleep(_RETRY_S)
    return function()


class Opening:
    """Cards and segments opened one after the other, and whether they are all of one moment."""

    def __init__(self, disk: Disk, directory: str, *, stopped: bool) -> None:
        self._disk = disk
        self._directory = directory
        self._stopped = stopped
        self._names = Names(disk, directory, stopped=stopped)
        self.links: list[Link] = []

    def chain(self, start: int) -> Iterator[Link]:
        """As `Names.chain`; the cards stay open."""
        for link in self._names.chain(start):
            self.links.append(link)
            yield link

    def segment(self, link: Link) -> OpenSegment:
        """A segment's file and its card. Raises `Changed`, `DamagedFile`."""
        return OpenSegment(_open(self._disk, self._names.log_path(link.name)), load_card(link))

    def check(self) -> None:
        """Raises `Changed` unless every card opened is still the one that its name leads to."""
        now = Names(self._disk, self._directory, stopped=self._stopped)
        for link in self.links:
            path = now.card_path(link.name)
            if path is None or not _is_same(path, link.card):
                raise Changed(f"{link.card.path} was replaced")


def load_card(link: Link) -> Card:
    """The whole card. Raises `DamagedFile`."""
    return cards.decode(link.card.read_at(link.card.size(), 0), link.card.path)


def _is_same(path: str, file: File) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(file.fileno()))


def _open(disk: Disk, path: str) -> File:
    try:
        return disk.open(path)
    except FileNotFoundError:
        raise Changed(f"{path} is gone") from None
