"""What a log must remember besides its segments, in one small checked file: start, leader epochs, producers.

Losing it loses no record: epochs and producers are rebuilt from the batches, the start from the first segment.
Version 2 adds how far the log is compacted; in a file of version 1 it is not.
"""

from dataclasses import dataclass, field

import orjson

from penstock.ports.disk import Disk
from penstock.storage import checked_file
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.producers import Producers

FILE_NAME = "state"
_KIND = b"stat"
_VERSION = 2


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
