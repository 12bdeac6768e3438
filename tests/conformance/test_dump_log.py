"""Kafka's DumpLogSegments reads the `.log` files in the data directory: batches and records are Kafka's own."""

import base64
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.records.control import Marker
from penstock.storage.local_disk import LocalDisk
from tests.peers.broker import Broker
from tests.unit.storage.compaction.sealed_log import RETENTION_MS, SealedLog, values

from .conftest import Judges, run_tool, segment_files
from .records import CODECS, LOG_APPEND_TIME, Record
from .wire import Wire, producer_id

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    base: int
    last: int
    count: int
    sequences: tuple[int, int]
    producer: tuple[int, int]
    codec: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Dumped:
    batches: list[Batch]
    # Offset, timestamp, key and value; a null prints as nothing.
    records: list[tuple[int, int, str | None, str | None]]
    timestamp_kinds: set[str]


def _number(line: str, name: str) -> int:
    found = re.search(rf"\b{name}: (-?\d+)", line)
    assert found, (name, line)
    return int(found.group(1))


def dump(judges: Judges, *files: Path) -> list[Dumped]:
    """What the tool prints of each file; fails if it finds a batch not valid."""
    names = ",".join(map(str, files))
    printed = run_tool(judges, "DumpLogSegments", "--files", names, "--print-data-log", "--deep-iteration")
    parts = re.split(r"^Dumping (.*)$", printed, flags=re.MULTILINE)
    assert parts[1::2] == [str(each) for each in files]
    found = [_parsed(part) for part in parts[2::2]]
    for each, file in zip(found, files, strict=True):
        assert sum(batch.size for batch in each.batches) == file.stat().st_size, "every byte is a batch's"
    return found


def _parsed(part: str) -> Dumped:
    batches, records, kinds = [], [], set()
    for line in part.splitlines():
        if line.startswith("baseOffset:"):
            assert "isvalid: true" in line, line
            assert "magic: 2" in line, line
            codec = re.search(r"compresscodec: (\w+)", line)
            kind = re.search(r"(CreateTime|LogAppendTime): ", line)
            assert codec, line
            assert kind, line
            kinds.add(kind.group(1))
            batches.append(
                Batch(
                    _number(line, "baseOffset"),
                    _number(line, "lastOffset"),
                    _number(line, "count"),
                    (_number(line, "baseSequence"), _number(line, "lastSequence")),
                    (_number(line, "producerId"), _number(line, "producerEpoch")),
                    codec.group(1),
                    _number(line, "position"),
                    _number(line, "size"),
                )
            )
        elif line.startswith("| offset:"):
            texts = re.search(r"headerKeys: \[.*?\](?: key: (?P<key>.*?))?(?: payload: (?P<value>.*))?$", line)
            assert texts, line
            time_ms = re.search(r"(?:CreateTime|LogAppendTime): (-?\d+)", line)
            assert time_ms, line
            records.append((_number(line, "offset"), int(time_ms.group(1)), texts["key"], texts["value"]))
    return Dumped(batches, records, kinds)


def expected(records: list[Record], first: int = 0) -> Iterator[tuple[int, int, str | None, str | None]]:
    for offset, each in enumerate(records, first):
        assert each.timestamp_ms is not None
        yield (
            offset,
            each.timestamp_ms,
            None if each.key is None else each.key.decode(),
            None if each.value is None else each.value.decode(),
        )


def test_every_codec(
    broker: Broker, judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, wire: Wire
) -> None:
    records = [Record(b"value %d" % n, b"key %d" % n, (), yesterday_ms + n) for n in range(50)]
    records += [Record(None, b"tombstone", (), yesterday_ms), Record(b"keyless", None, (), yesterday_ms)]
    topic = new_topic("dump", partitions=len(CODECS))
    before = producer_id(wire)
    for partition, codec in enumerate(CODECS):
        judges["java"].produce(topic, partition, records, codec=codec)
        judges["confluent"].produce(topic, partition, records, codec=codec, idempotent=True)
    files = [segment_files(broker, topic, partition)[0] for partition in range(len(CODECS))]
    for codec, found in zip(CODECS, dump(judges, *files), strict=True):
        assert found.records == list(expected(records * 2)), codec
        assert {each.codec for each in found.batches} == {codec}
        assert found.timestamp_kinds == {"CreateTime"}
        plain = [each for each in found.batches if each.last < len(records)]
        idempotent = [each for each in found.batches if each.base >= len(records)]
        assert all((each.producer, each.sequences) == ((-1, -1), (-1, -1)) for each in plain)
        assert all(each.producer[0] > before and each.producer[1] == 0 for each in idempotent)
        assert [each.sequences for each in idempotent] == [
            (each.base - len(records), each.last - len(records)) for each in idempotent
        ]


def test_made_by_the_broker(
    broker: Broker, judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, now_ms: int
) -> None:
    """Batches that were compressed anew, or stamped, are as sound as those kept as sent."""
    records = [Record(b"value %d" % n, b"key %d" % n, (), yesterday_ms) for n in range(50)]
    topic = new_topic("dump-made", **{"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"})
    for codec in CODECS:
        judges["java"].produce(topic, 0, records, codec=codec)
    assert judges["java"].read(topic, 0, 0, 1)[0].timestamp_type == LOG_APPEND_TIME
    (found,) = dump(judges, *segment_files(broker, topic, 0))
    assert [(offset, key, value) for offset, _time, key, value in found.records] == [
        (offset, key, value) for offset, _time, key, value in expected(records * len(CODECS))
    ]
    assert all(time_ms >= now_ms for _offset, time_ms, _key, _value in found.records)
    assert found.timestamp_kinds == {"LogAppendTime"}
    assert {each.codec for each in found.batches} == {"zstd"}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_rolled_segments(
    broker: Broker, judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, codec: str
) -> None:
    topic = new_topic("dump-rolled", **{"segment.bytes": str(MIB)})
    # Text, so that it prints as it is, and too mixed for a codec to make it small.
    source = random.Random(3)
    records = [
        Record(base64.b64encode(source.randbytes(16_000)), b"key %d" % n, (), yesterday_ms + n) for n in range(180)
    ]
    for first in range(0, len(records), 30):
        judges["java"].produce(topic, 0, records[first : first + 30], codec=codec)
    files = [each for each in segment_files(broker, topic, 0) if each.stat().st_size]  # the next one may be there
    assert len(files) >= 3
    found = dump(judges, *files)
    position = 0
    for file, each in zip(files, found, strict=True):
        assert int(file.stem) == position == each.batches[0].base, "named after its first offset"
        assert each.batches[0].position == 0
        for one, following in zip(each.batches, each.batches[1:], strict=False):
            assert following.base == one.last + 1
            assert following.position == one.position + one.size
        position = each.batches[-1].last + 1
    assert [record for each in found for record in each.records] == list(expected(records))


def test_a_compacted_segment(judges: Judges, tmp_path: Path) -> None:
    """Gaps, a tombstone and a marker with their delete horizons, a batch without records."""
    log = SealedLog(LocalDisk(), str(tmp_path))
    log.write(*values([("a", "old"), ("b", "kept")]))
    fields = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    aborted = log.write(*values([("a", "aborted")]), producer_id=7, **fields)
    log.write(*values([("c", "committed")]), producer_id=8, **fields)
    commit, abort = log.mark(8, Marker.COMMIT), log.mark(7, Marker.ABORT)
    hanging = log.mark(9, Marker.ABORT)  # of nobody's records: it may go, in time
    log.write(*values([("a", "new"), ("gone", None)]))
    log.seal()
    log.compact(aborted=((7, aborted, abort),), last_batches=(aborted,), now_ms=5)
    (file,) = tmp_path.glob("*.log")
    printed = run_tool(judges, "DumpLogSegments", "--files", str(file), "--print-data-log", "--deep-iteration")
    batches = [line for line in printed.splitlines() if line.startswith("baseOffset:")]
    assert all("isvalid: true" in line for line in batches), printed
    assert sum(_number(line, "size") for line in batches) == file.stat().st_size
    assert [(_number(line, "baseOffset"), _number(line, "lastOffset"), _number(line, "count")) for line in batches] == [
        (0, 1, 1),
        (aborted, aborted, 0),
        (aborted + 1, aborted + 1, 1),
        (commit, commit, 1),
        (abort, abort, 1),
        (hanging, hanging, 1),
        (hanging + 1, hanging + 2, 2),
    ]
    horizons = [
        _number(line, "baseOffset") for line in batches if f"deleteHorizonMs: OptionalLong[{5 + RETENTION_MS}]" in line
    ]
    assert horizons == [hanging, hanging + 1]
    records = [line for line in printed.splitlines() if line.startswith("| offset:")]
    markers = {
        _number(line, "offset"): found[1] for line in records if (found := re.search(r"endTxnMarker: (\w+)", line))
    }
    assert markers == {commit: "COMMIT", abort: "ABORT", hanging: "ABORT"}
    data = [line for line in records if _number(line, "offset") not in markers]
    told = [re.search(r"key: (\w+)(?: payload: (\w+))?$", line) for line in data]
    assert [each.groups() if each else None for each in told] == [
        ("b", "kept"),
        ("c", "committed"),
        ("a", "new"),
        ("gone", None),
    ], printed
