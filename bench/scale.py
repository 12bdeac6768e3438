"""How much work a run is, and what every measurement begins with."""

import os
from dataclasses import dataclass
from pathlib import Path

from bench.cells import MEGABYTE, Cell, Pace

_NARROW = 100


@dataclass(frozen=True, slots=True)
class Scale:
    """Shares of the full work.

    Attributes:
        share: of every cell's bytes, and of the partitions of wide topics.
        warm_passes: unmeasured passes of half the base cell's bytes.
        latency_s: how long each rate is kept up.
        bars_only: leave out cells that have no bar.
        brief: leave out cells that repeat others.
    """

    share: float
    warm_passes: int
    latency_s: int
    bars_only: bool = False
    brief: bool = False

    def includes(self, cell: Cell | Pace) -> bool:
        if self.brief and isinstance(cell, Cell) and cell.repeats:
            return False
        return bool(cell.bars) or not self.bars_only

    def partitions(self, full: int) -> int:
        """Wide topics get narrower in a small run; creating them is most of its time."""
        return full if full <= _NARROW else max(_NARROW, min(full, int(full * self.share)))

    def megabytes(self, full: int) -> int:
        return max(1, int(full * self.share))


def settle(directory: Path, megabytes: int = 0) -> None:
    """Make the disk and the memory as they were before every other measurement.

    What earlier work left dirty is written out. Then as many pages as the next work needs are written once and
    freed: under a hypervisor that takes back free memory, the first touch of a page costs up to ten times the
    write itself, and would be charged to whichever broker comes first.
    """
    os.sync()
    scratch = directory / "scratch.dat"
    block = bytes(MEGABYTE)
    with scratch.open("wb", buffering=0) as file:
        for _ in range(megabytes * 5 // 4):
            file.write(block)
    scratch.unlink()
