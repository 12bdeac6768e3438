"""What a log must remember besides its segments, in one small checked file: start, leader epochs, producers.

Losing it loses no record: epochs and producers are rebuilt from the batches, the start from the first segment.
Version 2 adds how far the log is compacted; in a file of version 1 it is not. That offsets are missing is also said by
a file beside it, `gaps`, of which it is enough that it is there: a log without its state is not taken for damaged then.
"""

from dataclasses import dataclass, field

import orjson

from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.producers import Producers

FILE_NAME = "state"
GAPS_NAME = "gaps"
_KIND = b"stat"
_VERSION = 2
GAPS_KIND = b"gaps"


@dataclass(slots=True)
class LogState:
    log_start: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: Producers = field(default_factory=Producers)
    producers_at: int = 0
    """Every batch below this offset is in `producers`."""
    compacted_to: int = 0
    """Below it each key has one record at most, but for those of the last pass that was cut short."""
    gaps_to: int = 0
    """Below it batches may be missing: set before the first of them goes."""
    is_gap_marked: bool = False
    """Whether the mark that batches may be missing is there, durably."""
    unsaved: bool = False
    """Recovery found an epoch in the batches that the saved state does not have: more of it would be cut off."""

    def encode(self) -> bytes:
        payload = orjson.dumps(
            {
                "log_start": self.log_start,
                "epochs": self.epochs.entries,
                "producers_at": self.producers_at,
                "producers": self.producers.dump(),
                "compacted_to": self.compacted_to,
                "gaps_to": self.gaps_to,
            }
        )
        return checked_file.encode(_KIND, _VERSION, payload)

    def files(self, directory: str) -> dict[str, bytes]:
        """What is to be saved of it, together: also the mark, before anything is missing that it has to tell of."""
        files = {f"{directory}/{FILE_NAME}": self.encode()}
        if self.gaps_to > 0 and not self.is_gap_marked:
            files |= gaps_mark(directory)
        return files


def gaps_mark(directory: str) -> dict[str, bytes]:
    """The file that says by being there that offsets are missing."""
    return {f"{directory}/{GAPS_NAME}": checked_file.encode(GAPS_KIND, 1, b"")}


def is_gap_marked(disk: Disk, directory: str) -> bool:
    """Whether that file is there. Raises `DamagedFile`: it is, and not as it was written."""
    try:
        checked_file.load(disk, f"{directory}/{GAPS_NAME}", GAPS_KIND, 1)
    except FileNotFoundError:
        return False
    return True


def load_state(disk: Disk, directory: str) -> LogState | None:
    """The saved state, or None when there is none. Raises `DamagedFile`."""
    path = f"{directory}/{FILE_NAME}"
    try:
        payload = orjson.loads(checked_file.load(disk, path, _KIND, _VERSION))
    except FileNotFoundError:
        return None
    return LogState(
        log_start=payload["log_start"],
        epochs=LeaderEpochs([(epoch, start) for epoch, start in payload["epochs"]]),
        producers=Producers.restore(payload["producers"]),
        producers_at=payload["producers_at"],
        compacted_to=payload.get("compacted_to", 0),
        gaps_to=payload.get("gaps_to", 0),
    )
