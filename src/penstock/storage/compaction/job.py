"""What a pass is given and what it reports: plain numbers and paths, so that both travel as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

Range = tuple[int, int]
"""Offsets, both ends in it."""
CLEANED_SUFFIX = ".cleaned"
CLEANED_INDEX_SUFFIX = ".cleaned.index"


class CompactionError(Exception):
    """A pass was given up; the log is as it was before. The text names the file and the byte."""


@dataclass(frozen=True, slots=True)
class Source:
    """A sealed segment. Its card lies beside it."""

    base: int
    size: int
    next_offset: int
    path: str


@dataclass(frozen=True, slots=True)
class Job:
    directory: str
    segments: tuple[Source, ...]
    """Contiguous, the oldest of the log first; of a log that is thinned, any."""
    dirty_from: int
    """The first offset no pass has dealt with yet; of no matter where `kept` says what stays."""
    until: int
    """The end of the last segment. Every transaction with a record below it is decided."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_keys: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    """Producer id, first offset and marker's offset of every aborted transaction with a record below `until`."""
    last_batches: tuple[int, ...] = ()
    """Base offsets of batches whose header must survive: sequences and epochs of producers are rebuilt from them."""
    bytes_per_second: int = 0
    """Read and written; 0 is no limit."""
    kept: tuple[Range, ...] | None = None
    """Which records stay, whatever their keys: sorted, and apart. None to keep the last of each key."""
    open_before: tuple[int, ...] = ()
    """Producers with a transaction open where the first segment begins."""

    def __post_init__(self) -> None:
        ends = [segment.next_offset for segment in self.segments]
        bases = [segment.base for segment in self.segments]
        if not self.segments or bases[1:] != ends[:-1] or ends[-1] != self.until or self.max_keys < 1:
            raise ValueError(
                f"{self.directory}: segments {bases} up to {ends} for a pass until {self.until} with {self.max_keys} "
                "keys; they must be contiguous, end there, and one key must fit"
            )
        check_sorted(self.kept or ())

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes) -> "Job":
        fields = orjson.loads(data)
        fields["segments"] = tuple(Source(**source) for source in fields["segments"])
        fields["aborted"] = tuple((producer, first, last) for producer, first, last in fields["aborted"])
        fields["last_batches"] = tuple(fields["last_batches"])
        fields["open_before"] = tuple(fields["open_before"])
        if fields["kept"] is not None:
            fields["kept"] = tuple((first, last) for first, last in fields["kept"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbours that were looked at together, and the one segment that is to stand for them."""

    replaced: tuple[int, ...]
    """Bases of the segments, the first of which is also the new one's."""
    size: int
    """Bytes of the new segment; 0 when nothing was left: it still stands for its offsets."""
    next_offset: int
    changed: bool
    """False: nothing was to be done, nothing was written."""

    @property
    def base(self) -> int:
        return self.replaced[0]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of what was written, the segment first."""
        return cleaned_names(self.base) if self.changed else ()


@dataclass(frozen=True, slots=True)
class Result:
    groups: tuple[Group, ...]
    cleaned_to: int
    """The next pass's `dirty_from`; below `until` if the map was full before, perhaps amid a segment then."""
    keys: int
    """Different ones in the dirty part that was dealt with."""
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_kept: int
    bytes_written: int

    @property
    def records_dropped(self) -> int:
        return self.records_read - self.records_kept

    @property
    def bytes_dropped(self) -> int:
        return self.bytes_read - self.bytes_kept

    @property
    def changed(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.changed)

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> "Result":
        """What `orjson.loads` makes of an encoded one."""
        groups = fields["groups"]
        assert isinstance(groups, list)
        made = tuple(Group(**{**group, "replaced": tuple(group["replaced"])}) for group in groups)
        return cls(**{**fields, "groups": made})  # type: ignore[arg-type]


def check_sorted(ranges: Sequence[Range]) -> None:
    """Raises ValueError unless they are ranges, sorted, and none touches another."""
    behind = -2
    for first, last in ranges:
        if not behind + 1 < first <= last:
            raise ValueError(f"offsets {first} to {last}: no range, or not behind and apart from one up to {behind}")
        behind = last


def cleaned_names(base: int) -> tuple[str, str]:
    return f"{base:020d}{CLEANED_SUFFIX}", f"{base:020d}{CLEANED_INDEX_SUFFIX}"
