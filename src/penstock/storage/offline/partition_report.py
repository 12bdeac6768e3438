"""What a look at one partition found in each of its segments: what a repair goes by."""

from dataclasses import dataclass, field

from penstock.ports.disk import File
from penstock.storage.log.card import Card
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.state import LogState
from penstock.storage.offline.findings import Finding
from penstock.storage.offline.survey import Stretch, Survey


@dataclass(slots=True)
class SegmentReport:
    name: str
    path: str
    base: int
    is_last: bool
    size: int = 0
    next_offset: int = 0
    """Behind the last batch that checks."""
    last_epoch: int = -1
    batches: int = 0
    records: int = 0
    card: Card | None = None
    card_path: str | None = None
    sealed: bool = False
    """Not the last one, and a card says that it was complete once."""
    problems: list[Stretch] = field(default_factory=list)
    """Stretches that are not sound and no harmless tail."""
    bad_blocks: list[int] = field(default_factory=list)
    card_is_wrong: bool = False
    gaps_to: int = 0
    """Below this offset batches may be missing, and have no records."""
    has_gaps: bool = False
    open_transactions: dict[int, int] = field(default_factory=dict)
    """Producers and first offsets of those open at its end."""

    @property
    def is_card_whole(self) -> bool:
        return self.card is not None and not self.card_is_wrong and self.card.size == self.size


@dataclass(slots=True)
class PartitionReport:
    name: str
    path: str
    state: LogState | None = None
    segments: list[SegmentReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    durable_end: int = 0
    """Offsets below it were promised once."""
    largest_producer_id: int = -1
    largest_epoch: int = -1
    compacted: bool = False
    """By the topic's settings."""
    is_swapping: bool = False
    """Compaction had decided on new segments; they are what is reported here."""

    @property
    def gaps_to(self) -> int:
        """As the state says, or as can be assumed without it."""
        if self.state is not None:
            return self.state.gaps_to
        if self.compacted and self.segments:
            return self.segments[-1].base
        return max((segment.next_offset for segment in self.segments if segment.has_gaps), default=0)

    @property
    def log_start(self) -> int:
        saved = self.state.log_start if self.state is not None else 0
        return max(saved, self.segments[0].base) if self.segments else saved

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else self.log_start


def survey_of(file: File, segment: SegmentReport, following: int | None, epochs: LeaderEpochs | None) -> Survey:
    """A walk over a segment's file by what is known of it."""
    return Survey(
        file,
        segment.size,
        segment.base,
        ceiling=following,
        epochs=epochs,
        gaps_to=segment.gaps_to,
        card=segment.card if segment.sealed else None,
    )
