"""Kafka's DumpLogSegments reads the `.log` files in the data directory: batches and records are Kafka's own."""

import base64
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.peers.broker import Broker

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
