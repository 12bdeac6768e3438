"""A leader as its follower sees it: asked for what comes next in many partitions at once, or for whole segments."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from penstock.errors import Code

T = TypeVar("T")


class Position(NamedTuple):
    """Where a follower stands in one partition."""

    topic_id: bytes
    partition_index: int
    leader_epoch: int
    """The epoch it follows in."""
    fetch_offset: int
    last_fetched_epoch: int
    """Epoch of the record before `fetch_offset`; -1 for none."""
    log_start: int
    max_bytes: int


class FetchedRow(NamedTuple):
    """The leader's answer for one partition."""

    topic_id: bytes
    partition_index: int
    code: int
    """Kafka's; 0 is none."""
    high_watermark: int
    log_start: int
    records: memoryview
    """A view of the response: dies with it."""
    diverging: tuple[int, int] | None = None
    """Epoch and end offset where the follower's history parts from the leader's."""
    leader: tuple[int, int] | None = None
    """Who leads and in which epoch, from one that does not."""
    word: str = ""
    """Our own for the error, where Kafka's code stands for several."""


class SegmentWanted(NamedTuple):
    """A range of a sealed segment of the leader."""

    topic_id: bytes
    partition_index: int
    leader_epoch: int
    offset: int
    """Where the segment begins."""
    position: int
    """In its file; whole blocks."""
    max_bytes: int
    least_bytes: int
    """Not worth it if the leader has less than that from `offset` on."""


class SegmentPart(NamedTuple):
    """What the leader gives of a sealed segment."""

    base: int
    """Another one than was asked for: none begins there, and this is where the next one does; -1 for none."""
    next_offset: int
    size: int
    """Of the whole file."""
    card: bytes
    """With position 0 only."""
    data: bytes


class LeaderGone(Exception):
    """The leader cannot be reached, or not any more.

    Attributes:
        refused: its host says that nobody listens there, so its process has ended.
    """

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class Source(Protocol):
    """A connection to one broker, made and made again when needed. It remembers what it has asked for (KIP-227)."""

    async def fetch(
        self,
        positions: Iterable[Position],
        handle: Callable[[FetchedRow, Code | None], None],
        *,
        max_wait_ms: int,
        max_bytes: int,
    ) -> None:
        """Ask for everything that `positions` lists; waits at the leader until there is something.

        `handle` is called for each partition that has news, with its error if there is one; the row's view dies when
        it returns.

        Raises:
            LeaderGone
        """
        ...

    async def copy_segment(self, wanted: SegmentWanted) -> SegmentPart:
        """Ask for a range of a sealed segment that lies wholly below the high watermark. Not in the way of `fetch`.

        Raises:
            LeaderGone
            PenstockError: the leader refuses.
        """
        ...

    def close(self) -> None: ...
