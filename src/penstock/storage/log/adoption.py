"""A sealed segment of the leader becomes part of this log, bytes and card as they are there.

While it comes in it is `{base}.{number}.copying`, and each block is compared with the card before it is written. Then,
each step durable before the next:
  1. the whole copy, now called `{base}.copied`;
  2. the state knows its epochs and gaps. Without its batches neither means anything: recovery forgets epochs that begin
     behind the end;
  3. `{base}.copied.index`, its card: from now on the copy belongs to the log, and recovery finishes the rest;
  4. `{base}.log`, an empty segment behind it to be written next, then `{base}.index`;
  5. the state, with the producers.
What a crash leaves from before step 3 goes at the next start. The copy is of batches that were committed, so having
them is right whoever leads then.
"""

from crc32c import crc32c

from penstock.ports.disk import Disk, File
from penstock.storage.checked_file import DamagedFile, save_all
from penstock.storage.log import card as cards
from penstock.storage.log.card import BLOCK_BYTES, SUMMARY_BYTES, Summary
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.producers import Producers
from penstock.storage.log.scan import headers
from penstock.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment

COPYING_SUFFIX = ".copying"
COPIED_SUFFIX = ".copied"
COPIED_INDEX_SUFFIX = COPIED_SUFFIX + INDEX_SUFFIX
_SYNC_BYTES = 16 << 20  # a gigabyte in one go would hold up everybody else's commits


class IncomingSegment:
    """A segment on its way from the leader; all methods are blocking, for a thread, one at a time.

    Args:
        number: tells attempts apart: what an abandoned one still writes goes into a file of its own.
        epochs, producers: copies of what the log knows at its end, which is `base`; carried on by `complete`.
    """

    __slots__ = ("_disk", "_file", "_synced", "base", "card", "directory", "epochs", "has_gaps", "path", "producers")

    def __init__(self, disk: Disk, directory: str, number: int, base: int, card: bytes) -> None:
        """Raises `DamagedFile` for a card that is damaged, or of another segment."""
        self.directory = directory
        self.path = f"{directory}/{base:020d}.{number}{COPYING_SUFFIX}"
        self.base = base
        self.card = cards.decode(card, self.path)
        blocks = -(-self.card.size // BLOCK_BYTES)
        if self.card.base != base or self.card.next_offset <= base or len(self.card.sums) != blocks:
            raise DamagedFile(f"{self.path}: the card that came is of offsets {self.card.base} and up, not of {base}")
        self.epochs, self.producers = LeaderEpochs(), Producers()
        self.has_gaps = False
        self._synced = 0
        self._disk = disk
        self._file: File = disk.open(self.path, create=True)

    @property
    def size(self) -> int:
        return self.card.size

    @property
    def next_offset(self) -> int:
        return self.card.next_offset

    def add(self, data: bytes, position: int) -> int:
        """Write bytes that came for `position`; the position behind them.

        Raises:
            DamagedFile: they are not what the card says, and nothing was written.
        """
        end = position + len(data)
        if end == position or end > self.size or position % BLOCK_BYTES or (end % BLOCK_BYTES and end != self.size):
            raise DamagedFile(f"{self.path}: {len(data)} bytes came for byte {position} of {self.size}")
        view = memoryview(data)
        for at in range(0, len(data), BLOCK_BYTES):
            if crc32c(view[at : at + BLOCK_BYTES]) != self.card.sums[(position + at) // BLOCK_BYTES]:
                raise DamagedFile(f"{self.path}: byte {position + at} and up came with another checksum than its card")
        self._file.write_at(view, position)
        if end - self._synced >= _SYNC_BYTES:
            self._disk.sync_files([self._file])
            self._synced = end
        return end

    def complete(self, epochs: LeaderEpochs, producers: Producers, now_ms: int) -> None:
        """All bytes are there: sync them, and carry on what the log knows, as if each batch had been appended.

        Raises:
            DamagedFile: these are not batches that continue the log.
        """
        self._disk.sync_files([self._file])
        position, next_offset, self.has_gaps = 0, self.base, False
        for header, at in headers(self._file, self.size, 0):
            self.has_gaps |= header.base_offset > next_offset or header.record_count < 1
            falls = header.leader_epoch < epochs.latest
            if header.magic != 2 or header.base_offset < next_offset or header.last_offset_delta < 0 or falls:
                break
            epochs.note(header.leader_epoch, header.base_offset)
            producers.note_batch(header, self._file.read_at(header.size, at) if header.is_control else b"", now_ms)
            position, next_offset = at + header.size, header.last_offset + 1
        if position != self.size or next_offset > self.next_offset:
            raise DamagedFile(
                f"{self.path}: matches its card, but has no batch at byte {position} that continues with {next_offset}"
            )
        self.has_gaps |= next_offset < self.next_offset
        self.epochs, self.producers = epochs, producers

    def drop(self) -> None:
        """It is not wanted any more. Not closed: a thread may still write to it. Its blocks are freed here and now."""
        self._file.truncate(0)
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)


def decide(disk: Disk, copy: IncomingSegment, contents: dict[str, bytes]) -> None:
    """Steps 1 to 3, for a log that is closed and ends, durably, where the copy begins. Blocking.

    Args:
        contents: the files of step 2: the state, and the card of what the log has written last.
    """
    copied = f"{copy.directory}/{copy.base:020d}{COPIED_SUFFIX}"
    disk.rename(copy.path, copied)
    disk.sync_dir(copy.directory)
    save_all(disk, contents)
    save_all(disk, {f"{copied}{INDEX_SUFFIX}": copy.card.encode()})


def finish(disk: Disk, directory: str, present: list[str]) -> bool:
    """Do what was decided, or what a crash left of it; drop what was not. Returns whether there was any. Blocking.

    Args:
        present: the names in the directory.
    """
    touched = False
    for name in present:
        if name.endswith(COPIED_INDEX_SUFFIX):
            touched = True
            _put_into_place(disk, directory, name.removesuffix(COPIED_INDEX_SUFFIX))
    for name in present:
        if name.endswith((COPIED_SUFFIX, COPYING_SUFFIX)) and disk.exists(f"{directory}/{name}"):
            touched = True
            disk.unlink(f"{directory}/{name}")
    return touched


def _put_into_place(disk: Disk, directory: str, name: str) -> None:
    copied, index = f"{directory}/{name}{COPIED_SUFFIX}", f"{directory}/{name}{COPIED_INDEX_SUFFIX}"
    try:
        summary = Summary(_head(disk, index), index)
    except DamagedFile:
        disk.unlink(index)  # the batches speak for themselves where they are in place already
        return
    segment, following = Segment(directory, summary.base), Segment(directory, summary.next_offset)
    if disk.exists(copied):
        disk.rename(copied, segment.path)
    if disk.exists(segment.checkpoint_path):
        disk.unlink(segment.checkpoint_path)
    later = [each for each in disk.list_dir(directory) if each[:20].isdigit() and each[20:] == LOG_SUFFIX]
    if not any(each >= following.name for each in later):
        disk.open(following.path, create=True).close()
    disk.sync_dir(directory)
    disk.rename(index, segment.index_path)
    disk.sync_dir(directory)


def _head(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(SUMMARY_BYTES, 0)
    finally:
        file.close()
