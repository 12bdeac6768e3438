"""The settings of one log, already checked; the engine makes them from a topic's configuration."""

from dataclasses import dataclass
from enum import StrEnum


class Flush(StrEnum):
    COMMIT = "commit"
    """Synced before `acks=all` is answered and before a consumer may see it."""
    INTERVAL = "interval"
    """Synced at least every `flush_ms`."""
    OS = "os"
    """Left to the operating system: survives the process, not the machine."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    retention_ms: int = 7 * 24 * 3600 * 1000
    """-1: for ever."""
    retention_bytes: int = -1
    """-1: no limit."""
    index_interval_bytes: int = 4096
    flush: Flush = Flush.COMMIT
    flush_ms: int = 1000
    compact: bool = False
    """Whether of each key only the last record has to stay."""
    delete_retention_ms: int = 24 * 3600 * 1000
    min_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
