"""Which leader epoch began at which offset (KIP-101), so that a reader can find where two histories part."""

from bisect import bisect_right


class LeaderEpochs:
    """Epochs and their first offsets, both strictly rising; an epoch is noted before its first batch."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or []]
        self._starts = [start for _, start in entries or []]

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else -1

    def note(self, epoch: int, start_offset: int) -> bool:
        """Remember that `epoch` begins at `start_offset`. Returns whether that was news."""
        if epoch <= self.latest:
            return False
        while self._starts and self._starts[-1] >= start_offset:  # the older epoch wrote nothing
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1 if none is known."""
        found = bisect_right(self._starts, offset) - 1
        return self._epochs[found] if found >= 0 else -1

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and the offset where it ended; (-1, -1) if none is known at all.

        An epoch older than all known ones was dropped with its records: it ended where the first known one begins, so
        that its reader goes on there instead of fearing a lost log.
        """
        found = bisect_right(self._epochs, epoch) - 1
        if found < 0:
            return (epoch, self._starts[0]) if self._starts and epoch >= 0 else (-1, -1)
        end = self._starts[found + 1] if found + 1 < len(self._starts) else log_end
        return self._epochs[found], end

    def cut_to(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def drop_before(self, log_start: int) -> None:
        """Forget epochs that ended at or before `log_start`; the one that covers it now begins there."""
        keep = max(bisect_right(self._starts, log_start) - 1, 0)
        del self._starts[:keep], self._epochs[:keep]
        if self._starts and self._starts[0] < log_start:
            self._starts[0] = log_start
