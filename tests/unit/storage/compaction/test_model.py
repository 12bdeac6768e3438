"""Passes over random logs against a model of what has to be left, batch by batch and record by record."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.compaction.sealed_log import RETENTION_MS, Row, SealedLog, rows_of

from penstock.records.batch import DELETE_HORIZON
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker
from penstock.storage.compaction.job import Result
from penstock.storage.compaction.pace import Pace
from penstock.storage.compaction.reading import SealedSegment
from penstock.storage.log.card import decode
from penstock.storage.offline.void import void_batches
from penstock.testing.faulty_disk import FaultyDisk

PLAIN, PRODUCERS = -1, (7, 8)


@dataclass
class ModelBatch:
    base: int
    last: int
    producer_id: int
    kind: str
    """data, transactional, marker or void."""
    rows: list[Row]
    aborted: bool = False
    horizon: int | None = None

    def shape(self) -> tuple[object, ...]:
        return self.base, self.last, self.producer_id, self.horizon, self.rows


@dataclass
class Model:
    """The log as it has to be: everything that is kept, in order."""

    batches: list[ModelBatch] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    open: dict[int, list[ModelBatch]] = field(default_factory=dict)
    last_batch: dict[int, int] = field(default_factory=dict)

    def add(self, batch: ModelBatch, *, aborts: bool = False) -> None:
        self.batches.append(batch)
        if batch.kind == "transactional":
            self.open.setdefault(batch.producer_id, []).append(batch)
        if batch.kind in ("data", "transactional") and batch.producer_id >= 0:
            self.last_batch[batch.producer_id] = batch.base
        if batch.kind == "marker":
            ended = self.open.pop(batch.producer_id, [])
            if aborts and ended:
                self.aborted.append((batch.producer_id, ended[0].base, batch.base))
                for each in ended:
                    each.aborted = True

    def stable_end(self, end: int) -> int:
        return min([batches[0].base for batches in self.open.values()], default=end)

    def latest(self, until: int) -> dict[bytes, int]:
        return {
            row[2]: row[0]
            for batch in self.batches
            if batch.base < until and batch.kind in ("data", "transactional") and not batch.aborted
            for row in batch.rows
            if row[2] is not None
        }

    def compact(self, until: int, now: int) -> None:
        latest, with_data, kept = self.latest(until), set(), []
        for batch in self.batches:
            if batch.base < until and batch.kind != "void":
                expired = batch.horizon is not None and batch.horizon <= now
                if batch.kind == "marker":
                    if batch.producer_id not in with_data:
                        if expired:
                            batch.rows = []
                        elif batch.horizon is None:
                            batch.horizon = now + RETENTION_MS
                    with_data.discard(batch.producer_id)
                else:
                    if batch.kind == "transactional":
                        with_data.add(batch.producer_id)
                    self._sift(batch, latest, expired, now)
                if not batch.rows:
                    if batch.base not in self.last_batch.values():
                        continue
                    batch.horizon = None
            kept.append(batch)
        self.batches = kept

    @staticmethod
    def _sift(batch: ModelBatch, latest: dict[bytes, int], expired: bool, now: int) -> None:
        batch.rows = [
            (offset, time, key, value)
            for offset, time, key, value in batch.rows
            if not batch.aborted and key is not None and latest[key] == offset and (value is not None or not expired)
        ]
        if batch.horizon is None and any(row[3] is None for row in batch.rows):
            batch.horizon = now + RETENTION_MS


keys = st.sampled_from([b"a", b"b", b"c", b"d" * 70, b""]) | st.just(None)
pairs = st.lists(st.tuples(keys, st.none() | st.sampled_from([b"", b"v", b"w" * 90])), min_size=1, max_size=5)
producers = st.sampled_from(PRODUCERS)
codecs = st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD])
times = st.integers(-1, 5000)
writes = st.one_of(
    st.tuples(st.just("data"), st.sampled_from([PLAIN, 7, 9]), pairs, codecs, times),
    st.tuples(st.just("transactional"), producers, pairs, codecs, times),
    st.tuples(st.just("end"), producers, st.sampled_from(Marker)),
    st.tuples(st.just("void"), st.integers(1, 5)),
)


def joined(parts: list[Any]) -> list[tuple[object, ...]]:
    return [event for part in parts for event in part]


segments = st.lists(writes, min_size=1, max_size=6).map(lambda some: [*some, ("seal",)])
passes = st.tuples(st.just("pass"), st.sampled_from([0, 400, RETENTION_MS]), st.sampled_from([1, 700, 10_000]))
histories = st.lists(segments | passes.map(lambda one: [one]), max_size=10).map(joined)
# By the end everything is decided, and every horizon set on the way comes.
ends = [("end", producer, Marker.ABORT) for producer in PRODUCERS]
last_passes = [*ends, ("seal",), *[("pass", RETENTION_MS, 700)] * 3]


class ModelledLog:
    def __init__(self) -> None:
        self.log = SealedLog(FaultyDisk())
        self.model = Model()
        self.written: list[Row] = []
        self.now = 0
        self.unsealed: list[ModelBatch] = []

    def happen(self, event: tuple[object, ...], max_keys: int) -> Result | None:
        match event:
            case ("data" | "transactional" as kind, int(producer_id), list(some), Codec() as codec, int(time)):
                self._write(kind, producer_id, some, codec, time)
            case ("end", int(producer_id), Marker() as marker):
                base = self.log.mark(producer_id, marker, self.now)
                batch = ModelBatch(base, base, producer_id, "marker", [(base, self.now, b"", b"")])
                self.model.add(batch, aborts=marker is Marker.ABORT)
            case ("void", int(span)):
                first = self.log.next_offset
                for void, _ in void_batches(first, first + span, 3):
                    self.log.append(void)
                self.model.add(ModelBatch(first, first + span - 1, -1, "void", [(first, -1, b"", b"")]))
            case ("seal",) if self.log.pending:
                self.log.seal()
            case ("pass", int(later), int(segment_bytes)):
                self.now += later
                return self._compact(segment_bytes, max_keys)
        return None

    def _write(self, kind: str, producer_id: int, some: list[Any], codec: Codec, time: int) -> None:
        records = [(key, value, [("h", b"1")], time + 3 * at) for at, (key, value) in enumerate(some)]  # type: ignore[misc]
        fields: dict[str, Any] = (
            {} if producer_id < 0 else {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        )
        batch = build_batch(records, codec=codec, transactional=kind == "transactional", **fields)
        base = self.log.append(batch)
        rows = [(base + at, each[3], each[0], each[1]) for at, each in enumerate(records)]
        self.written += rows
        self.model.add(ModelBatch(base, base + len(rows) - 1, producer_id, kind, rows))

    def _compact(self, segment_bytes: int, max_keys: int) -> Result | None:
        stable = self.model.stable_end(self.log.next_offset)
        whole = [source for source in self.log.sources if source.next_offset <= stable]
        if not whole:
            return None
        rest = self.log.sources[len(whole) :]
        # As the log does it: what the cards have lost, no pass knows.
        listed = self._listed() + [row[:3] for row in self.log.card.transactions.aborted()]
        self.log.sources = whole
        result = self.log.compact(
            now_ms=self.now,
            segment_bytes=segment_bytes,
            max_keys=max_keys,
            aborted=tuple(listed),
            last_batches=tuple(self.model.last_batch.values()),
        )
        assert self.log.dirty_from <= whole[-1].next_offset
        self.log.sources += rest
        return result

    def check_files(self) -> None:
        """Segments cover all offsets, every byte of them is as its card says, and no aborted record goes unlisted."""
        expected = 0
        for source in self.log.sources:
            assert source.base == expected
            expected = source.next_offset
            segment = SealedSegment(self.log.disk, source, Pace(0, lambda: 0.0, lambda _: None))
            list(segment.batches())
        listed = self._listed()
        assert set(listed) <= set(self.model.aborted) and listed == sorted(listed, key=lambda row: row[2])
        cards = [name for name in self.log.files() if name.endswith(".index")]
        assert [decode(self.log.files()[name], name).base for name in cards] == [each.base for each in self.log.sources]

    def _listed(self) -> list[tuple[int, int, int]]:
        """The aborted transactions that the cards of sealed segments tell of."""
        files = self.log.files()
        cards = [decode(files[f"{source.base:020d}.index"], "card") for source in self.log.sources]
        return [row[:3] for card in cards for row in card.transactions.aborted()]

    def visible(self) -> list[Row]:
        """What a reader of committed records gets from the sealed segments, by their cards."""
        listed = self._listed()
        return [
            row
            for header, batch in self.log.batches()
            if not header.is_control
            and not any(
                header.is_transactional and header.producer_id == producer_id and first <= header.base_offset <= last
                for producer_id, first, last in listed
            )
            for row in rows_of(batch)
        ]

    def check_exactly(self) -> None:
        found = []
        for header, batch in self.log.batches():
            horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
            rows: list[Row] = rows_of(batch)
            if header.is_control:
                rows = [(offset, time, b"", b"") for offset, time, _, _ in rows]
            found.append((header.base_offset, header.last_offset, header.producer_id, horizon, rows))
        end = self.log.sources[-1].next_offset if self.log.sources else 0
        assert found == [batch.shape() for batch in self.model.batches if batch.base < end]


@settings(deadline=None, max_examples=60)
@given(histories)
def test_what_is_left_is_what_the_model_leaves(happening: list[tuple[object, ...]]) -> None:
    world = ModelledLog()
    for event in [*happening, *last_passes]:
        result = world.happen(event, 1000)
        if result is not None:
            assert result.cleaned_to == result.groups[-1].next_offset
            world.model.compact(result.cleaned_to, world.now)
            assert result.records_kept == sum(
                len(batch.rows) for batch in world.model.batches if batch.base < result.cleaned_to
            )
            world.check_files()
        world.check_exactly()


transactions = st.tuples(producers, pairs, st.sampled_from(Marker)).map(
    lambda one: [("transactional", one[0], one[1], Codec.NONE, 0), ("end", one[0], one[2])]
)
long_segments = st.lists(writes.map(lambda one: [one]) | transactions, min_size=1, max_size=8).map(
    lambda some: [*joined(some), ("seal",)]
)


@settings(deadline=None, max_examples=60)
@given(st.lists(long_segments, max_size=4).map(joined), st.integers(1, 4))
def test_a_small_map_gets_there_in_several_passes(happening: list[tuple[object, ...]], max_keys: int) -> None:
    """However few keys fit: each pass gets on, no last value is lost, and nothing moves."""
    world = ModelledLog()
    for event in happening:
        world.happen(event, max_keys)
    until = max(
        (s.next_offset for s in world.log.sources if s.next_offset <= world.model.stable_end(1 << 40)), default=0
    )
    before = -1
    while world.log.dirty_from < until:
        assert world.log.dirty_from > before
        before = world.log.dirty_from
        world.happen(("pass", 0, 300), max_keys)
        world.check_files()
        rows = world.log.rows()
        assert [row for row in world.written if row in rows] == rows, "another record, or another order"
        latest = set(world.model.latest(until).values())
        assert latest <= {row[0] for row in rows}
        aborted = {row[0] for batch in world.model.batches if batch.aborted for row in batch.rows}
        assert not aborted & {row[0] for row in world.visible() if row[0] < until}
        assert [row[0] for row in rows if row[0] < world.log.dirty_from and row[0] not in latest] == [
            row[0] for row in rows if row[0] < world.log.dirty_from and row[0] in _superseded_later(world, rows, until)
        ]


def _superseded_later(world: ModelledLog, rows: list[Row], until: int) -> set[int]:
    """Records below the end of the map that only a record above it supersedes: they may stay until the next pass."""
    latest = world.model.latest(until)
    below = world.model.latest(world.log.dirty_from)
    return {row[0] for row in rows if row[2] is not None and below.get(row[2]) == row[0] != latest.get(row[2])}
